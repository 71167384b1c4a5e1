"""Reads of records, their items, messages to runs, and outcomes of effects."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.model.records import EffectOutcome, Message, Record
from treadle.stores.postgres.connection.connect import Connection, fetch_as
from treadle.stores.postgres.database import Part, reads, works
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "records.sql")


class Records(Part):
    """The `RecordStore` of PostgreSQL."""

    @works
    async def find(self, connection: Connection, record_id: str) -> Record | None:
        return next(iter(await fetch_as(connection, Record, _SQL["find_record"], record_id)), None)

    @works
    async def find_named(self, connection: Connection, namespace: str, entity: str, name: str) -> Record | None:
        return next(iter(await fetch_as(connection, Record, _SQL["find_record_named"], namespace, entity, name)), None)

    @reads
    async def list_matching(self, connection: Connection, which: RecordFilter, limit: int) -> list[Record]:
        values = (which.entity, which.namespace, list(which.states) or None, which.live, which.task_id, which.run_id)
        return await fetch_as(connection, Record, _SQL["list_records"], *values, which.before_id, max(limit, 0))

    @reads
    async def count(self, connection: Connection, namespace: str, entity: str) -> dict[str, int]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["count_records"], namespace, entity)}

    @works
    async def list_items(self, connection: Connection, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        rows = await connection.fetch(_SQL["list_items"], record_id, after_key, max(limit, 0))
        return [(row[0], row[1]) for row in rows]

    @works
    async def find_items(self, connection: Connection, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        return {row[0]: row[1] for row in await connection.fetch(_SQL["find_items"], record_id, list(keys))}

    @works
    async def list_messages(self, connection: Connection, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        return await fetch_as(connection, Message, _SQL["list_messages"], run_id, max(limit, 0), after_seq)

    @works
    async def find_outcomes(self, connection: Connection, keys: Sequence[str]) -> list[EffectOutcome]:
        return await fetch_as(connection, EffectOutcome, _SQL["find_outcomes"], list(dict.fromkeys(keys)))

    @reads
    async def list_outcomes(
        self, connection: Connection, root_ids: Sequence[str], after_key: str | None, limit: int
    ) -> list[EffectOutcome]:
        return await fetch_as(connection, EffectOutcome, _SQL["list_outcomes"], list(root_ids), after_key, max(limit, 0))

    @reads
    async def list_unknown(self, connection: Connection, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        cursor = which.before or (None, None)
        values = (which.namespace, which.task_id, which.run_id, *cursor, max(limit, 0))
        return await fetch_as(connection, EffectOutcome, _SQL["list_unknown"], *values)

    @works
    async def count_unknown(self, connection: Connection, root_ids: Sequence[str]) -> int:
        return int(await connection.fetchval(_SQL["count_unknown"], list(dict.fromkeys(root_ids))))
