"""Enqueue in the transaction of a SQLAlchemy connection or session, blocking or async, on any PostgreSQL driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.integrations.enqueue.request import DEFAULT_SCHEMA, Row, make_request, refuse_sqlite, statements
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

    request, sql = make_request(name, payload, **options), statements("sqlalchemy", schema)
    refuse_sqlite(_dialect(connection))
    return request.ask(sql, lambda query, given: connection.execute(text(query), {"given": given}).one_or_none())


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

    request, sql = make_request(name, payload, **options), statements("sqlalchemy", schema)
    refuse_sqlite(_dialect(connection))

    async def ask(query: str, given: str) -> Row:
        return (await connection.execute(text(query), {"given": given})).one_or_none()

    return await request.ask_async(sql, ask)


def _dialect(connection: Any) -> str:
    """Return the dialect of a connection, or of the engine that a session is bound to."""
    bound = connection if hasattr(connection, "dialect") else connection.get_bind()
    return str(bound.dialect.name)
