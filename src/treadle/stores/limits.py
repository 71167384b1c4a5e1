"""Limits on claims: queues with their caps, limit keys with their slots and tokens, and fair queueing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from treadle.model.lists import HANDLER_KEY, Limit
from treadle.model.states import BlockReason
from treadle.model.tasks import TaskLimit
from treadle.stores.rules.admission import Waiting, admission
from treadle.stores.rules.units import Entered, GuardedQueue, capped_queues, check_backlog
from treadle.stores.session import Session

Key = tuple[str, str]
"""A namespace and a limit key in it, or all limit keys of a task, one per line."""

LOOKAHEAD = 500
"""The maximum number of waiting tasks of a key that are examined together, if some have several keys."""

BATCH = 10_000
"""The maximum number of tasks of one key that one transaction changes; later transactions change the rest."""


async def admit(session: Session, keys: Iterable[Key], limits: Mapping[Key, TaskLimit] | None = None) -> set[int]:
    """Admit as many tasks of each key as there is room for, at the end of the caller's transaction; return their queues.

    `limits` are the limits that callers gave for some of the keys.
    """
    queues, _ = await _admit(session, keys, limits)
    return queues


async def _admit(session: Session, keys: Iterable[Key], limits: Mapping[Key, TaskLimit] | None = None) -> tuple[set[int], int]:
    ordered = sorted({(namespace, key) for namespace, joined in keys for key in joined.split("\n")})
    queues: set[int] = set()
    count = 0
    if not ordered:
        return queues, count
    locked = set(ordered)
    lines = [row[:2] for row in await session.fetch("lock_keys", rows=ordered)]
    if limits and (changed := await _put_limits(session, limits)):
        await session.execute("recall", rows=sorted(changed), most=BATCH)
    while lines:
        waiting: list[Waiting] = []
        rooms: dict[Key, float] = {}
        for number, queue_id, *task, room in await session.fetch("admit", rows=lines, most=BATCH, lookahead=LOOKAHEAD):
            count += number
            if number:
                queues.add(queue_id)
                continue
            next_task = Waiting(queue_id, *task)
            rooms[next_task.namespace, next_task.key] = room
            if queue_id is not None:
                waiting.append(next_task)
        if not waiting:
            break
        listed = {line: min(room, LOOKAHEAD) for line, room in rooms.items()}
        admitted = await _admit_several(session, waiting, rooms, locked)
        queues |= {task.queue_id for task in admitted}
        count += len(admitted)
        lengths = Counter((task.namespace, task.key) for task in waiting)
        lines = sorted(line for line, length in lengths.items() if length == listed[line] and rooms[line] > 0)
    return queues, count


async def _put_limits(session: Session, limits: Mapping[Key, TaskLimit]) -> set[Key]:
    """Store the limits that callers gave for keys, unless an operator has set them; return the changed keys."""
    changed: list[Sequence[str]] = []
    if maxima := [(*key, limit.max) for key, limit in sorted(limits.items()) if limit.max is not None]:
        changed += await session.fetch("put_limits", rows=maxima)
    if rates := [(*key, limit.rate, limit.burst) for key, limit in sorted(limits.items()) if limit.rate is not None]:
        changed += await session.fetch("put_rates", rows=rates)
    return {(namespace, key) for namespace, key in changed}


async def _admit_several(session: Session, waiting: list[Waiting], rooms: dict[Key, float], locked: set[Key]) -> list[Waiting]:
    """Admit those of the tasks that have room under all of their keys; takes their rooms.

    Others wait from now on for a key without room. A key that another transaction has locked counts as one: that transaction, or a
    wake-up, admits the task.
    """
    needed = {(task.namespace, key) for task in waiting for key in task.keys} - rooms.keys()
    if unlocked := sorted(needed - locked):
        locked |= {(namespace, key) for namespace, key in await session.fetch("try_lock_keys", rows=unlocked)}
    rooms |= dict.fromkeys(needed, math.inf) | dict.fromkeys(needed - locked, 0)
    if seen := sorted(needed & locked):
        rooms |= {(namespace, key): room for namespace, key, room in await session.fetch("list_rooms", rows=seen)}
    admitted, parked = admission(waiting, rooms)
    places = [
        (task.id, task.key, 0, msgspec.json.encode([key for key in task.keys if key != task.key]).decode()) for task in admitted
    ]
    await session.execute(
        "place_tasks", rows=places + [(task_id, key, int(BlockReason.OVER_LIMIT), "[]") for task_id, key in parked]
    )
    return admitted


async def fill(session: Session, limit: Limit) -> bool:
    """Store the tokens that a key has now; returns False if they have changed since the limit was read, or change now."""
    return bool(await session.execute("fill", namespace=limit.namespace, key=limit.key, seen_at=limit.tokens_at))


async def go_back(session: Session, limit: Limit) -> set[int]:
    """Let the unclaimed tasks of a locked key wait again, and admit those of the next queues instead; return these queues.

    Does nothing if there are no others, or if another process just did it. `admit` must follow.
    """
    key = {"namespace": limit.namespace, "key": limit.key}
    if not await fill(session, limit):
        return set()
    queue_ids = [row[0] for row in await session.fetch("list_unclaimed_queues", **key)]
    await session.execute("go_back", **key, queue_ids=queue_ids)
    return {row[0] for row in await session.fetch("admit_others", **key, queue_ids=queue_ids, most=BATCH)}


async def set_limit(session: Session, namespace: str, key: str, max_running: int | None) -> None:
    """Set an operator's maximum of a key; `apply_limit` must follow."""
    await _change(session, namespace, key, "drop_max" if max_running is None else "set_limit", max_running=max_running)


