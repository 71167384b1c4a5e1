"""Schedules: work started by time."""
