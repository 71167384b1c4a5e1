"""Search: one query language over runs and tasks."""
