"""Build and check scripts; not part of the package."""
