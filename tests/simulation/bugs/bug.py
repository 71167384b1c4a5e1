"""The type of a planted bug, and a helper that rewrites SQL statements of a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.simulation.faults import Fault

from treadle.stores.sqlite import database

Plant = Callable[[pytest.MonkeyPatch], None]
Plants = dict[Plant, tuple[tuple[Fault, ...], tuple[str, ...], tuple[str, ...]]]
"""Bugs, and the faults, kinds of submissions and operator actions under which each shows best."""


def rewrite(patch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Replace words of a statement of the SQLite store."""
    statements = database._STATEMENTS
    text = statements[name].text
    assert old in text, text
    patch.setitem(statements, name, statements[name]._replace(text=text.replace(old, new)))
