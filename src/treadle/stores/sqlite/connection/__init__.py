"""Connections to an SQLite database: how they open, their threads, errors, schema and write-ahead log."""
