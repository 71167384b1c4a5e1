"""Retention: trees that are past their time are found by reading alone, and removed in short transactions.

A transaction locks the runs and the finished tasks of its trees and then looks again, so that a retry that came first is
seen, and one that comes later finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import Pruned, PrunePage, Rules
from treadle.stores.postgres.connect import PACKAGE, Connection, row_count
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "prune.sql")

RUNS = "run:"
"""What a cursor in the second half of the walk, that over runs without tasks, starts with."""

_FIRST_ID = "00000000-0000-0000-0000-000000000000"


def _values(rules: Rules) -> tuple[str, int, int]:
    return rules.namespace, rules.keep_completed_for, rules.keep_failed_for


async def find_prunable(connection: Connection, rules: Rules, cursor: str | None, limit: int, *, count: bool) -> PrunePage:
    """The next stretch of the walk: over finished tasks first, then over runs that have none."""
    newest_at = int(await connection.fetchval(_SQL["find_shortest_keep"], *_values(rules)))
    if cursor is not None and cursor.startswith(RUNS):
        return await _find_runs(connection, rules, cursor.removeprefix(RUNS) or _FIRST_ID, newest_at, limit, count)
    after_seq = int(cursor or 0)
    row = await connection.fetchrow(_SQL["find_window"], *_values(rules), after_seq, limit)
    assert row is not None
    last_seq, met, ended_at, roots = row
    prunable = await _prunable(connection, rules, roots)
    following = str(last_seq) if met == limit and ended_at <= newest_at else RUNS
    if not count or not prunable:
        return PrunePage(prunable, following)
    counted = await connection.fetchrow(_SQL["count_members"], prunable, after_seq, last_seq)
    assert counted is not None
    return PrunePage(prunable, following, counted[1], counted[0])


async def _find_runs(connection: Connection, rules: Rules, after_id: str, newest_at: int, limit: int, count: bool) -> PrunePage:
    row = await connection.fetchrow(_SQL["find_runs_window"], *_values(rules), after_id, _first_id(newest_at + 1), limit)
    assert row is not None
    last_id, met, roots = row
    prunable = await _prunable(connection, rules, roots)
    return PrunePage(prunable, f"{RUNS}{last_id}" if met == limit else None, 0, len(prunable) if count else 0)


def _first_id(at: int) -> str:
    """What sorts before all ids that were made at that instant or later."""
    text = f"{max(at, 0):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"


async def _prunable(connection: Connection, rules: Rules, roots: Sequence[str]) -> tuple[str, ...]:
    return tuple(row[0] for row in await connection.fetch(_SQL["list_prunable"], *_values(rules), roots)) if roots else ()


async def prune_trees(connection: Connection, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
    """Remove trees, lines and steps first, then tasks, then runs and big values, until the bound is reached."""
    async with connection.transaction():
        locked_runs = await connection.fetch(_SQL["lock_runs"], roots)
        locked = await connection.fetch(_SQL["lock_members"], roots, limit)
        sure = set(await _prunable(connection, rules, roots))
        runs = [row[0] for row in locked_runs if row[1] in sure]
        members = [row[0] for row in locked if row[1] in sure]
        steps = [row[0] for row in await connection.fetch(_SQL["list_steps"], runs, limit)]
        lines = await _change(connection, "delete_lines", [*members, *steps], limit)
        room = limit - lines
        steps = steps[:room]
        room -= len(steps)
        whole = len(locked) < limit
        members = members[:room]
        room -= len(members)
        await _change(connection, "delete_steps", steps)
        moves = await _change(connection, "delete_log", members)
        await _change(connection, "delete_finished", members)
        outcomes = await _change(connection, "delete_outcomes", sorted(sure), max(room, 0))
        room -= outcomes
        records = [row[0] for row in await connection.fetch(_SQL["lock_records"], sorted(sure), max(room, 0))]
        room -= len(records)
        moves += await _delete_records(connection, records)
        if room <= 0 or not whole:
            await _change(connection, "bump_runs", runs)
            return Pruned(0, len(members), moves, lines, 0, len(steps), 0, len(records), outcomes, more=bool(sure))
        moves += await _change(connection, "delete_log", runs)
        await _change(connection, "delete_runs", runs)
        blobs = await drop_uses(connection, sorted(sure))
    return Pruned(len(sure), len(members), moves, lines, len(runs), len(steps), blobs, len(records), outcomes)


async def _delete_records(connection: Connection, records: Sequence[str]) -> int:
    """Remove locked records with their moves; how many moves there were."""
    moves = await _change(connection, "delete_log", records)
    await _change(connection, "delete_records", records)
    return moves


async def drop_uses(connection: Connection, roots: Sequence[str]) -> int:
    """The trees use no big values any more; how many went with that."""
    digests = sorted({row[0] for row in await connection.fetch(_SQL["delete_uses"], roots)})
    if not digests:
        return 0
    await connection.fetch(_SQL["lock_blobs"], digests)
    return await _change(connection, "delete_blobs", digests)


async def _change(connection: Connection, name: str, ids: Sequence[str], *more: int) -> int:
    return row_count(await connection.execute(_SQL[name], ids, *more)) if ids else 0


async def prune_rest(connection: Connection, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
    """Remove keys past their time, servers long gone, and records of no tree that ended long ago."""
    keys = row_count(await connection.execute(_SQL["delete_keys"], limit))
    servers = row_count(await connection.execute(_SQL["delete_servers"], keep_servers_for))
    async with connection.transaction():
        records = [row[0] for row in await connection.fetch(_SQL["lock_old_records"], limit, keep_records_for)]
        await _delete_records(connection, records)
    return keys, servers, len(records)


async def set_keep(
    connection: Connection, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None
) -> None:
    """A list's own rules."""
    await connection.execute(_SQL["set_keep"], namespace, task_list, completed_for, failed_for)
