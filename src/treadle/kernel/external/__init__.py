"""External jobs: work in external services, tracked by polling and callbacks."""
