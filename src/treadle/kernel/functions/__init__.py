"""Runs of durable Python functions."""
