"""Search by tags, words of errors and the beginnings of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from treadle.kernel.store.ports import Span
from treadle.kernel.store.queries import Place
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.database import Part, lists, reads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "search.sql")
_FEW = 1_000
"""Errors with the same words that are read and sorted."""
_NEWEST = 100
"""The newest errors, which show whether words are common: a word that none of them has is rarely in more than one of 50 errors."""
_NEW = 20_000
"""The newest errors, among which those with common words are looked for."""


def _values(span: Span) -> tuple[Any, ...]:
    return span.namespace, span.entity, *span.before, span.after


class Search(Part):
    """The `SearchStore` of PostgreSQL."""

    @reads
    async def list_tags(self, connection: Connection, owner_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for owner_id, key, value in await connection.fetch(_SQL["list_tags"], sorted(set(owner_ids))):
            found.setdefault(owner_id, {})[key] = value
        return found

    @reads
    async def list_tagged(self, connection: Connection, span: Span, key: str, value: str, limit: int) -> list[Place]:
        return _positions(await connection.fetch(_SQL["list_tagged"], *_values(span), key, value, max(limit, 0)))

    @lists
    async def list_with_words(self, connection: Connection, span: Span, words: Sequence[str], limit: int) -> list[Place]:
        """Look for common words among the newest errors, and for others in the index of words, which has no order.

        The index takes time for each error with the words before it returns the first one.
        """
        query = " & ".join(f"'{word[:-1]}':*" if word.endswith("*") else f"'{word}'" for word in words)
        part = max((word.removesuffix("*") for word in words if word.isascii()), key=len, default="")
        of = "runs" if span.entity == "run" else "tasks"

        async def list_new(newest: int, most: int) -> list[asyncpg.Record]:
            return await connection.fetch(_SQL[f"list_new_{of}_with_words"], *_values(span), query, most, part, newest)

        limit = max(limit, 0)
        if not await list_new(_NEWEST, 1):
            found = await connection.fetch(_SQL[f"list_some_{of}_with_words"], *_values(span), query, _FEW)
            if len(found) < _FEW:
                return sorted(_positions(found), reverse=True)[:limit]
        found = await list_new(_NEW, limit)
        if len(found) < limit:
            found = await connection.fetch(_SQL[f"list_{of}_with_words"], *_values(span), query, limit)
        return _positions(found)

    @reads
    async def list_failing_tasks(self, connection: Connection, span: Span, limit: int) -> list[Place]:
        return _positions(await connection.fetch(_SQL["list_failing_tasks"], *_values(span), max(limit, 0)))

    @reads
    async def list_run_names(self, connection: Connection, prefix: str, limit: int) -> list[str]:
        return [row[0] for row in await connection.fetch(_SQL["list_run_names"], prefix, limit)]

    @lists
    async def list_ids(self, connection: Connection, entity: str, namespace: str, first: str, last: str, limit: int) -> list[str]:
        name = {"run": "list_run_ids", "task": "list_task_ids", "step": "list_step_ids"}.get(entity, "list_record_ids")
        more = (entity,) if name == "list_record_ids" else ()
        return [row[0] for row in await connection.fetch(_SQL[name], namespace, first, last, limit, *more)]


def _positions(rows: Any) -> list[Place]:
    return [Place(row[0], row[1]) for row in rows]
