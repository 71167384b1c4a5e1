"""Depth-first order of rows that name their parents; siblings keep their own order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def depth_first(
    rows: Sequence[T], id_of: Callable[[T], str], parent_of: Callable[[T], str | None], order: Callable[[T], Any]
) -> Iterator[T]:
    """Yield the rows, each below its parent; rows without their parent are roots."""
    known = {id_of(row) for row in rows}
    children: dict[str | None, list[T]] = {}
    for row in rows:
        parent = parent_of(row)
        children.setdefault(parent if parent in known else None, []).append(row)
    for each in children.values():
        each.sort(key=order, reverse=True)
    left = list(children.get(None, ()))
    while left:
        row = left.pop()
        yield row
        left += children.get(id_of(row), ())
