"""Reads of records, their items, messages to runs, and outcomes of effects."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from treadle.kernel.store.records import EffectFilter, RecordFilter
from treadle.model.records import EffectOutcome, Message, Record
from treadle.stores.sqlite.connection.connect import fetch_as, read_value, to_json
from treadle.stores.sqlite.database import Part, reads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "records.sql")


class Records(Part):
    """The `RecordStore` of SQLite."""

    @reads
    def find(self, connection: apsw.Connection, record_id: str) -> Record | None:
        return next(iter(fetch_as(connection, Record, _SQL["find_record"], {"id": record_id})), None)

    @reads
    def find_named(self, connection: apsw.Connection, namespace: str, entity: str, name: str) -> Record | None:
        values = {"namespace": namespace, "entity": entity, "name": name}
        return next(iter(fetch_as(connection, Record, _SQL["find_record_named"], values)), None)

    @reads
    def list_matching(self, connection: apsw.Connection, which: RecordFilter, limit: int) -> list[Record]:
        values = {name: getattr(which, name) for name in which.__struct_fields__} | {"limit": max(limit, 0)}
        values["states"] = to_json(which.states) if which.states else None
        # Each statement has an index that fits.
        if which.task_id is not None:
            statement = "list_records_of_task"
        elif which.run_id is not None:
            statement = "list_records_of_run"
        else:
            statement = "list_live_records" if which.live and which.namespace is not None else "list_records"
        return fetch_as(connection, Record, _SQL[statement], values)

    @reads
    def count(self, connection: apsw.Connection, namespace: str, entity: str) -> dict[str, int]:
        found = connection.execute(_SQL["count_records"], {"namespace": namespace, "entity": entity})
        return {str(state): int(count) for state, count in found}

    @reads
    def list_items(self, connection: apsw.Connection, record_id: str, after_key: str | None, limit: int) -> list[tuple[str, str]]:
        values = {"record_id": record_id, "after_key": after_key, "limit": max(limit, 0)}
        return [(str(key), str(value)) for key, value in connection.execute(_SQL["list_items"], values)]

    @reads
    def find_items(self, connection: apsw.Connection, record_id: str, keys: Sequence[str]) -> dict[str, str]:
        found = connection.execute(_SQL["find_items"], {"record_id": record_id, "keys": to_json(list(keys))})
        return {str(key): str(value) for key, value in found}

    @reads
    def list_messages(self, connection: apsw.Connection, run_id: str, limit: int, after_seq: int = 0) -> list[Message]:
        values = {"run_id": run_id, "after_seq": after_seq, "limit": max(limit, 0)}
        return fetch_as(connection, Message, _SQL["list_messages"], values)

    @reads
    def find_outcomes(self, connection: apsw.Connection, keys: Sequence[str]) -> list[EffectOutcome]:
        return fetch_as(connection, EffectOutcome, _SQL["find_outcomes"], {"keys": to_json(list(dict.fromkeys(keys)))})

    @reads
    def list_outcomes(
        self, connection: apsw.Connection, root_ids: Sequence[str], after_key: str | None, limit: int
    ) -> list[EffectOutcome]:
        values = {"roots": to_json(list(dict.fromkeys(root_ids))), "after_key": after_key, "limit": max(limit, 0)}
        return fetch_as(connection, EffectOutcome, _SQL["list_outcomes"], values)

    @reads
    def list_unknown(self, connection: apsw.Connection, which: EffectFilter, limit: int) -> list[EffectOutcome]:
        unknown_at, key = which.before or (None, None)
        values = {"namespace": which.namespace, "task_id": which.task_id, "run_id": which.run_id}
        cursor = {"unknown_at": unknown_at, "key": key, "limit": max(limit, 0)}
        return fetch_as(connection, EffectOutcome, _SQL["list_unknown"], values | cursor)

    @reads
    def count_unknown(self, connection: apsw.Connection, root_ids: Sequence[str]) -> int:
        return int(read_value(connection, _SQL["count_unknown"], {"roots": to_json(list(dict.fromkeys(root_ids)))}))
