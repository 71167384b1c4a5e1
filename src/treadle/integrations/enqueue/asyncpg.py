"""Enqueue in the transaction of an asyncpg connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.integrations.enqueue.request import DEFAULT_SCHEMA, make_request, statements
from treadle.kernel.queue.service import Enqueued
from treadle.model.values import Json

if TYPE_CHECKING:
    import asyncpg


async def enqueue(
    connection: asyncpg.Connection[Any],
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    schema: str = DEFAULT_SCHEMA,
    **options: Any,
) -> Enqueued:
    """Enqueue a task that exists when the connection's transaction commits; options are those of `make_request`.

    Outside a transaction it exists immediately. If the database refuses the task, the transaction aborts.
    """
    return await make_request(name, payload, **options).ask_async(statements("asyncpg", schema), connection.fetchrow)
