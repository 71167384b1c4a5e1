"""Enqueue in the transaction of a psycopg (3) connection, blocking or async."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.integrations.enqueue.request import DEFAULT_SCHEMA, make_request, statements
from treadle.kernel.queue.service import Enqueued
from treadle.model.values import Json

if TYPE_CHECKING:
    import psycopg


def enqueue(
    connection: psycopg.Connection[Any],
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    **options: Any,
) -> Enqueued:
    """Enqueue a task that exists when the connection's transaction commits; options are those of `make_request`.

    If the database refuses the task, the transaction aborts.
    """
    from psycopg.rows import tuple_row

    request, sql = make_request(name, payload, **options), statements("psycopg", schema)
    with connection.cursor(row_factory=tuple_row) as cursor:
        return request.ask(sql, lambda query, given: cursor.execute(query, (given,)).fetchone())


async def enqueue_async(
    connection: psycopg.AsyncConnection[Any],
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    **options: Any,
) -> Enqueued:
    """Do the same as `enqueue` on an async connection."""
    from psycopg.rows import tuple_row

    request, sql = make_request(name, payload, **options), statements("psycopg", schema)
    async with connection.cursor(row_factory=tuple_row) as cursor:

        async def ask(query: str, given: str) -> tuple[Any, ...] | None:
            return await (await cursor.execute(query, (given,))).fetchone()

        return await request.ask_async(sql, ask)
