"""The lease sidecar: a small process that acts for a worker process that cannot."""
