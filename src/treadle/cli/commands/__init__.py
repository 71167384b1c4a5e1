"""The commands: one module per group, each written against the API contract; no rules and no SQL."""
