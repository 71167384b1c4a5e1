"""Tasks: queues, claims, wake-ups, and reads that differ from those of PostgreSQL.

A claim and a wake-up look first, and take the write lock only if there is work. Reads return rows as one JSON text, which
costs one step of the database and no lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.database import reads, uses, writes
from treadle.kernel.store.queries import Woken
from treadle.model.lists import QueueRule
from treadle.model.names import QueueKey
from treadle.model.states import FINAL_TASK_STATES
from treadle.model.tasks import Task
from treadle.stores.limits import Key, admit, fill, go_back, list_rated, order_fairly
from treadle.stores.rules.rates import due_keys, earlier, keys_ahead, stuck_keys
from treadle.stores.shared import TaskPort, list_queues, queue_rule
from treadle.stores.sqlite.connection.connect import read_row, read_value, to_json, writing
from treadle.stores.sqlite.database import SqliteDatabase, SqliteSession
from treadle.stores.statements import load_statements
from treadle.stores.writes import mark_in_doubt

_SQL = load_statements(__package__, "tasks.sql")
_QUEUES = load_statements(__package__, "queues.sql")
_CHARGE = load_statements(__package__, "limits.sql")["charge"]
_FINAL = frozenset[str](FINAL_TASK_STATES)
_HAS_KEY = '"limit_key":"'
"""A part of the JSON of claimed tasks, if one of them has a limit key."""
_decode = msgspec.json.Decoder().decode
decode_tasks = msgspec.json.Decoder(list[Task]).decode


class SqliteTasks(TaskPort):
    """The `TaskStore` of SQLite."""

    _database: SqliteDatabase

    async def queue_ids(self, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        if any(queue not in self._database.queues for queue in queues):
            await self._make_queues(queues)
        return {queue: self._database.queues[queue] for queue in queues}

    async def _make_queues(self, queues: Iterable[QueueKey]) -> None:
        self._database.queues = await self._database.write(lambda session: make_queues(session, queues))

    @reads
    async def list_queues(self, session: SqliteSession) -> dict[int, QueueKey]:
        return {queue_id: queue for queue, queue_id in (await list_queues(session)).items()}

    @uses
    async def claim(
        self,
        session: SqliteSession,
        queue_ids: Sequence[int],
        owner_id: str,
        lease_for: int,
        limit: int,
        scopes: Sequence[str] | None = None,
    ) -> list[Task]:
        connection = session.connection
        shut: set[int] = set()
        variant = "" if scopes is None else "_scoped"
        wanted: dict[str, Any] = {} if scopes is None else {"scopes": to_json(list(scopes))}
        while limit > 0 and (head := _find_head(connection, queue_ids, shut, wanted)) is not None:
            queue_id, priority = head
            values = wanted | {
                "queue_id": queue_id,
                "priority": priority,
                "limit": limit,
                "owner_id": owner_id,
                "lease_for": lease_for,
            }
            try:
                with writing(connection):
                    now = self._database.now()
                    values["now"] = now
                    rule = list_slowed(connection).get(queue_id)
                    if rule is not None:
                        tokens = 0.0 if rule.paused else rule.tokens_left(now)
                        if tokens < 1:
                            shut.add(queue_id)
                            continue
                        values["limit"] = int(min(tokens, limit))
                    claimed_json = read_value(connection, _SQL[f"show_taken{variant}"], values)
                    connection.execute(_SQL[f"take{variant}"], values)
                    if rule is not None and tokens < math.inf:
                        remaining = tokens - connection.changes()
                        connection.execute(_QUEUES["spend"], {"queue_id": queue_id, "tokens": remaining, "now": now})
                    tasks = decode_tasks(claimed_json)
                    if _HAS_KEY in claimed_json:
                        charge(connection, [(task.namespace, key) for task in tasks for key in task.all_limit_keys], now)
            except apsw.TooBigError:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            # Without a task, another process has taken them since `_find_head`: look again.
            if tasks:
                return tasks
        return []

    @writes
    async def claim_of_run(
        self, session: SqliteSession, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int
    ) -> list[str]:
        values = {"run_id": run_id, "kind": kind, "owner_id": owner_id, "lease_for": lease_for, "limit": limit}
        claimed = await session.fetch("claim_of_run", **values)
        charge(session.connection, [(namespace, key) for _, namespace, key in claimed if key is not None], session.now)
        return [task_id for task_id, _, _ in claimed]

    @uses
    async def wake(self, session: SqliteSession, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        connection, now = session.connection, session.now
        first, ready, rates = read_row(connection, _SQL["find_next_wake"], {"find_ready": find_ready})
        limits = await list_rated(session) if rates else []
        if ahead := keys_ahead(limits, now):
            async with session.transaction():
                for limited in ahead:
                    await fill(session, limited)
        rated, token_for = due_keys(limits, now)
        stuck = stuck_keys(limits, now)
        rated.update((limited.namespace, limited.key) for limited in stuck)
        if not rated and (first is None or first > now):
            next_for = earlier(None if first is None else first - now, token_for)
            return Woken(0, 0, (), next_for, now, ready=bool(ready), rated=bool(rates))
        values = {"now": now, "expire_leases": expire_leases, "limit": limit}
        count, expired, queues, keys, _ = read_row(connection, _SQL["count_due"], values)
        admitted: set[int] = set()
        if count or rated:
            async with session.transaction():
                values["now"] = now = session.now = self._database.now()
                count, expired, queues, keys, fair = read_row(connection, _SQL["count_due"], values)
                if expired:
                    await mark_in_doubt(session, _decode(read_value(connection, _SQL["list_expiring"], values)))
                    connection.execute(_SQL["log_expired"], {**values, "count": expired})
                connection.execute(_SQL["wake_due"], values)
                await order_fairly(session, _decode(fair))
                for limited in stuck:
                    admitted |= await go_back(session, limited)
                admitted |= await admit(session, rated.union((namespace, key) for namespace, key in _decode(keys)))
            _, token_for = due_keys(await list_rated(session), now)
        more, *_ = read_row(connection, _SQL["count_due"], {**values, "limit": 1})
        after = read_value(connection, _SQL["find_next_after"], {"now": now})
        next_for = 0 if more else None if after is None else after - now
        overdue = not expire_leases and bool(read_value(connection, _SQL["find_overdue"], {"now": now}))
        queue_ids, next_for = tuple(admitted.union(_decode(queues))), earlier(next_for, token_for)
        return Woken(count, expired, queue_ids, next_for, now, overdue, bool(ready), bool(rates))

    async def next_token_for(self, queue_ids: Sequence[int]) -> int | None:
        rules = [queue_rule(*row) for row in await self._database.fetch("list_rated_queues", queue_ids=queue_ids)]
        return min((rule.next_token_for(self._database.now()) for rule in rules), default=None)


def _find_head(
    connection: apsw.Connection, queue_ids: Sequence[int], shut: Collection[int], wanted: dict[str, Any]
) -> tuple[int, int] | None:
    """Return the best queue that is neither paused nor `shut`, and its best priority; with `wanted` scopes, among their tasks."""
    slowed = list_slowed(connection)
    if slowed:
        queue_ids = [
            queue_id for queue_id in queue_ids if queue_id not in shut and not (queue_id in slowed and slowed[queue_id].paused)
        ]
    statement = _SQL["find_head_scoped" if wanted else "find_head"]
    heads: Any = connection.execute(statement, wanted | {"queue_ids": to_json(list(queue_ids))}).fetchall()
    return heads[0] if heads else None


def list_slowed(connection: apsw.Connection) -> dict[int, QueueRule]:
    """Return the queues that are paused or have a rate; usually there are none, and the query is nearly free."""
    rules = (queue_rule(*row) for row in connection.execute(_QUEUES["list_slowed"]))
    return {rule.queue_id: rule for rule in rules}


def charge(connection: apsw.Connection, keys: Iterable[Key], now: int) -> None:
    """Take a token for each claimed task with one of the keys, inside the caller's transaction."""
    if rows := [(*key, count) for key, count in Counter(keys).items()]:
        connection.execute(_CHARGE, {"rows": to_json(rows), "now": now})


async def make_queues(session: SqliteSession, queues: Iterable[QueueKey]) -> Mapping[QueueKey, int]:
    """Create missing queues inside the caller's transaction; return the ids of all queues."""
    await session.execute("insert_queues", rows=sorted(queues))  # sorted, so that the ids do not depend on the order of a set
    return await list_queues(session)
