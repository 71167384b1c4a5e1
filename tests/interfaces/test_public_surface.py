"""The recorded public surface, among the tests that run before a branch lands (with `test_walks`)."""

from tests.golden.test_public_surface import test_the_public_surface_is_the_recorded_one as test_public_surface

__all__ = ["test_public_surface"]
