"""Limits by admission: a task with a limit key may be taken only once its over-limit bit is clear (ADR 6).

Every transaction that may have made room, or that put a task in line, ends with `admit` for the keys that it touched. A lock
on the key lets only one at a time count and admit; it is the last that a transaction takes, and whoever has it waits for
nobody, so that it can be in no deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.model.lists import HANDLER_KEY, Limit, handler_key
from treadle.stores.postgres.connect import PACKAGE, Connection, row_count
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "limits.sql")
_LOCK_LISTS = load_statements(PACKAGE, "lists.sql")["lock_lists"]

Key = tuple[str, str]
"""A namespace and a limit key in it."""

BATCH = 10_000
"""Tasks whose bit one transaction changes at most for one key; more are done by those that follow."""

STARVED_LIMIT = 100
"""Keys that one wake looks at for room that nobody uses."""


async def admit(connection: Connection, keys: Iterable[Key], limits: Mapping[Key, int] | None = None) -> set[int]:
    """Let as many tasks of each key go on as there is room for, at the end of a transaction of the caller's; their lanes.

    `limits` is what callers say about some of the keys.
    """
    lanes, _ = await _admit(connection, keys, limits)
    return lanes


async def _admit(connection: Connection, keys: Iterable[Key], limits: Mapping[Key, int] | None = None) -> tuple[set[int], int]:
    ordered = sorted(set(keys))
    columns = [key[0] for key in ordered], [key[1] for key in ordered]
    await connection.execute(_SQL["lock_keys"], *columns)
    if limits:
        said = sorted(limits.items())
        changed = await connection.fetch(
            _SQL["put_limits"], [key[0] for key, _ in said], [key[1] for key, _ in said], [limit for _, limit in said]
        )
        if changed:
            await connection.execute(_SQL["recall"], [row[0] for row in changed], [row[1] for row in changed], BATCH)
    rows = await connection.fetch(_SQL["admit"], *columns, BATCH)
    return {row[0] for row in rows}, sum(row[1] for row in rows)


async def feed(connection: Connection, keys: Iterable[Key], after: Key) -> tuple[set[int], Key]:
    """Admit tasks of the keys, and of those among the next keys after the given one that have room; their lanes, and the last key.

    Room that nobody uses is left when a transaction that made it was rolled back while others passed its task over, and by
    inserts that do not admit.
    """
    rows = await connection.fetch(_SQL["list_starved"], *after, STARVED_LIMIT)
    wanted = {*keys, *((namespace, key) for namespace, key, room in rows if room)}
    lanes: set[int] = set()
    if wanted:
        async with connection.transaction():
            lanes = await admit(connection, wanted)
    return lanes, (rows[-1][0], rows[-1][1]) if len(rows) == STARVED_LIMIT else ("", "")


async def set_limit(connection: Connection, namespace: str, key: str, max_running: int | None) -> set[int]:
    """An operator's limit of a key, in bounded transactions; lanes in which that made tasks ready."""
    name = key.removeprefix(HANDLER_KEY) if key.startswith(HANDLER_KEY) else None
    async with connection.transaction():
        await connection.execute(_LOCK_LISTS)
        if name is not None:  # before the key: whoever puts tasks there has the lane, and comes to the key last
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
    """Take the places of a list's tasks that nobody holds, for others with their keys; the keys."""
    return {(namespace, row[0]) for row in await connection.fetch(_SQL["recall_list"], namespace, task_list)}


async def list_waiting_keys(connection: Connection, namespace: str, task_list: str) -> set[Key]:
    """Keys that tasks of a list wait for."""
    return {(namespace, row[0]) for row in await connection.fetch(_SQL["list_waiting_keys"], namespace, task_list)}


async def list_limits(connection: Connection, namespace: str) -> list[Limit]:
    """All limits of the namespace."""
    return [Limit(**row) for row in await connection.fetch(_SQL["list_limits"], namespace)]


async def list_admitted(connection: Connection, namespace: str, key: str, limit: int) -> list[str]:
    """Ids of admitted tasks of the key."""
    return [row[0] for row in await connection.fetch(_SQL["list_admitted"], namespace, key, max(limit, 0))]
