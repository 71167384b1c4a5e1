"""Everything that is only read: tasks, depths, moves, servers and lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from treadle.kernel.store.queries import History, LaneDepth, TaskFilter
from treadle.model.names import Lane
from treadle.model.tasks import LogLine, Move, Server, Task
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "reads.sql")


async def find_task(connection: Connection, task_id: str) -> Task | None:
    """The task, live or finished."""
    rows = await connection.fetch(_SQL["list_tasks"], [task_id], *[None] * 7, 1)
    return task_of(rows[0]) if rows else None


async def find_finished(connection: Connection, task_ids: Sequence[str]) -> list[Task]:
    """Those of the tasks that are finished; for a hot connection."""
    return [task_of(row) for row in await connection.fetch(_SQL["find_finished"], sorted(set(task_ids)))]


async def list_tasks(connection: Connection, which: TaskFilter, limit: int) -> list[Task]:
    """Up to `limit` tasks, newest first."""
    rows = await connection.fetch(
        _SQL["list_tasks"],
        None,
        list(which.states) or None,
        which.namespace,
        which.kind,
        which.task_list,
        which.name,
        which.run_id,
        which.before_id,
        limit,
    )
    return [task_of(row) for row in rows]


async def list_depths(connection: Connection) -> list[LaneDepth]:
    """The depth of every lane with a live task."""
    return [
        LaneDepth(
            lane_id=row["lane_id"],
            lane=Lane(row["namespace"], row["kind"], row["task_list"], row["name"]),
            ready=row["ready"],
            running=row["running"],
            waiting=row["waiting"],
            held=row["held"],
            oldest_due_at=row["oldest_due_at"],
        )
        for row in await connection.fetch(_SQL["list_depths"])
    ]


async def count_finished(connection: Connection) -> dict[str, int]:
    """Finished tasks by state."""
    return {row["state"]: row["count"] for row in await connection.fetch(_SQL["count_finished"])}


async def list_moves(connection: Connection, entity_id: str) -> list[Move]:
    """The entity's moves in order."""
    return moves_of(await connection.fetch(_SQL["list_moves"], entity_id))


async def list_histories(connection: Connection, after_id: str | None, limit: int) -> list[History]:
    """One page of entities with all their moves, as of one instant."""
    rows = await connection.fetch(_SQL["list_histories"], after_id, limit)
    histories = []
    for (entity, row_id, state, version), group in groupby(rows, lambda row: row[:4]):
        moves = moves_of(row for row in group if row["seq"] is not None)
        histories.append(History(entity, str(row_id), state, version, tuple(moves)))
    return histories


def server_of(row: asyncpg.Record) -> Server:
    """The server of a row."""
    texts = ("handlers", "task_lists", "topics", "counts")
    return Server(**{**row, **{name: msgspec.json.decode(row[name]) for name in texts}})


async def list_servers(connection: Connection) -> list[Server]:
    """All servers, newest first."""
    return [server_of(row) for row in await connection.fetch(_SQL["list_servers"])]


async def append_lines(connection: Connection, lines: Sequence[LogLine]) -> None:
    """Store what handlers wrote."""
    columns = zip(
        *((line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines), strict=True
    )
    await connection.execute(_SQL["append_lines"], *columns)


async def list_lines(connection: Connection, task_id: str, limit: int) -> list[LogLine]:
    """The task's last lines, oldest first."""
    return [LogLine(**_texts(row)) for row in await connection.fetch(_SQL["list_lines"], task_id, limit)]


async def list_run_lines(connection: Connection, run_id: str, limit: int) -> list[LogLine]:
    """The run's last lines, oldest first."""
    return [LogLine(**_texts(row)) for row in await connection.fetch(_SQL["list_run_lines"], run_id, limit)]


async def page_run_lines(
    connection: Connection, run_id: str, limit: int, before: int | None, after: int | None
) -> list[tuple[int, LogLine]]:
    """Lines about the run with their numbers, oldest first."""
    name, number = ("list_run_lines_before", before) if after is None else ("list_run_lines_after", after)
    rows = [_texts(row) for row in await connection.fetch(_SQL[name], run_id, max(limit, 0), number)]
    found = [(row.pop("id"), LogLine(**row)) for row in rows]
    return found[::-1] if after is None else found


async def describe(connection: Connection) -> dict[str, object]:
    """The server's version, sizes and estimates."""
    row = await connection.fetchrow(_SQL["describe"])
    return dict(row) if row else {}


def task_of(row: asyncpg.Record) -> Task:
    """A row of either table, with the names of its lane, as the task that it is."""
    return Task(**_texts(row))


def moves_of(rows: Iterable[asyncpg.Record]) -> list[Move]:
    """Rows of the log as moves; columns that start with `row_` say something else."""
    return [Move(**{name: value for name, value in _texts(row).items() if not name.startswith("row_")}) for row in rows]


def _texts(row: asyncpg.Record) -> dict[str, Any]:
    """The row with its ids as text, as they are everywhere above the store."""
    return {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}
