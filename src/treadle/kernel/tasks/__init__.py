"""Tasks and dead letters as people and programs see them: reads, and operations by id."""
