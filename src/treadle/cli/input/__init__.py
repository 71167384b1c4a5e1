"""Typed text made into values: durations, payloads, AFL sources, options, workflow inputs."""
