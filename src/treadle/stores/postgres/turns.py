"""Turns: the due times by which tasks with fairness keys interleave, so that claims need no other order than that of all tasks."""

from __future__ import annotations

from collections.abc import Collection

from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.statements import load_statements

_TAKE_TURNS = load_statements(__package__, "tasks.sql")["take_turns"]


async def take_turns(connection: Connection, task_ids: Collection[str]) -> None:
    """Give those of the tasks that have a fairness key and wait their turns.

    Concurrent calls for one key may give two tasks the same turn.
    """
    if task_ids:
        await connection.execute(_TAKE_TURNS, sorted(task_ids))
