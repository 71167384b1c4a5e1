"""Reads: rows come back as one JSON text each time, which costs one step of the database and no lock."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from treadle.kernel.store.queries import History, LaneDepth, TaskFilter
from treadle.model.names import Lane
from treadle.model.states import FINAL_TASK_STATES
from treadle.model.tasks import Move, Task
from treadle.stores.sqlite.connection import read_row, read_value, reading
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "reads.sql")
_FINAL = frozenset[str](FINAL_TASK_STATES)
_encode = msgspec.json.Encoder().encode
_decode_task = msgspec.json.Decoder(Task).decode
_decode_tasks = msgspec.json.Decoder(list[Task]).decode
_decode_moves = msgspec.json.Decoder(list[Move]).decode
_decode_entities = msgspec.json.Decoder(list[tuple[str, str, str, int]]).decode


def find_task(connection: apsw.Connection, task_id: str) -> Task | None:
    """The task, live or finished."""
    found = connection.execute(_SQL["find_task"], {"id": task_id}).fetchall()
    return _decode_task(str(found[0][0])) if found else None


def find_finished(connection: apsw.Connection, task_ids: Sequence[str]) -> list[Task]:
    """Those of the tasks that are finished."""
    ids = _encode(list(dict.fromkeys(task_ids))).decode()
    found = read_value(connection, _SQL["find_finished"], {"ids": ids})
    return _decode_tasks(found)


def list_tasks(connection: apsw.Connection, which: TaskFilter, limit: int) -> list[Task]:
    """Live and finished tasks, newest first."""
    if limit <= 0:
        return []
    values = {
        "states": _encode(which.states).decode() if which.states else None,
        "namespace": which.namespace,
        "kind": which.kind,
        "task_list": which.task_list,
        "name": which.name,
        "run_id": which.run_id,
        "before_id": which.before_id,
        "limit": limit,
    }
    suffix = "" if which.run_id is None else "_of_run"
    final = _FINAL.intersection(which.states)
    tasks: list[Task] = []
    with reading(connection):
        if not which.states or len(final) < len(which.states):
            tasks += _decode_tasks(read_value(connection, _SQL["list_live" + suffix], values))
        if not which.states or final:
            tasks += _decode_tasks(read_value(connection, _SQL["list_ended" + suffix], values))
    tasks.sort(key=lambda task: task.id, reverse=True)
    return tasks[:limit]


def list_depths(connection: apsw.Connection) -> list[LaneDepth]:
    """The depth of every lane that has a live task."""
    return [
        LaneDepth(lane_id, Lane(namespace, kind, task_list, name), *counts)
        for lane_id, namespace, kind, task_list, name, *counts in connection.execute(_SQL["list_depths"])
    ]


def count_finished(connection: apsw.Connection) -> dict[str, int]:
    """Finished tasks by state."""
    return {str(state): int(count) for state, count in connection.execute(_SQL["count_finished"])}


def list_moves(connection: apsw.Connection, entity_id: str) -> list[Move]:
    """The moves of the entity in order of version."""
    found = read_value(connection, _SQL["list_moves"], {"entity_id": entity_id})
    return _decode_moves(found)


def list_histories(connection: apsw.Connection, after_id: str | None, limit: int) -> list[History]:
    """Where entities stand and how they came there, in order of id."""
    moves: dict[str, list[Move]] = {}
    with reading(connection):
        found = read_value(connection, _SQL["list_entities"], {"after_id": after_id or "", "limit": max(limit, 0)})
        entities = _decode_entities(found)
        ids = _encode([entity_id for _, entity_id, _, _ in entities]).decode()
        found = read_value(connection, _SQL["list_moves_of"], {"ids": ids})
    for move in _decode_moves(found):
        moves.setdefault(move.entity_id, []).append(move)
    return [History(*entity, tuple(moves.get(entity[1], ()))) for entity in entities]


def count_rows(connection: apsw.Connection) -> tuple[int, int]:
    """Live and finished tasks; reads an index of each, which takes some milliseconds per million."""
    live, finished = read_row(connection, _SQL["count_rows"])
    return live, finished
