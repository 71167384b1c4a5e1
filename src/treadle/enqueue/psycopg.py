"""Enqueue in the transaction of a psycopg (3) connection, blocking or async."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.enqueue.wish import DEFAULT_SCHEMA, Wish, make_wish, statement
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
    """Enqueue a task that exists when the connection's transaction commits; options are those of `make_wish`.

    If the database refuses the task, the transaction aborts.
    """
    from psycopg.rows import tuple_row

    wish, enqueueing = make_wish(name, payload, **options), statement("psycopg", schema)
    with wish.translated(), connection.cursor(row_factory=tuple_row) as cursor:
        return _answer(wish, cursor.execute(enqueueing, (wish.text,)).fetchone())


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

    wish, enqueueing = make_wish(name, payload, **options), statement("psycopg", schema)
    with wish.translated():
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(enqueueing, (wish.text,))
            return _answer(wish, await cursor.fetchone())


def _answer(wish: Wish, row: tuple[Any, ...] | None) -> Enqueued:
    if row is None:
        raise StoreError("treadle_enqueue_v1 returned nothing.")
    return wish.answer(str(row[0]))
