"""Retention: find expired trees by reading alone, and remove them in short transactions that check them again.

A transaction locks the runs and the finished tasks of its trees and then checks them: it sees a retry that came first, and a retry
that comes later finds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.kernel.store.database import Port, reads, writes
from treadle.kernel.store.queries import Pruned, PrunePage, Rules
from treadle.kernel.store.units import Row
from treadle.stores.rules.encoding import RUNS, first_id
from treadle.stores.session import Session
from treadle.stores.writes import write_entry

NOWHERE = (first_id(0), first_id(0))
"""An empty range of ids."""


class RetentionPort(Port):
    """The part of the `RetentionStore` that both stores have in common."""

    async def _waiting(self, session: Any, rules: Rules) -> tuple[str, str]:
        """Return the range of ids whose tasks are removed together soon."""
        return NOWHERE

    @reads
    async def find_prunable(
        self, session: Session, rules: Rules, cursor: str | None, limit: int, *, count: bool = False, patient: bool = False
    ) -> PrunePage:
        values = msgspec.structs.asdict(rules)
        ((newest_at,),) = await session.fetch("find_newest_prunable", **values)
        if cursor is not None and cursor.startswith(RUNS):
            span = {"after_id": cursor.removeprefix(RUNS) or first_id(0), "until_id": first_id(newest_at + 1), "limit": limit}
            last_id, met, roots = await _find_window(session, "find_runs_window", values | span)
            prunable = await _prunable(session, rules, roots)
            return PrunePage(prunable, f"{RUNS}{last_id}" if met == limit else None, 0, len(prunable) if count else 0)
        after_seq = int(cursor or 0)
        skip_from, skip_until = await self._waiting(session, rules) if patient else NOWHERE
        window = {"after_seq": after_seq, "limit": limit, "skip_from": skip_from, "skip_until": skip_until}
        last_seq, met, ended_at, roots = await _find_window(session, "find_window", values | window)
        prunable = await _prunable(session, rules, roots)
        following = str(last_seq) if met == limit and ended_at <= newest_at else RUNS
        if not count or not prunable:
            return PrunePage(prunable, following)
        ((trees, tasks),) = await session.fetch("count_members", roots=prunable, after_seq=after_seq, until_seq=last_seq)
        return PrunePage(prunable, following, tasks, trees)

    @writes
    async def prune_trees(self, session: Session, rules: Rules, roots: Sequence[str], limit: int) -> Pruned:
        locked_runs = await session.fetch("lock_tree_runs", roots=roots)
        locked = await session.fetch("lock_members", roots=roots, limit=limit)
        prunable = set(await _prunable(session, rules, roots))
        trees = sorted(prunable)
        runs = [row[0] for row in locked_runs if row[1] in prunable]
        members = [row[0] for row in locked if row[1] in prunable]
        steps = [row[0] for row in await session.fetch("list_tree_steps", ids=runs, limit=limit)]
        lines = await _delete(session, "lines", [*members, *steps], limit)
        room = limit - lines
        steps = steps[:room]
        room -= len(steps)
        members = members[:room]
        room -= len(members)
        await _delete(session, "steps", steps)
        transitions = await _delete(session, "log", members)
        await _delete(session, "finished", members)
        await _delete(session, "tags", members)
        outcomes = await _delete(session, "outcomes", trees, max(room, 0))
        room -= outcomes
        chunks = await _delete(session, "chunks", trees, max(room, 0))
        room -= chunks
        records = [row[0] for row in await session.fetch("lock_tree_records", ids=trees, limit=max(room, 0))]
        room -= len(records)
        transitions += await _delete_records(session, records)
        if room <= 0 or len(locked) >= limit:
            if runs:
                await session.execute("touch_runs", ids=runs)
            return Pruned(0, len(members), transitions, lines, 0, len(steps), 0, len(records), outcomes, chunks, more=bool(trees))
        transitions += await _delete(session, "log", runs)
        await _delete(session, "runs", runs)
        await _delete(session, "streams", trees)
        blobs = await drop_uses(session, trees)
        return Pruned(len(trees), len(members), transitions, lines, len(runs), len(steps), blobs, len(records), outcomes, chunks)

    @writes
    async def set_keep(
        self,
        session: Session,
        namespace: str,
        task_list: str,
        completed_for: int | None,
        failed_for: int | None,
        entry: tuple[Row, ...] = (),
    ) -> None:
        await write_entry(session, entry)
        values = {"completed_for": completed_for, "failed_for": failed_for}
        await session.execute("set_keep", namespace=namespace, task_list=task_list, **values)

    @writes
    async def prune_rest(self, session: Session, limit: int, keep_servers_for: int, keep_records_for: int) -> tuple[int, int, int]:
        keys = await session.execute("delete_keys", limit=limit)
        servers = await session.execute("delete_servers", keep_servers_for=keep_servers_for)
        rows = await session.fetch("lock_old_records", keep_records_for=keep_records_for, limit=limit)
        await _delete_records(session, [row[0] for row in rows])
        return keys, servers, len(rows)


async def _find_window(session: Session, name: str, values: dict[str, Any]) -> Sequence[Any]:
    ((*window, roots),) = await session.fetch(name, **values)
    return (*window, msgspec.json.decode(roots) if isinstance(roots, str) else roots)


async def _prunable(session: Session, rules: Rules, roots: Sequence[str]) -> tuple[str, ...]:
    values = msgspec.structs.asdict(rules)
    return tuple(row[0] for row in await session.fetch("list_prunable", **values, roots=roots)) if roots else ()


async def _delete(session: Session, table: str, ids: Sequence[str], limit: int = 0) -> int:
    return await session.execute(f"delete_{table}", ids=ids, limit=limit) if ids else 0


async def _delete_records(session: Session, records: Sequence[str]) -> int:
    """Delete locked records with their transitions; return the number of transitions."""
    transitions = await _delete(session, "log", records)
    await _delete(session, "records", records)
    return transitions


async def drop_uses(session: Session, roots: Sequence[str]) -> int:
    """Release the large values that the trees use; return the number of deleted values."""
    digests = sorted({row[0] for row in await session.fetch("delete_uses", ids=roots)})
    if digests:
        await session.coordinate("lock_blobs", ids=digests)
    return await _delete(session, "blobs", digests)
