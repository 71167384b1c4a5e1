"""Reads of records, mail and outcomes, and the leases of the dead: what the PostgreSQL store promises in `kernel.store.records`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from treadle.kernel.store.records import RecordFilter
from treadle.model.records import EffectOutcome, Message, Record
from treadle.stores.postgres.connect import PACKAGE, Connection, fetch_as, row_count
from treadle.stores.statements import load_statements

_RECORDS = load_statements(PACKAGE, "records.sql")
_MAIL = load_statements(PACKAGE, "mail.sql")
_OUTCOMES = load_statements(PACKAGE, "outcomes.sql")


class EntityMethods:
    """Part of `PostgresStore`."""

    def _working(self) -> AbstractAsyncContextManager[Connection]:
        raise NotImplementedError

    def _reading(self) -> AbstractAsyncContextManager[Connection]:
        raise NotImplementedError

    async def find_record(self, record_id: str) -> Record | None:
        """The record."""
        async with self._working() as connection:
            found = await fetch_as(connection, Record, _RECORDS["find_record"], record_id)
        return found[0] if found else None

    async def find_record_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """The live record of that name."""
        async with self._working() as connection:
            found = await fetch_as(connection, Record, _RECORDS["find_record_named"], namespace, entity, name)
        return found[0] if found else None

    async def list_records(self, which: RecordFilter, limit: int) -> list[Record]:
        """Records, newest first."""
        values = (which.entity, which.namespace, list(which.states) or None, which.live, which.task_id, which.run_id)
        async with self._reading() as connection:
            return await fetch_as(connection, Record, _RECORDS["list_records"], *values, which.before_id, max(limit, 0))

    async def count_records(self, namespace: str, entity: str) -> dict[str, int]:
        """Records by state."""
        async with self._reading() as connection:
            return {row[0]: row[1] for row in await connection.fetch(_RECORDS["count_records"], namespace, entity)}

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """A page of the record's items."""
        async with self._working() as connection:
            rows = await connection.fetch(_RECORDS["list_items"], record_id, after_key, max(limit, 0))
        return [(row[0], row[1]) for row in rows]

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Those of the items that there are."""
        async with self._working() as connection:
            return {row[0]: row[1] for row in await connection.fetch(_RECORDS["find_items"], record_id, list(keys))}

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """What the run has not taken in."""
        async with self._working() as connection:
            return await fetch_as(connection, Message, _MAIL["list_messages"], run_id, max(limit, 0), after_seq)

    async def list_children(self, run_id: str) -> list[str]:
        """Unfinished runs that steps of this one have started."""
        async with self._working() as connection:
            return [row[0] for row in await connection.fetch(_MAIL["list_children"], run_id)]

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """What is known of the effects."""
        async with self._working() as connection:
            return await fetch_as(connection, EffectOutcome, _OUTCOMES["find_outcomes"], list(dict.fromkeys(keys)))

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        """How many effects of the trees are unknown."""
        async with self._working() as connection:
            return int(await connection.fetchval(_OUTCOMES["count_unknown"], list(dict.fromkeys(root_ids))))

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        """Make the leases of those owners run out."""
        async with self._reading() as connection:
            return row_count(await connection.execute(_MAIL["expire_leases"], list(owner_ids)))

    async def list_unpolled(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Tasks that await an outside job and are ready."""
        async with self._reading() as connection:
            return [row[0] for row in await connection.fetch(_RECORDS["list_unpolled"], list(lane_ids), max(limit, 0))]
