"""Enqueue in the transaction of a SQLAlchemy connection or session, blocking or async, on any PostgreSQL driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.enqueue.request import DEFAULT_SCHEMA, make_request, refuse_sqlite, statement
from treadle.kernel.queue.service import Enqueued
from treadle.model.values import Json

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session


def enqueue(
    connection: Connection | Session,
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    **options: Any,
) -> Enqueued:
    """Enqueue a task that exists when the transaction commits; options are those of `make_request`.

    If the database refuses the task, the transaction aborts.
    """
    from sqlalchemy import text

    request, enqueueing = make_request(name, payload, **options), text(statement("sqlalchemy", schema))
    refuse_sqlite(_dialect(connection))
    with request.translated():
        return request.answer(str(connection.execute(enqueueing, {"spec": request.text}).scalar_one()))


async def enqueue_async(
    connection: AsyncConnection | AsyncSession,
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    **options: Any,
) -> Enqueued:
    """Do the same as `enqueue` on an async connection or session."""
    from sqlalchemy import text

    request, enqueueing = make_request(name, payload, **options), text(statement("sqlalchemy", schema))
    refuse_sqlite(_dialect(connection))
    with request.translated():
        found = await connection.execute(enqueueing, {"spec": request.text})
        return request.answer(str(found.scalar_one()))


def _dialect(connection: Any) -> str:
    """Return the dialect of a connection, or of the engine that a session is bound to."""
    bound = connection if hasattr(connection, "dialect") else connection.get_bind()
    return str(bound.dialect.name)
