"""The commands: one module per group, written against the API contract, without rules or SQL."""
