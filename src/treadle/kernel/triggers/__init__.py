"""Shared by schedules and watchers: records with a task of their own that start other work."""
