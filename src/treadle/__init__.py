"""Treadle: a durable work engine for agents and long-running jobs."""
