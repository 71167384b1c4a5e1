"""Traces: everything that followed from one start, on one timeline."""
