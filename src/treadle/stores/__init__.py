"""Where everything durable lives: SQLite (a file, or memory) and PostgreSQL, behind the ports of `treadle.kernel.ports`."""
