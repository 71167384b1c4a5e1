"""The lease keeper: a small process that acts for a worker process that cannot."""
