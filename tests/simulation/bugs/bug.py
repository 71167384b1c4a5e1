"""The type of a planted bug, and a helper that rewrites SQL statements of a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from treadle.testing.simulation import Fault

Plant = Callable[[pytest.MonkeyPatch], None]
Plants = dict[Plant, tuple[tuple[Fault, ...], tuple[str, ...], tuple[str, ...]]]
"""Bugs, and the faults, kinds of submissions and operator actions under which each shows best."""


def rewrite(patch: pytest.MonkeyPatch, statements: dict[str, str], name: str, old: str, new: str) -> None:
    """Put new words in the place of old ones."""
    assert old in statements[name], statements[name]
    patch.setitem(statements, name, statements[name].replace(old, new))
