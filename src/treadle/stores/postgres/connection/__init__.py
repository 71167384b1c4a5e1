"""Connections to a PostgreSQL database: addresses, pools, errors, schema, and signals."""
