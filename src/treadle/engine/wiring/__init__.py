"""The composition root: the container of kernel services, and the workers of a process."""
