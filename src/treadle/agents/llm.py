"""The names of `treadle.llm`, under the path that agents import them from."""

from treadle.llm import *  # noqa: F403
