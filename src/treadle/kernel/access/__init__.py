"""Tokens, sessions, login throttling and idempotent requests."""
