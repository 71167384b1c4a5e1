"""Runs of AFL workflows: flows, start, advance, operate, read."""
