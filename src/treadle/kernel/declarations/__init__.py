"""Limits and schedules that programs declare in code."""
