"""Retention: find expired trees by reading alone, and remove them in short transactions.

A transaction locks the runs and the finished tasks of its trees and then checks them again: it sees a retry that came
first, and a retry that comes later finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import Pruned, PrunePage, Rules
from treadle.model.errors import Unsupported
from treadle.stores.postgres.connection.connect import Connection, row_count
from treadle.stores.postgres.database import works
from treadle.stores.postgres.partitions import NOWHERE, Partitions, find_waiting
from treadle.stores.rules.encoding import RUNS, first_id
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "retention.sql")


def _values(rules: Rules) -> tuple[str, int, int]:
    return rules.namespace, rules.keep_completed_for, rules.keep_failed_for


class Retention(Partitions):
    """The `RetentionStore` of PostgreSQL."""

    @works
    async def find_prunable(
        self, connection: Connection, rules: Rules, cursor: str | None, limit: int, *, count: bool = False, patient: bool = False
    ) -> PrunePage:
        newest_at = int(await connection.fetchval(_SQL["find_shortest_keep"], *_values(rules)))
        if cursor is not None and cursor.startswith(RUNS):
            span = cursor.removeprefix(RUNS) or first_id(0), first_id(newest_at + 1), limit
            row = await connection.fetchrow(_SQL["find_runs_window"], *_values(rules), *span)
            assert row is not None
            last_id, met, roots = row
            prunable = await _prunable(connection, rules, roots)
            return PrunePage(prunable, f"{RUNS}{last_id}" if met == limit else None, 0, len(prunable) if count else 0)
        after_seq = int(cursor or 0)
        waiting = await find_waiting(connection, rules) if patient else NOWHERE
        row = await connection.fetchrow(_SQL["find_window"], *_values(rules), after_seq, limit, *waiting)
        assert row is not None
        last_seq, met, ended_at, roots = row
        prunable = await _prunable(connection, rules, roots)
        following = str(last_seq) if met == limit and ended_at <= newest_at else RUNS
        if not count or not prunable:
            return PrunePage(prunable, following)
        counted = await connection.fetchrow(_SQL["count_members"], prunable, after_seq, last_seq)
        assert counted is not None
        return PrunePage(prunable, following, counted[1], counted[0])

    @works
    async def prune_trees(self, connection: Connection, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        async with connection.transaction():
            locked_runs = await connection.fetch(_SQL["lock_runs"], list(roots))
            locked = await connection.fetch(_SQL["lock_members"], list(roots), limit)
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
            await _change(connection, "delete_tags", members)
            outcomes = await _change(connection, "delete_outcomes", sorted(sure), max(room, 0))
            room -= outcomes
            chunks = await _change(connection, "delete_chunks", sorted(sure), max(room, 0))
            room -= chunks
            records = [row[0] for row in await connection.fetch(_SQL["lock_records"], sorted(sure), max(room, 0))]
            room -= len(records)
            moves += await _delete_records(connection, records)
            if room <= 0 or not whole:
                await _change(connection, "bump_runs", runs)
                return Pruned(0, len(members), moves, lines, 0, len(steps), 0, len(records), outcomes, chunks, more=bool(sure))
            moves += await _change(connection, "delete_log", runs)
            await _change(connection, "delete_runs", runs)
            await _change(connection, "delete_streams", sorted(sure))
            blobs = await drop_uses(connection, sorted(sure))
        return Pruned(len(sure), len(members), moves, lines, len(runs), len(steps), blobs, len(records), outcomes, chunks)

    @works
    async def set_keep(
        self, connection: Connection, namespace: str, task_list: str, completed_for: int | None, failed_for: int | None
    ) -> None:
        await connection.execute(_SQL["set_keep"], namespace, task_list, completed_for, failed_for)

    @works
    async def prune_rest(
        self, connection: Connection, limit: int, keep_servers_for: int, keep_records_for: int
    ) -> tuple[int, int, int]:
        keys = row_count(await connection.execute(_SQL["delete_keys"], limit))
        servers = row_count(await connection.execute(_SQL["delete_servers"], keep_servers_for))
        async with connection.transaction():
            records = [row[0] for row in await connection.fetch(_SQL["lock_old_records"], limit, keep_records_for)]
            await _delete_records(connection, records)
        return keys, servers, len(records)

    async def compact(self, *, whole: bool = False, tight: bool = False) -> int:
        """Do nothing: autovacuum does it."""
        if whole:
            raise Unsupported(
                f"{self._database.url} returns space by itself (autovacuum). To rewrite a table, run `vacuum full finished`."
            )
        return 0


async def _prunable(connection: Connection, rules: Rules, roots: Sequence[str]) -> tuple[str, ...]:
    return tuple(row[0] for row in await connection.fetch(_SQL["list_prunable"], *_values(rules), list(roots))) if roots else ()


async def _delete_records(connection: Connection, records: Sequence[str]) -> int:
    """Delete locked records with their moves; return the number of moves."""
    moves = await _change(connection, "delete_log", records)
    await _change(connection, "delete_records", records)
    return moves


async def drop_uses(connection: Connection, roots: Sequence[str]) -> int:
    """Release the large values that the trees use; return the number of deleted values."""
    digests = sorted({row[0] for row in await connection.fetch(_SQL["delete_uses"], roots)})
    if not digests:
        return 0
    await connection.fetch(_SQL["lock_blobs"], digests)
    return await _change(connection, "delete_blobs", digests)


async def _change(connection: Connection, name: str, ids: Sequence[str], *more: int) -> int:
    return row_count(await connection.execute(_SQL[name], ids, *more)) if ids else 0
