"""Retention: trees that are past their time are found by reading alone, and removed in short transactions that look again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import Pruned, PrunePage, Rules
from treadle.stores.sqlite.connection import read_row, read_value, reading, writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "prune.sql")
_decode = msgspec.json.Decoder().decode

RUNS = "run:"
"""What a cursor in the second half of the walk, that over runs without tasks, starts with."""

SLACK = 1000
"""Free pages that a file keeps at least: they will be needed again."""


def _json(values: Sequence[str]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _values(rules: Rules, now: int) -> dict[str, Any]:
    return {name: getattr(rules, name) for name in rules.__slots__} | {"now": now}


def find_prunable(connection: apsw.Connection, rules: Rules, cursor: str | None, limit: int, now: int, *, count: bool) -> PrunePage:
    """The next stretch of the walk: over finished tasks first, then over runs that have none."""
    values = _values(rules, now)
    with reading(connection):
        if cursor is not None and cursor.startswith(RUNS):
            return _find_runs(connection, values, cursor.removeprefix(RUNS), limit, count)
        after_seq = int(cursor or 0)
        last_seq, met, ended_at, roots = read_row(
            connection, _SQL["find_window"], values | {"after_seq": after_seq, "limit": limit}
        )
        prunable = _prunable(connection, values, _decode(roots))
        newest_at = now - read_value(connection, _SQL["find_shortest_keep"], values)
        following = str(last_seq) if met == limit and ended_at <= newest_at else RUNS
        if not count or not prunable:
            return PrunePage(prunable, following)
        span = {"roots": _json(prunable), "after_seq": after_seq, "until_seq": last_seq}
        trees, tasks = read_row(connection, _SQL["count_members"], span)
        return PrunePage(prunable, following, tasks, trees)


def _find_runs(connection: apsw.Connection, values: dict[str, Any], after_id: str, limit: int, count: bool) -> PrunePage:
    newest_at = values["now"] - read_value(connection, _SQL["find_shortest_keep"], values)
    span = {"after_id": after_id, "until_id": _first_id(newest_at + 1), "limit": limit}
    last_id, met, roots = read_row(connection, _SQL["find_runs_window"], values | span)
    prunable = _prunable(connection, values, _decode(roots))
    return PrunePage(prunable, f"{RUNS}{last_id}" if met == limit else None, 0, len(prunable) if count else 0)


def _first_id(at: int) -> str:
    """What sorts before all ids that were made at that instant or later."""
    text = f"{max(at, 0):012x}"
    return f"{text[:8]}-{text[8:]}"


def _prunable(connection: apsw.Connection, values: dict[str, Any], roots: Sequence[str]) -> tuple[str, ...]:
    if not roots:
        return ()
    return tuple(_decode(read_value(connection, _SQL["list_prunable"], values | {"roots": _json(roots)})))


def prune_trees(connection: apsw.Connection, rules: Rules, roots: Sequence[str], limit: int, now: int) -> Pruned:
    """Remove trees, lines and steps first, then tasks, then runs and big values, until the bound is reached."""
    with writing(connection):
        sure = _json(_prunable(connection, _values(rules, now), roots))
        members = _decode(read_value(connection, _SQL["list_members"], {"roots": sure, "limit": limit}))
        runs = _decode(read_value(connection, _SQL["list_runs"], {"roots": sure}))
        steps = _decode(read_value(connection, _SQL["list_steps"], {"runs": _json(runs), "limit": limit}))
        lines = _change(connection, "delete_lines", ids=_json([*members, *steps]), limit=limit)
        room = limit - lines
        steps = steps[:room]
        room -= len(steps)
        members = members[:room]
        room -= len(members)
        _change(connection, "delete_steps", ids=_json(steps))
        moves = _change(connection, "delete_log", ids=_json(members))
        _change(connection, "delete_finished", ids=_json(members))
        outcomes = _change(connection, "delete_outcomes", roots=sure, limit=max(room, 0))
        room -= outcomes
        records = _decode(read_value(connection, _SQL["list_records"], {"roots": sure, "limit": max(room, 0)}))
        room -= len(records)
        moves += _delete_records(connection, records)
        if room <= 0:
            _change(connection, "bump_runs", ids=_json(runs))
            return Pruned(0, len(members), moves, lines, 0, len(steps), 0, len(records), outcomes, more=True)
        moves += _change(connection, "delete_log", ids=_json(runs))
        _change(connection, "delete_runs", ids=_json(runs))
        blobs = drop_uses(connection, _decode(sure))
    return Pruned(len(_decode(sure)), len(members), moves, lines, len(runs), len(steps), blobs, len(records), outcomes)


def _delete_records(connection: apsw.Connection, records: Sequence[str]) -> int:
    """Remove the records with their moves; how many moves there were."""
    moves = _change(connection, "delete_log", ids=_json(records))
    _change(connection, "delete_records", ids=_json(records))
    return moves


def drop_uses(connection: apsw.Connection, roots: Sequence[str]) -> int:
    """The trees use no big values any more; how many went with that."""
    values = {"roots": _json(roots)}
    digests = read_value(connection, _SQL["list_digests"], values)
    _change(connection, "delete_uses", **values)
    return _change(connection, "delete_blobs", digests=digests)


def _change(connection: apsw.Connection, name: str, **values: Any) -> int:
    connection.execute(_SQL[name], values)
    return int(connection.changes())


def prune_rest(
    connection: apsw.Connection, limit: int, keep_servers_for: int, keep_records_for: int, now: int
) -> tuple[int, int, int]:
    """Remove keys past their time, servers long gone, and records of no tree that ended long ago."""
    with writing(connection):
        keys = _change(connection, "delete_keys", now=now, limit=limit)
        servers = _change(connection, "delete_servers", now=now, keep_servers_for=keep_servers_for)
        old = {"now": now, "keep_records_for": keep_records_for, "limit": limit}
        records = _decode(read_value(connection, _SQL["list_old_records"], old))
        _delete_records(connection, records)
    return keys, servers, len(records)


def compact(connection: apsw.Connection, *, whole: bool) -> int:
    """Give free pages back; a file that was made without that ability gets it when it is written anew."""
    pages, free, mode = read_row(connection, _SQL["count_free"])
    if whole:
        connection.pragma("auto_vacuum", "incremental")
        connection.execute(_SQL["vacuum"])
    elif mode and free > max(SLACK, pages // 10):
        connection.execute(_SQL["vacuum_some"]).fetchall()
    else:
        return 0
    return int((pages - read_row(connection, _SQL["count_free"])[0]) * connection.pragma("page_size"))


def set_keep(
    connection: apsw.Connection, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None
) -> None:
    """A list's own rules."""
    values = {"namespace": namespace, "task_list": task_list, "completed_for": completed_for, "failed_for": failed_for}
    with writing(connection):
        connection.execute(_SQL["set_keep"], values)
