"""Metrics: counts, durations, waits, depths and costs by minute, hour and day, rolled up from transitions."""
