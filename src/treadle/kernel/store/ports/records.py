"""The port for records, messages to function runs, and outcomes of effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.model.records import EffectOutcome, Message, Record


class RecordStore(StoreClock, Protocol):
    """Reads of records, messages and effect outcomes. Units write them (`TaskStore.commit`)."""

    async def find_record(self, record_id: str) -> Record | None:
        """Return the record, live or ended."""

    async def find_record_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """Return the live record with that name."""

    async def list_records(self, which: RecordFilter, limit: int) -> list[Record]:
        """Return up to `limit` records, newest first (by id)."""

    async def count_records(self, namespace: str, entity: str) -> dict[str, int]:
        """Count the records of the entity by state."""

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """Return a page of the record's items in order of key (by code point)."""

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the items that exist among those keys."""

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """Return up to `limit` messages that the run has not consumed, in order of arrival.

        The messages read at a version of the run are all messages that exist at that version.
        """

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """Return the recorded outcomes of the effects with these keys."""

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        """Return a page of the outcomes of those trees' effects, in order of key (by code point)."""

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        """Return up to `limit` effects that have become unknown (`unknown_at`) and are still `unknown`, newest first."""

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        """Count the effects of those trees that are `unknown`: begun, with no recorded end."""
