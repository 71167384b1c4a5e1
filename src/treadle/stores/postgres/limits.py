"""Limits on claims: lanes with their rates and caps, limit keys with their slots and tokens, and turns of fairness keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from treadle.model.lists import HANDLER_KEY, Limit
from treadle.model.names import Lane
from treadle.stores.postgres.connection.connect import Connection, row_count
from treadle.stores.rules.rates import due_keys, keys_ahead, stuck_keys
from treadle.stores.rules.units import Entered, GuardedLane, capped_lanes, check_backlog
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


async def feed(connection: Connection, keys: Iterable[Key], after: Key, now: int) -> tuple[set[int], Key, int | None]:
    """Admit tasks of the keys, of keys whose rate allows it, and of the next keys after the given one that have room.

    Returns their lanes, the last key, and the milliseconds until the rate of a key allows another start. Room stays unused when a
    transaction that made it was rolled back while others skipped its task, and after inserts that do not admit.
    """
    rows = await connection.fetch(_SQL["list_starved"], *after, STARVED_LIMIT)
    found = await list_rated(connection)
    for each in keys_ahead(found, now):
        await _fill(connection, each)
    stuck = stuck_keys(found, now)
    wanted = {*keys, *due_keys(found, now)[0], *((namespace, key) for namespace, key, room in rows if room)}
    wanted.update((each.namespace, each.key) for each in stuck)
    lanes: set[int] = set()
    if wanted:
        async with connection.transaction():
            if stuck:  # all keys are locked in one order, before any row
                await connection.execute(_SQL["lock_keys"], [key[0] for key in wanted], [key[1] for key in wanted])
                for each in stuck:
                    lanes |= await _go_back(connection, each)
            lanes |= await admit(connection, wanted)
    _, token_for = due_keys(await list_rated(connection), now)
    return lanes, (rows[-1][0], rows[-1][1]) if len(rows) == STARVED_LIMIT else ("", ""), token_for


async def _fill(connection: Connection, limit: Limit) -> bool:
    """Store the tokens that a key has now; returns False if they have changed since the limit was read, or change now."""
    return bool(row_count(await connection.execute(_SQL["fill"], limit.namespace, limit.key, limit.tokens_at)))


async def _go_back(connection: Connection, limit: Limit) -> set[int]:
    """Let the unclaimed tasks of a locked key wait again, and admit those of the next lanes instead; return these lanes.

    Does nothing if there are no others, or if another process just did it.
    """
    key = limit.namespace, limit.key
    if not await _fill(connection, limit):
        return set()
    lane_ids = [row[0] for row in await connection.fetch(_SQL["list_unclaimed_lanes"], *key)]
    await connection.execute(_SQL["go_back"], *key, lane_ids)
    return {row[0] for row in await connection.fetch(_SQL["admit_others"], *key, lane_ids, BATCH)}


async def set_limit(connection: Connection, namespace: str, key: str, max_running: int | None) -> set[int]:
    """Set an operator's maximum of a key, in bounded transactions; return the lanes in which tasks became ready."""
    async with connection.transaction():
        await lock_lists(connection)
        if max_running is not None:
            await _change(connection, namespace, key, "set_limit", max_running)
        else:
            await _change(connection, namespace, key, "drop_max")
    return await apply_limit(connection, namespace, key)


async def set_key_rate(connection: Connection, namespace: str, key: str, rate: float | None, burst: int | None) -> set[int]:
    """Set the rate of a key, in bounded transactions; return the lanes in which tasks became ready."""
    async with connection.transaction():
        await lock_lists(connection)
        if rate is not None:
            await _change(connection, namespace, key, "set_key_rate", rate, burst)
        else:
            await _change(connection, namespace, key, "drop_rate")
    return await apply_limit(connection, namespace, key)


async def _change(connection: Connection, namespace: str, key: str, name: str, *values: float | None) -> None:
    """Change a limit, and the key of its handler's lanes; without its other part, dropping one part removes it.

    An insert into these lanes has the lane first, and takes the key last: so does this.
    """
    name_of = key.removeprefix(HANDLER_KEY) if key.startswith(HANDLER_KEY) else None
    if name_of is not None:
        await connection.execute(_SQL["lock_handler_lanes"], namespace, name_of)
    await connection.execute(_SQL["lock_keys"], [namespace], [key])
    if not row_count(await connection.execute(_SQL[name], namespace, key, *values)):
        await connection.execute(_SQL["drop_limit"], namespace, key)
    if name_of is not None:
        await connection.execute(_SQL["mark_lanes"], namespace, name_of)


