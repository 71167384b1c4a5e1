"""A transaction of the writing connection that a caller holds open: their own statements, and work, in one commit."""
