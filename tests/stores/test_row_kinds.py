"""A kind of row, or of settlement, that a store does not know is an error: no store skips it silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest

from treadle.kernel.store.encoded_store import DECODED_FIELDS, ENCODED_FIELDS, WITHOUT_TEXTS, encoded_store
from treadle.kernel.store.units import Row, Settlement, Unit
from treadle.kernel.store.value_store import Codec
from treadle.model.records import EffectOutcome, Message, Record
from treadle.model.tasks import LogLine
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


async def test_the_encoded_store_refuses_a_row_or_settlement_that_it_does_not_know() -> None:
    inner = SqliteStore(None, clock=ManualClock())
    await inner.open()
    store = encoded_store(inner, Reversed())
    with pytest.raises(AssertionError, match="UnknownRow"):
        await store.commit([Unit(rows=(UNKNOWN,))])
    with pytest.raises(AssertionError, match="UnknownRow"):
        await store.commit([Unit(settlement=UNKNOWN)])
    await inner.close()


def test_the_union_of_rows_is_the_one_that_the_stores_handle() -> None:
    assert {kind.__name__ for kind in get_args(Row)} == {
        *("PutRun", "RunTransition", "PutSteps", "PutInbox", "ClearInbox", "PutFlow", "PutBlob", "BlockRun", "CancelRunTasks"),
        *("Dismiss", "LimitTask", "PutTags", "ReleaseKey", "PutPayload", "PutMetrics"),
        *("PutRecord", "ChangeRecord", "PutItems", "PutMessage", "TakeMessages", "Await", "PutOutcome", "AppendStream"),
    }


def test_the_texts_of_every_row_and_settlement_are_declared() -> None:
    kinds = {*get_args(Row), *get_args(Settlement)}
    assert ENCODED_FIELDS.keys() >= kinds - WITHOUT_TEXTS
    assert kinds >= WITHOUT_TEXTS
    assert not ENCODED_FIELDS.keys() & WITHOUT_TEXTS
    for kind, fields in (ENCODED_FIELDS | DECODED_FIELDS).items():
        assert fields.keys() <= set(getattr(kind, "__struct_fields__", None) or kind._fields), kind


def test_every_encoded_field_is_decoded() -> None:
    read = {Record, Message, EffectOutcome, LogLine}
    assert all(ENCODED_FIELDS[kind].keys() == DECODED_FIELDS[kind].keys() for kind in read)
