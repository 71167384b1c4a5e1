"""Streams: reads and followers."""
