"""Tasks: queues, claims, wake-ups, lease renewals, and reads, with one statement each. `commit` holds the one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import asyncpg
import msgspec

from treadle.kernel.store.database import reads
from treadle.kernel.store.queries import FinishedCounts, Woken
from treadle.model.clock import Clock
from treadle.model.names import QueueKey
from treadle.model.states import FINAL_TASK_STATES
from treadle.model.tasks import Task
from treadle.stores.limits import Key, admit, fill, go_back, list_rated, order_fairly
from treadle.stores.postgres.connection.connect import PostgresConnection
from treadle.stores.postgres.database import PostgresDatabase, PostgresSession
from treadle.stores.rules.rates import due_keys, earlier, keys_ahead, stuck_keys
from treadle.stores.shared import TaskPort
from treadle.stores.statements import COLUMN_SETS, load_statements

_IS_SNAPSHOT_OLD = load_statements(__package__, "tasks.sql")["is_snapshot_old"]

CHECK_EVERY = 5.0
"""Seconds between checks for old snapshots, while tasks are claimed."""

FRONT_EVERY = 1.0
"""Seconds between claims from the front, while there is an old snapshot."""

Position = tuple[int, int]
"""A priority and a due time."""

_FRONT: Position = (-(2**31), 0)
_due_at = attrgetter("due_at")


class Positions:
    """The positions in queues at which claims of this process ended, for cheap claims while a session holds an old snapshot.

    PostgreSQL cannot remove the index entries of claimed tasks while a snapshot may still see them, so every claim would scan
    all entries claimed since. While such a snapshot exists, claims start where the last claim of this process ended, and
    start from the front only now and then. A task that became ready before that position (a better priority, an older task)
    is then claimed up to a second late. Without an old snapshot, claims start from the front and the order is exact.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._positions: dict[int, Position] = {}
        self._held_open = False
        self._took = False
        """Whether a task was claimed since the last check for old snapshots: otherwise there is nothing to skip."""
        self._checked_at = float("-inf")
        self._front_at = float("-inf")

    async def after(self, connection: PostgresConnection, queue_ids: Sequence[int]) -> list[Position] | None:
        """Return the position to start from in each queue, or None for the front of all."""
        now = self._clock.monotonic()
        if not self._positions:
            return None
        if self._took and now - self._checked_at >= CHECK_EVERY:
            self._checked_at, self._took = now, False
            self._held_open = bool(await connection.fetchval(_IS_SNAPSHOT_OLD))
        if not self._held_open or now - self._front_at >= FRONT_EVERY:
            self._front_at = now
            return None
        return [self._positions.get(queue_id, _FRONT) for queue_id in queue_ids]

    def took(self, tasks: Sequence[Task]) -> None:
        """Remember the position at which this claim ended."""
        if tasks:
            self._took = True
            last = max(tasks, key=_due_at)
            self._positions[last.queue_id] = (last.priority, last.due_at)


_SQL = load_statements(__package__, "tasks.sql")

STARVED_LIMIT = 100
"""The number of keys that one wake-up checks for unused room."""

COUNT_LIMIT = 1_000_000
"""The number of finished tasks up to which they are counted, in about a second; more are estimated from a sample."""
SAMPLE = 50_000
"""The number of finished tasks in a sample."""
_FINAL = frozenset(FINAL_TASK_STATES)
_decode_keys = msgspec.json.Decoder(list[tuple[str, str]]).decode

LOCKED_FOR = 100
"""Milliseconds after which to poll again for due tasks that other transactions had locked: to wake them, or to send a message."""


def _compile_decoder() -> Callable[[Sequence[asyncpg.Record], QueueKey, str], list[Task]]:
    """Generate the decoder of claimed rows from the column set, because building a dict for each row takes twice as long."""
    columns = [column.name for column in COLUMN_SETS["claimed"]]
    arguments = "namespace=namespace, kind=kind, task_list=task_list, name=name, owner_id=owner_id"
    derived = "heartbeat_at=claimed_at, progress_at=claimed_at, root_id=root_id or id"
    task = f"Task({arguments}, {derived}, {', '.join(f'{name}={name}' for name in columns)})"
    body = f"namespace, kind, task_list, name = queue\n    return [{task} for {', '.join(columns)}, root_id in rows]"
    scope: dict[str, Any] = {"Task": Task}
    exec(f"def decode(rows, queue, owner_id):\n    {body}", scope)  # noqa: S102
    decode: Callable[[Sequence[asyncpg.Record], QueueKey, str], list[Task]] = scope["decode"]
    return decode


_decode_claimed = _compile_decoder()

_ORDER = attrgetter("priority", "due_at", "id")
"""The order in which tasks are claimed; an update returns them in another one."""


