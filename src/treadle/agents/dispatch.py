"""The names of `treadle.dispatch`, under the path that agents import them from."""

from treadle.dispatch import *  # noqa: F403
