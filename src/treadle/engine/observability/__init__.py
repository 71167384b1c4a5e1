"""Prometheus metrics and OpenTelemetry traces of an engine."""
