"""Parsing of typed text: durations, payloads, AFL sources, options, workflow inputs."""
