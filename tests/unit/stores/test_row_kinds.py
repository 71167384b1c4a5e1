"""A kind of row, or of settlement, that a store does not know is an error: no store skips it silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest

from treadle.kernel.store.sealed import sealed_store
from treadle.kernel.store.units import Row, Unit
from treadle.kernel.store.value_store import Codec
from treadle.stores.sqlite import SqliteStore
from treadle.testing import ManualClock


@dataclass(frozen=True, slots=True)
class UnknownRow:
    """A row that a newer kernel might send."""


class Reversed(Codec):
    """A codec that anyone can read."""

    name = "reversed"

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


UNKNOWN: Any = UnknownRow()


async def test_a_store_refuses_a_row_that_it_does_not_know() -> None:
    store = SqliteStore(None, clock=ManualClock())
    await store.open()
    with pytest.raises(AssertionError, match="UnknownRow"):
        await store.commit([Unit(rows=(UNKNOWN,))])
    await store.close()


async def test_the_sealed_store_refuses_a_row_or_settlement_that_it_does_not_know() -> None:
    inner = SqliteStore(None, clock=ManualClock())
    await inner.open()
    store = sealed_store(inner, Reversed())
    with pytest.raises(AssertionError, match="UnknownRow"):
        await store.commit([Unit(rows=(UNKNOWN,))])
    with pytest.raises(AssertionError, match="UnknownRow"):
        await store.commit([Unit(settlement=UNKNOWN)])
    await inner.close()


def test_the_union_of_rows_is_the_one_that_the_stores_handle() -> None:
    assert {kind.__name__ for kind in get_args(Row)} == {
        *("PutRun", "MoveRun", "PutSteps", "PutInbox", "ClearInbox", "PutFlow", "PutBlob", "HoldRun", "CancelRunTasks"),
        *("Dismiss", "LimitTask", "PutTags"),
        *("PutRecord", "ChangeRecord", "PutItems", "PutMessage", "TakeMessages", "Await", "PutOutcome", "AppendStream"),
    }
