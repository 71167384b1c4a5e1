"""Typed events that the engine emits, their log format, and observers."""
