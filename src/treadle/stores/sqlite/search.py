"""Search by tags, words of errors and the beginnings of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from treadle.kernel.store.ports import Span
from treadle.kernel.store.queries import Place
from treadle.stores.sqlite.connection.connect import to_json
from treadle.stores.sqlite.database import Part, reads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "search.sql")


def _values(span: Span, limit: int) -> dict[str, Any]:
    before_at, before_id = span.before
    values = {"entity": span.entity, "namespace": span.namespace, "after": span.after, "limit": max(limit, 0)}
    return values | {"before_at": before_at, "before_id": before_id}


class Search(Part):
    """The `SearchStore` of SQLite."""

    @reads
    def list_tags(self, connection: apsw.Connection, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for owner_id, key, value in connection.execute(_SQL["list_tags"], {"ids": to_json(list(dict.fromkeys(owner_ids)))}):
            found.setdefault(str(owner_id), {})[str(key)] = str(value)
        return found

    @reads
    def list_tagged(self, connection: apsw.Connection, span: Span, key: str, value: str, limit: int) -> list[Place]:
        return _positions(connection.execute(_SQL["list_tagged"], _values(span, limit) | {"key": key, "value": value}))

    @reads
    def list_with_words(self, connection: apsw.Connection, span: Span, words: Sequence[str], limit: int) -> list[Place]:
        query = " AND ".join(f'"{word[:-1]}" *' if word.endswith("*") else f'"{word}"' for word in words)
        last = min(span.before.created_at + 1, 2**42) << 20
        values = _values(span, 0) | {"words": query, "first": span.after << 20, "last": last}
        wanted = limit
        while True:
            found = _positions(connection.execute(_SQL["list_with_words"], values | {"limit": wanted}))
            kept = sorted((each for each in found if each < span.before), reverse=True)
            if len(found) < wanted:
                return kept
            whole = [each for each in kept if each.created_at > found[-1].created_at]
            if len(whole) >= limit:  # of the last millisecond, the store may have listed only some
                return whole
            wanted *= 4

    @reads
    def list_failing_tasks(self, connection: apsw.Connection, span: Span, limit: int) -> list[Place]:
        return _positions(connection.execute(_SQL["list_failing_tasks"], _values(span, limit)))

    @reads
    def list_run_names(self, connection: apsw.Connection, prefix: str, limit: int) -> list[str]:
        found = connection.execute(_SQL["list_run_names"], {"prefix": prefix, "limit": limit})
        return [str(row[0]) for row in found]

    @reads
    def list_ids(self, connection: apsw.Connection, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        statement = _SQL[{"run": "list_run_ids", "task": "list_task_ids", "step": "list_step_ids"}.get(entity, "list_record_ids")]
        values = {"namespace": namespace, "first": first, "last": last, "limit": limit, "entity": entity}
        return [str(row[0]) for row in connection.execute(statement, values)]


def _positions(rows: Any) -> list[Place]:
    return [Place(int(created_at), str(owner_id)) for created_at, owner_id in rows]