async def set_handler_key(connection: Connection, namespace: str, name: str, key: str | None) -> set[int]:
    """Set the key of a handler's tasks that have none, or remove it; return the lanes in which tasks became ready."""
    async with connection.transaction():
        await lock_lists(connection)
        if key is None:
            await connection.execute(_SQL["drop_handler_key"], namespace, name)
        else:
            await connection.execute(_SQL["put_handler_key"], namespace, name, key)
        await connection.execute(_SQL["mark_lanes"], namespace, name)
    return set() if key is None else await apply_limit(connection, namespace, key, name)


async def apply_limit(connection: Connection, namespace: str, key: str, name: str | None = None) -> set[int]:
    """Let a changed limit apply to existing tasks, those of the handler `name` included; return the lanes with ready tasks."""
    if name is None and key.startswith(HANDLER_KEY):
        name = key.removeprefix(HANDLER_KEY)
    ready: set[int] = set()
    changed = BATCH
    while changed >= BATCH:
        async with connection.transaction():
            changed = 0
            if name is not None:
                changed = row_count(await connection.execute(_SQL["adopt"], namespace, name, key, BATCH))
            await connection.execute(_SQL["lock_keys"], [namespace], [key])
            recalled = row_count(await connection.execute(_SQL["recall"], [namespace], [key], BATCH))
            lanes, admitted = await _admit(connection, [(namespace, key)])
            ready |= lanes
            changed = max(changed, recalled, admitted)
    return ready


async def list_rated(connection: Connection) -> list[Limit]:
    """Return the limits with a rate that tasks wait for."""
    return [Limit(**row) for row in await connection.fetch(_SQL["list_rated"])]


async def recall_list(connection: Connection, namespace: str, task_list: str) -> set[Key]:
    """Withdraw the admission of a list's unclaimed tasks, so that others with their keys may run; return the keys."""
    return {(namespace, row[0]) for row in await connection.fetch(_SQL["recall_list"], namespace, task_list)}


async def list_waiting_keys(connection: Connection, namespace: str, task_list: str) -> set[Key]:
    """Return the keys that tasks of a list wait for."""
    return {(namespace, row[0]) for row in await connection.fetch(_SQL["list_waiting_keys"], namespace, task_list)}


_LANES = load_statements(__package__, "lanes.sql")


async def list_lanes(connection: Connection) -> tuple[dict[int, Lane], set[int]]:
    """Return all lanes by id, and the ids of those that are paused or have a rate."""
    rows = await connection.fetch(_LANES["list_lanes"])
    return {row[0]: Lane(*row[1:5]) for row in rows}, {row[0] for row in rows if row[5]}


async def insert_lanes(connection: Connection, lanes: Collection[Lane]) -> None:
    """Create missing lanes with the settings of their list."""
    async with connection.transaction():
        await lock_lists(connection)
        await connection.execute(_LANES["insert_lanes"], *zip(*sorted(lanes), strict=True))


async def lock_lists(connection: Connection) -> None:
    """Let one transaction at a time change settings of lists or create lanes."""
    await connection.execute(_LANES["lock_lists"])


async def next_token_for(connection: Connection, lane_ids: Collection[int]) -> int | None:
    """Return the milliseconds until a token arrives for a lane with ready tasks; None if no such lane has a rate."""
    found = await connection.fetchval(_LANES["next_token_for"], list(lane_ids))
    return None if found is None else int(found)


async def lock_guarded(connection: Connection, lane_ids: Collection[int]) -> dict[int, GuardedLane]:
    """Lock and return those of the lanes that have settings which an insert must obey."""
    return {row[0]: GuardedLane(*row) for row in await connection.fetch(_LANES["lock_guarded"], sorted(lane_ids))}


async def check_entrance(connection: Connection, entered: Iterable[Entered]) -> None:
    """Raise `ListDraining` or `BacklogFull` if a lane refuses the tasks that were just inserted into it."""
    for lane_id, cap, lane in capped_lanes(entered):
        check_backlog(lane, cap, await connection.fetchval(_LANES["count_backlog"], lane_id, cap + 1))


_TAKE_TURNS = load_statements(__package__, "tasks.sql")["take_turns"]


async def take_turns(connection: Connection, task_ids: Collection[str]) -> None:
    """Give those of the tasks that have a fairness key and wait their turns.

    Concurrent calls for one key may give two tasks the same turn.
    """
    if task_ids:
        await connection.execute(_TAKE_TURNS, sorted(task_ids))
