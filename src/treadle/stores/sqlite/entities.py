"""Reads of records, mail and outcomes, and the leases of the dead: what the SQLite store promises in `kernel.store.records`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.records import RecordFilter
from treadle.model.clock import Clock
from treadle.model.records import EffectOutcome, Message, Record
from treadle.stores.sqlite.channel import Channel
from treadle.stores.sqlite.connection import fetch_as, writing
from treadle.stores.statements import load_statements

_RECORDS = load_statements(__package__, "records.sql")
_MAIL = load_statements(__package__, "mail.sql")
_OUTCOMES = load_statements(__package__, "outcomes.sql")
_encode = msgspec.json.Encoder().encode


class EntityMethods:
    """Part of `SqliteStore`."""

    _clock: Clock
    _writer: Channel
    _reader: Channel

    async def find_record(self, record_id: str) -> Record | None:
        """The record."""
        found = await self._reader.call(lambda connection: fetch_as(connection, Record, _RECORDS["find_record"], {"id": record_id}))
        return found[0] if found else None

    async def find_record_named(self, namespace: str, entity: str, name: str) -> Record | None:
        """The live record of that name."""
        values = {"namespace": namespace, "entity": entity, "name": name}
        found = await self._reader.call(lambda connection: fetch_as(connection, Record, _RECORDS["find_record_named"], values))
        return found[0] if found else None

    async def list_records(self, which: RecordFilter, limit: int) -> list[Record]:
        """Records, newest first, by the index that fits."""
        values = {name: getattr(which, name) for name in which.__slots__} | {"limit": max(limit, 0)}
        values["states"] = _encode(which.states).decode() if which.states else None
        if which.task_id is not None:
            statement = "list_records_of_task"
        elif which.run_id is not None:
            statement = "list_records_of_run"
        else:
            statement = "list_live_records" if which.live and which.namespace is not None else "list_records"
        return await self._reader.call(lambda connection: fetch_as(connection, Record, _RECORDS[statement], values))

    async def count_records(self, namespace: str, entity: str) -> dict[str, int]:
        """Records by state."""
        return dict(await self._pairs(_RECORDS["count_records"], {"namespace": namespace, "entity": entity}))

    async def list_items(self, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        """A page of the record's items."""
        return await self._pairs(_RECORDS["list_items"], {"record_id": record_id, "after_key": after_key, "limit": max(limit, 0)})

    async def find_items(self, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        """Those of the items that there are."""
        return dict(await self._pairs(_RECORDS["find_items"], {"record_id": record_id, "keys": _encode(list(keys)).decode()}))

    async def list_messages(self, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        """What the run has not taken in."""
        values = {"run_id": run_id, "after_seq": after_seq, "limit": max(limit, 0)}
        return await self._reader.call(lambda connection: fetch_as(connection, Message, _MAIL["list_messages"], values))

    async def list_children(self, run_id: str) -> list[str]:
        """Unfinished runs that steps of this one have started."""
        found = await self._reader.call(lambda c: c.execute(_MAIL["list_children"], {"run_id": run_id}).fetchall())
        return [str(row[0]) for row in found]

    async def find_outcomes(self, keys: Sequence[str]) -> list[EffectOutcome]:
        """What is known of the effects."""
        values = {"keys": _encode(list(dict.fromkeys(keys))).decode()}
        return await self._reader.call(lambda connection: fetch_as(connection, EffectOutcome, _OUTCOMES["find_outcomes"], values))

    async def count_unknown(self, root_ids: Sequence[str]) -> int:
        """How many effects of the trees are unknown."""
        values = {"roots": _encode(list(dict.fromkeys(root_ids))).decode()}
        return int((await self._pairs(_OUTCOMES["count_unknown"], values))[0][0])

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        """Make the leases of those owners run out."""

        def work(connection: apsw.Connection) -> int:
            with writing(connection):
                values = {"owners": _encode(list(owner_ids)).decode(), "now": self._clock.now()}
                connection.execute(_MAIL["expire_leases"], values)
                return int(connection.changes())

        return await self._writer.call(work)

    async def list_unpolled(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        """Tasks that await an outside job and are ready."""
        values = {"lane_ids": _encode(list(lane_ids)).decode(), "limit": max(limit, 0)}
        found = await self._reader.call(lambda connection: connection.execute(_RECORDS["list_unpolled"], values).fetchall())
        return [str(row[0]) for row in found]

    async def _pairs(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, Any]]:
        return await self._reader.call(lambda connection: list(connection.execute(statement, values)))
