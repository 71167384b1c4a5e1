"""Search by tags, errors of live tasks, and the beginnings of ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.kernel.store.ports import Span
from treadle.kernel.store.queries import Place
from treadle.stores.shared.port import Port, unique

_ID_STATEMENTS = {"run": "list_run_ids", "task": "list_task_ids", "step": "list_step_ids"}


class SearchReads(Port):
    """The reads of the `SearchStore` that both stores have in common: all but those by words."""

    async def list_tags(self, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        tags: dict[str, dict[str, str]] = {}
        for owner_id, key, value in await self._database.fetch("list_tags", ids=unique(owner_ids)):
            tags.setdefault(owner_id, {})[key] = value
        return tags

    async def list_tagged(self, span: Span, key: str, value: str, limit: int) -> list[Place]:
        return places(await self._database.fetch("list_tagged", **values_of(span), key=key, value=value, limit=max(limit, 0)))

    async def list_failing_tasks(self, span: Span, limit: int) -> list[Place]:
        return places(await self._database.fetch("list_failing_tasks", **values_of(span), limit=max(limit, 0)))

    async def list_run_names(self, prefix: str, limit: int) -> list[str]:
        return await self._list_ids("list_run_names", prefix=prefix, limit=limit)

    async def list_ids(self, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        values = {"namespace": namespace, "first": first, "last": last, "limit": limit, "entity": entity}
        return await self._list_ids(_ID_STATEMENTS.get(entity, "list_record_ids"), **values)


def values_of(span: Span) -> dict[str, Any]:
    """Return the span as values of a statement."""
    before_at, before_id = span.before
    return {"entity": span.entity, "namespace": span.namespace, "after": span.after, "before_at": before_at, "before_id": before_id}


def places(rows: Iterable[Any]) -> list[Place]:
    """Return rows of times and ids."""
    return [Place(created_at, owner_id) for created_at, owner_id in rows]
