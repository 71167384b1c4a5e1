"""Limits by admission: a task with a limit key may be taken only once its over-limit bit is clear (ADR 6).

Every transaction that may have made room, or that added a waiting task, ends with `admit` for the keys that it touched. A
lock on the key lets one transaction at a time count and admit. A transaction takes this lock last and waits for no other
while it holds it, so it cannot be part of a deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.model.lists import HANDLER_KEY, Limit, handler_key
from treadle.stores.postgres.connection.connect import Connection, row_count
from treadle.stores.postgres.lanes import lock_lists
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "limits.sql")

Key = tuple[str, str]
"""A namespace and a limit key in it."""

BATCH = 10_000
"""The maximum number of tasks of one key that one transaction changes; later transactions change the rest."""

STARVED_LIMIT = 100
"""The number of keys that one wake-up checks for unused room."""


async def admit(connection: Connection, keys: Iterable[Key], limits: Mapping[Key, int] | None = None) -> set[int]:
    """Admit as many tasks of each key as there is room for, at the end of the caller's transaction; return their lanes.

    `limits` are the limits that callers gave for some of the keys.
    """
    lanes, _ = await _admit(connection, keys, limits)
    return lanes


async def _admit(connection: Connection, keys: Iterable[Key], limits: Mapping[Key, int] | None = None) -> tuple[set[int], int]:
    ordered = sorted(set(keys))
    columns = [key[0] for key in ordered], [key[1] for key in ordered]
    await connection.execute(_SQL["lock_keys"], *columns)
    if limits:
        given = sorted(limits.items())
        changed = await connection.fetch(
            _SQL["put_limits"], [key[0] for key, _ in given], [key[1] for key, _ in given], [limit for _, limit in given]
        )
        if changed:
            await connection.execute(_SQL["recall"], [row[0] for row in changed], [row[1] for row in changed], BATCH)
    rows = await connection.fetch(_SQL["admit"], *columns, BATCH)
    return {row[0] for row in rows}, sum(row[1] for row in rows)


async def feed(connection: Connection, keys: Iterable[Key], after: Key) -> tuple[set[int], Key]:
    """Admit tasks of the keys, and of the next keys after the given one that have room; return their lanes, and the last key.

    Room stays unused when a transaction that made it was rolled back while others skipped its task, and after inserts that
    do not admit.
    """
    rows = await connection.fetch(_SQL["list_starved"], *after, STARVED_LIMIT)
    wanted = {*keys, *((namespace, key) for namespace, key, room in rows if room)}
    lanes: set[int] = set()
    if wanted:
        async with connection.transaction():
            lanes = await admit(connection, wanted)
    return lanes, (rows[-1][0], rows[-1][1]) if len(rows) == STARVED_LIMIT else ("", "")


async def set_limit(connection: Connection, namespace: str, key: str, max_running: int | None) -> set[int]:
    """Set an operator's limit of a key, in bounded transactions; return the lanes in which tasks became ready."""
    name = key.removeprefix(HANDLER_KEY) if key.startswith(HANDLER_KEY) else None
    async with connection.transaction():
        await lock_lists(connection)
        if name is not None:  # before the key: an insert into these lanes has the lane first, and takes the key last
            await connection.execute(_SQL["mark_lanes"], namespace, name, None if max_running is None else handler_key(name))
        await connection.execute(_SQL["lock_keys"], [namespace], [key])
        if max_running is None:
            await connection.execute(_SQL["drop_limit"], namespace, key)
        else:
            await connection.execute(_SQL["set_limit"], namespace, key, max_running)
    ready: set[int] = set()
    changed = BATCH
    while changed >= BATCH:
        async with connection.transaction():
            changed = 0
            if max_running is not None:
                if name is not None:
                    changed = row_count(await connection.execute(_SQL["adopt"], namespace, name, key, BATCH))
                await connection.execute(_SQL["lock_keys"], [namespace], [key])
                recalled = row_count(await connection.execute(_SQL["recall"], [namespace], [key], BATCH))
                changed = max(changed, recalled)
            lanes, admitted = await _admit(connection, [(namespace, key)])
            ready |= lanes
            changed = max(changed, admitted)
    return ready


async def recall_list(connection: Connection, namespace: str, task_list: str) -> set[Key]:
    """Withdraw the admission of a list's unclaimed tasks, so that others with their keys may run; return the keys."""
    return {(namespace, row[0]) for row in await connection.fetch(_SQL["recall_list"], namespace, task_list)}


async def list_waiting_keys(connection: Connection, namespace: str, task_list: str) -> set[Key]:
    """Return the keys that tasks of a list wait for."""
    return {(namespace, row[0]) for row in await connection.fetch(_SQL["list_waiting_keys"], namespace, task_list)}


async def list_limits(connection: Connection, namespace: str) -> list[Limit]:
    """Return all limits of the namespace."""
    return [Limit(**row) for row in await connection.fetch(_SQL["list_limits"], namespace)]


async def list_admitted(connection: Connection, namespace: str, key: str, limit: int) -> list[str]:
    """Return the ids of admitted tasks of the key."""
    return [row[0] for row in await connection.fetch(_SQL["list_admitted"], namespace, key, max(limit, 0))]
