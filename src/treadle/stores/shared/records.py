"""Reads of records, their items, messages to runs, and outcomes of effects."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.model.records import EffectOutcome, Message, Record
from treadle.stores.shared.port import Port, unique


class Records(Port):
    """The `RecordStore` of both stores."""

    async def find(self, record_id: str) -> Record | None:
        return await self._find(Record, "find_record", id=record_id)

    async def find_named(self, namespace: str, entity: str, name: str) -> Record | None:
        return await self._find(Record, "find_record_named", namespace=namespace, entity=entity, name=name)

    async def list_matching(self, which: RecordFilter, limit: int) -> list[Record]:
        values = msgspec.structs.asdict(which) | {"states": which.states or None, "limit": max(limit, 0)}
        return await self._database.fetch_as(Record, self._list_statement(which), **values)

    def _list_statement(self, which: RecordFilter) -> str:
        return "list_records"

    async def count(self, namespace: str, entity: str) -> dict[str, int]:
        return dict(await self._database.fetch("count_records", namespace=namespace, entity=entity))

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        rows = await self._database.fetch("list_items", record_id=record_id, after_key=after_key, limit=max(limit, 0))
        return [(key, value) for key, value in rows]

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self._database.fetch("find_items", record_id=record_id, keys=keys))

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        return await self._database.fetch_as(Message, "list_messages", run_id=run_id, limit=max(limit, 0), after_seq=after_seq)

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        return await self._database.fetch_as(EffectOutcome, "find_outcomes", keys=unique(keys))

    async def list_outcomes(self, root_ids: Sequence[str], after_key: str | None, limit: int) -> list[EffectOutcome]:
        values = {"roots": unique(root_ids), "after_key": after_key, "limit": max(limit, 0)}
        return await self._database.fetch_as(EffectOutcome, "list_outcomes", **values)

    async def list_unknown(self, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        unknown_at, key = which.before or (None, None)
        values = {"namespace": which.namespace, "task_id": which.task_id, "run_id": which.run_id}
        cursor = {"unknown_at": unknown_at, "key": key, "limit": max(limit, 0)}
        return await self._database.fetch_as(EffectOutcome, "list_unknown", **values, **cursor)

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        ((count,),) = await self._database.fetch("count_unknown", roots=unique(root_ids))
        return int(count)
