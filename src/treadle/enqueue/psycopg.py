"""Enqueue in the transaction of a psycopg (3) connection, blocking or async."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.enqueue.request import DEFAULT_SCHEMA, EnqueueRequest, make_request, statement
from treadle.kernel.queue.service import Enqueued
from treadle.model.errors import StoreError
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

    request, enqueueing = make_request(name, payload, **options), statement("psycopg", schema)
    with request.translated(), connection.cursor(row_factory=tuple_row) as cursor:
        return _answer(request, cursor.execute(enqueueing, (request.text,)).fetchone())


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

    request, enqueueing = make_request(name, payload, **options), statement("psycopg", schema)
    with request.translated():
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(enqueueing, (request.text,))
            return _answer(request, await cursor.fetchone())


def _answer(request: EnqueueRequest, row: tuple[Any, ...] | None) -> Enqueued:
    if row is None:
        raise StoreError("treadle_enqueue_v1 returned nothing.")
    return request.answer(str(row[0]))
