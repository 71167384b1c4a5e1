"""Threads of agent frameworks: their checkpoints, written by one task at a time."""