class PostgresTasks(TaskPort):
    """The `TaskStore` of PostgreSQL."""

    _database: PostgresDatabase

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._positions = Positions(database.clock)
        self._fed = ("", "")
        """The limit key up to which wake-ups have looked for room."""

    async def queue_ids(self, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        return await self._database.find_queue_ids(queues)

    async def list_queues(self) -> dict[int, QueueKey]:
        return await self._database.list_queues()

    async def claim(
        self, queue_ids: Sequence[int], owner_id: str, lease_for: int, limit: int, scopes: Sequence[str] | None = None
    ) -> list[Task]:
        if not queue_ids or limit <= 0:
            return []
        if any(queue_id not in self._database.queues for queue_id in queue_ids):
            await self._database.list_queues()
        async with self._database.borrow() as connection:
            if scopes is not None:
                for queue_id in queue_ids:
                    if rows := await connection.fetch(_SQL["claim_scoped"], queue_id, owner_id, lease_for, limit, scopes):
                        return sorted(_decode_claimed(rows, self._database.queues[queue_id], owner_id), key=_ORDER)
                return []
            slowed = bool(self._database.slowed) and not self._database.slowed.isdisjoint(queue_ids)
            after = await self._positions.after(connection, queue_ids)
            rows = await _claim(connection, queue_ids, owner_id, lease_for, limit, slowed=slowed, after=after)
            rows = rows or await _claim_unlocked(connection, queue_ids, owner_id, lease_for, limit)
        tasks = _decode_claimed(rows, self._database.queues[rows[0][1]], owner_id) if rows else []
        tasks.sort(key=_ORDER)
        self._positions.took(tasks)
        return tasks

    @reads
    async def claim_of_run(
        self, session: PostgresSession, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int
    ) -> list[str]:
        values = {"run_id": run_id, "owner_id": owner_id, "lease_for": lease_for, "limit": limit, "kind": kind}
        return [row[0] for row in await session.fetch("claim_of_run", **values)]

    @reads
    async def wake(self, session: PostgresSession, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        """Wake tasks, then admit the next tasks of their limit keys, and of some other keys after the last call's.

        So no task waits long while there is room, even if the transaction that made the room did not admit it.
        """
        (row,) = await session.fetch("wake", limit=limit, expire_leases=expire_leases, find_ready=find_ready)
        count, expired, queue_ids, due, next_for, now, overdue, keys, waiting, fair, ready, rated = row
        await order_fairly(session, fair)
        token_for = None
        if keys or waiting:
            admitted, self._fed, token_for = await feed(session, _decode_keys(keys) if keys else [], self._fed, now, rated=rated)
            queue_ids = admitted.union(queue_ids)
        if due > count:
            next_for = 0 if count == limit else min(next_for or LOCKED_FOR, LOCKED_FOR)
        return Woken(count, expired, tuple(queue_ids), earlier(next_for, token_for), now, overdue, ready, rated)

    async def next_token_for(self, queue_ids: Sequence[int]) -> int | None:
        if self._database.slowed.isdisjoint(queue_ids):  # saves a query
            return None
        ((milliseconds,),) = await self._database.fetch("next_token_for", queue_ids=queue_ids)
        return None if milliseconds is None else int(milliseconds)

    async def count_finished(self) -> FinishedCounts:
        ((size,),) = await self._database.fetch("size_finished")
        if size <= COUNT_LIMIT:
            return await super().count_finished()
        rows = await self._database.fetch("sample_finished", percent=100 * SAMPLE / max(size, SAMPLE))
        return FinishedCounts({state: count for state, count in rows if count}, exact=False)


async def _claim(
    connection: PostgresConnection,
    queue_ids: Sequence[int],
    owner_id: str,
    lease_for: int,
    limit: int,
    *,
    slowed: bool,
    after: Sequence[Position] | None,
) -> list[asyncpg.Record]:
    """Claim tasks of the best queue, in the order in which they are due; checks rates only if `slowed`.

    `after` are positions in the queues to start from; without a task after them, the claim starts from the front.
    """
    rows = []
    if after is not None and not slowed:
        positions = [position[0] for position in after], [position[1] for position in after]
        rows = await connection.fetch(_SQL["claim_after"], queue_ids, owner_id, lease_for, limit, *positions)
    return rows or await connection.fetch(_SQL["claim_slowed" if slowed else "claim"], queue_ids, owner_id, lease_for, limit)


async def _claim_unlocked(
    connection: PostgresConnection, queue_ids: Sequence[int], owner_id: str, lease_for: int, limit: int
) -> list[asyncpg.Record]:
    """Claim tasks behind a head that another transaction has locked, which no later notification would report.

    Takes one queue at a time: a claim that locked the heads of all queues would make others miss them. A queue with a rate has
    a next token, after which workers claim again. The holder of a locked task reports it.
    """
    for (queue_id,) in await connection.fetch(_SQL["list_ready_queues"], queue_ids):
        if rows := await connection.fetch(_SQL["claim_unlocked"], queue_id, owner_id, lease_for, limit):
            return rows
    return []


async def feed(
    session: PostgresSession, keys: Iterable[Key], after: Key, now: int, *, rated: bool
) -> tuple[set[int], Key, int | None]:
    """Admit tasks of the keys, of keys whose rate allows it, and of the next keys after the given one that have room.

    Returns their queues, the last key, and the milliseconds until the rate of a key allows another start. Room stays unused when a
    transaction that made it was rolled back while others skipped its task, and after inserts that do not admit.
    """
    rows = await session.fetch("list_starved", after_namespace=after[0], after_key=after[1], limit=STARVED_LIMIT)
    limits = await list_rated(session) if rated else []
    for limited in keys_ahead(limits, now):
        await fill(session, limited)
    stuck = stuck_keys(limits, now)
    wanted = {*keys, *due_keys(limits, now)[0], *((namespace, key) for namespace, key, room in rows if room)}
    wanted.update((limited.namespace, limited.key) for limited in stuck)
    queues: set[int] = set()
    if wanted:
        async with session.transaction():
            if stuck:  # all keys are locked in one order, before any row
                await session.coordinate("lock_keys", rows=sorted(wanted))
                for limited in stuck:
                    queues |= await go_back(session, limited)
            queues |= await admit(session, wanted)
    _, token_for = due_keys(await list_rated(session) if rated else [], now)
    return queues, (rows[-1][0], rows[-1][1]) if len(rows) == STARVED_LIMIT else ("", ""), token_for


async def read_clock(connection: PostgresConnection) -> int:
    """Return the database's clock."""
    return int(await connection.fetchval(_SQL["now"]))