async def set_key_rate(session: Session, namespace: str, key: str, rate: float | None, burst: int | None) -> None:
    """Set the rate of a key; `apply_limit` must follow."""
    await _change(session, namespace, key, "drop_rate" if rate is None else "set_key_rate", rate=rate, burst=burst)


async def _change(session: Session, namespace: str, key: str, statement: str, **values: float | None) -> None:
    """Change a limit, and the key of its handler's queues; without its other part, dropping one part removes it.

    An insert into these queues has the queue first, and takes the key last: so does this.
    """
    name = key.removeprefix(HANDLER_KEY) if key.startswith(HANDLER_KEY) else None
    async with session.transaction():
        await session.coordinate("lock_lists")
        if name is not None:
            await session.coordinate("lock_handler_queues", namespace=namespace, name=name)
        await session.coordinate("lock_keys", rows=[(namespace, key)])
        if not await session.execute(statement, namespace=namespace, key=key, **values):
            await session.execute("drop_limit", namespace=namespace, key=key)
        if name is not None:
            await session.execute("mark_queues", namespace=namespace, name=name)


async def set_handler_key(session: Session, namespace: str, name: str, key: str | None) -> None:
    """Set the key of a handler's tasks that have none, or remove it, in the caller's transaction; `apply_limit` must follow."""
    await session.coordinate("lock_lists")
    await session.execute("drop_handler_key" if key is None else "put_handler_key", namespace=namespace, name=name, key=key)
    await session.execute("mark_queues", namespace=namespace, name=name)


async def apply_limit(session: Session, namespace: str, key: str, name: str | None = None) -> set[int]:
    """Let a changed limit apply to existing tasks, those of the handler `name` included, in bounded transactions; return the queues
    with ready tasks.
    """
    if name is None and key.startswith(HANDLER_KEY):
        name = key.removeprefix(HANDLER_KEY)
    ready: set[int] = set()
    changed = BATCH
    while changed >= BATCH:
        async with session.transaction():
            changed = 0
            if name is not None:
                changed = await session.execute("adopt", namespace=namespace, name=name, key=key, most=BATCH)
            await session.coordinate("lock_keys", rows=[(namespace, key)])
            recalled = await session.execute("recall", rows=[(namespace, key)], most=BATCH)
            queues, admitted = await _admit(session, [(namespace, key)])
            ready |= queues
            changed = max(changed, recalled, admitted)
    return ready


async def list_rated(session: Session) -> list[Limit]:
    """Return the limits with a rate that tasks wait for; usually there are none, and the query is nearly free."""
    return await session.fetch_as(Limit, "list_rated")


async def lock_guarded(session: Session, queue_ids: Collection[int]) -> dict[int, GuardedQueue]:
    """Lock and return those of the queues that have settings which an insert must obey."""
    rows = await session.fetch("lock_guarded", queue_ids=sorted(queue_ids))
    return {row[0]: GuardedQueue(row[0], bool(row[1]), *row[2:]) for row in rows}


async def check_entrance(session: Session, entered: Iterable[Entered]) -> None:
    """Raise `ListDraining` or `BacklogFull` if a queue refuses the tasks that were just inserted into it."""
    for queue_id, cap, queue in capped_queues(entered):
        ((count,),) = await session.fetch("count_backlog", queue_id=queue_id, most=cap + 1)
        check_backlog(queue, cap, count)


async def order_fairly(session: Session, task_ids: Collection[str]) -> None:
    """Give those of the tasks that have a fairness key and wait their places.

    Concurrent calls for one key may give two tasks the same place.
    """
    if task_ids:
        await session.execute("order_fairly", ids=sorted(task_ids))
