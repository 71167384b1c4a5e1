"""Tasks: lanes, claims, wake-ups, lease renewals, and reads. `commit` holds the one write.

A claim and a wake-up look first, and take the write lock only if there is work. Reads return rows as one JSON text, which
costs one step of the database and no lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import (
    NEWEST,
    Extension,
    Place,
    Renewal,
    TaskFilter,
    Woken,
)
from treadle.model.clock import Clock
from treadle.model.ids import id_time
from treadle.model.lists import LaneRule
from treadle.model.names import Lane
from treadle.model.states import FINAL_TASK_STATES
from treadle.model.tasks import Claim, Task
from treadle.stores.rules.rates import due_keys, earlier, keys_ahead, stuck_keys
from treadle.stores.shared import TaskReads, lane_rule
from treadle.stores.sqlite.commit.writes import doubt_effects
from treadle.stores.sqlite.connection.connect import read_row, read_value, reading, to_json, writing
from treadle.stores.sqlite.database import Part, reads, uses_writer, writes
from treadle.stores.sqlite.limits import (
    admit,
    charge,
    fill,
    go_back,
    list_lanes,
    list_rated,
    make_lanes,
    spend,
    take_turns,
)
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "tasks.sql")
_LANES = load_statements(__package__, "lanes.sql")
_TAKE_SEQS = load_statements(__package__, "commit/settlements.sql")["take_seqs"]
_FINAL = frozenset[str](FINAL_TASK_STATES)
_HAS_KEY = '"limit_key":"'
"""A part of the JSON of claimed tasks, if one of them has a limit key."""
_decode = msgspec.json.Decoder().decode
decode_tasks = msgspec.json.Decoder(list[Task]).decode


class Tasks(Part, TaskReads):
    """The `TaskStore` of SQLite."""

    async def lane_ids(self, lanes: Sequence[Lane]) -> dict[Lane, int]:
        if any(lane not in self._database.lanes for lane in lanes):
            await self._make_lanes(lanes)
        return {lane: self._database.lanes[lane] for lane in lanes}

    @uses_writer
    def _make_lanes(self, connection: apsw.Connection, lanes: Iterable[Lane]) -> None:
        with writing(connection):
            known = make_lanes(connection, lanes)
        self._database.lanes = known

    @reads
    def list_lanes(self, connection: apsw.Connection) -> dict[int, Lane]:
        return list_lanes(connection)

    @uses_writer
    def claim(self, connection: apsw.Connection, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int) -> list[Task]:
        shut: set[int] = set()
        while limit > 0 and (head := _find_head(connection, lane_ids, shut)) is not None:
            lane_id, priority = head
            values = {"lane_id": lane_id, "priority": priority, "limit": limit, "owner_id": owner_id, "lease_for": lease_for}
            try:
                with writing(connection):
                    now = self._database.now()
                    values["now"] = now
                    rule = list_slowed(connection).get(lane_id)
                    if rule is not None:
                        tokens = 0.0 if rule.paused else rule.tokens_left(now)
                        if tokens < 1:
                            shut.add(lane_id)
                            continue
                        values["limit"] = int(min(tokens, limit))
                    taken = read_value(connection, _SQL["show_taken"], values)
                    connection.execute(_SQL["take"], values)
                    if rule is not None:
                        spend(connection, lane_id, tokens - connection.changes(), now)
                    if _HAS_KEY in taken:
                        claimed = decode_tasks(taken)
                        charge(connection, [(each.namespace, each.limit_key) for each in claimed if each.limit_key], now)
            except apsw.TooBigError:
                if limit == 1:
                    raise
                limit = max(limit // 4, 1)
                continue
            # Without a task, another process has taken them since `_find_head`: look again.
            if tasks := decode_tasks(taken):
                return tasks
        return []

    @writes
    def claim_of_run(
        self, connection: apsw.Connection, run_id: str, kind: str, owner_id: str, lease_for: int, limit: int
    ) -> list[str]:
        values = {"run_id": run_id, "kind": kind, "owner_id": owner_id, "lease_for": lease_for, "limit": limit}
        now = self._database.now()
        found: list[Any] = connection.execute(_SQL["claim_of_run"], values | {"now": now}).fetchall()
        charge(connection, [(namespace, key) for _, namespace, key in found if key is not None], now)
        return [str(task_id) for task_id, _, _ in found]

    @uses_writer
    def wake(self, connection: apsw.Connection, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        now = self._database.now()
        first, ready, rates = read_row(connection, _SQL["find_next_wake"], {"find_ready": find_ready})
        limits = list_rated(connection) if rates else []
        if ahead := keys_ahead(limits, now):
            with writing(connection):
                for each in ahead:
                    fill(connection, each, now)
        rated, token_for = due_keys(limits, now)
        stuck = stuck_keys(limits, now)
        rated.update((each.namespace, each.key) for each in stuck)
        if not rated and (first is None or first > now):
            return Woken(0, 0, (), earlier(None if first is None else first - now, token_for), now, ready=bool(ready))
        values = {"now": now, "expire_leases": expire_leases, "limit": limit}
        count, expired, lanes, keys, _ = read_row(connection, _SQL["count_due"], values)
        admitted: set[int] = set()
        if count or rated:
            with writing(connection):
                values["now"] = now = self._database.now()
                count, expired, lanes, keys, fair = read_row(connection, _SQL["count_due"], values)
                if expired:
                    expiring = _decode(read_value(connection, _SQL["list_expiring"], values))
                    doubt_effects(connection, [(task_id, None, None, None) for task_id in expiring], now)
                    last = read_value(connection, _TAKE_SEQS, {"count": expired})
                    connection.execute(_SQL["log_expired"], {**values, "first_seq": last - expired + 1})
                connection.execute(_SQL["wake_due"], values)
                take_turns(connection, _decode(fair))
                admitted = go_back(connection, stuck, now)
                if rated or keys != "[]":
                    admitted |= admit(connection, rated.union((namespace, key) for namespace, key in _decode(keys)), now)
            _, token_for = due_keys(list_rated(connection), now)
        more, *_ = read_row(connection, _SQL["count_due"], {**values, "limit": 1})
        after = read_value(connection, _SQL["find_next_after"], {"now": now})
        next_for = 0 if more else None if after is None else after - now
        overdue = not expire_leases and bool(read_value(connection, _SQL["find_overdue"], {"now": now}))
        return Woken(count, expired, tuple(admitted.union(_decode(lanes))), earlier(next_for, token_for), now, overdue, bool(ready))

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        return await self._extend(renewals, lease_for) if renewals else {}

    @writes
    def _extend(self, connection: apsw.Connection, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
        now = self._database.now()
        values = {"rows": to_json(_renewed(renewals)), "now": now, "lease_for": lease_for}
        found: Any = connection.execute(_SQL["extend"], values).fetchall()
        return {task_id: Extension(until_at, now) for task_id, until_at in found}

    @reads
    def next_token_for(self, connection: apsw.Connection, lane_ids: Sequence[int]) -> int | None:
        now = self._database.now()
        return min((rule.next_token_for(now) for rule in list_rated_lanes(connection, lane_ids)), default=None)

    @reads
    def list_matching(self, connection: apsw.Connection, which: TaskFilter, limit: int) -> list[Task]:
        if limit <= 0:
            return []
        values = {name: getattr(which, name) for name in which.__struct_fields__ if name != "before"} | {"limit": limit}
        values["states"] = to_json(which.states) if which.states else None
        suffix = "" if which.run_id is None else "_of_run"
        final = _FINAL.intersection(which.states)
        tasks: list[Task] = []
        with reading(connection):
            values["before_at"], values["before_id"] = which.before or _position(connection, which.before_id)
            if not which.states or len(final) < len(which.states):
                tasks += decode_tasks(read_value(connection, _SQL["list_live" + suffix], values))
            if not which.held and (not which.states or final):
                tasks += decode_tasks(read_value(connection, _SQL["list_ended" + suffix], values))
        tasks.sort(key=lambda task: (task.created_at, task.id), reverse=True)
        return tasks[:limit]


def _position(connection: apsw.Connection, before_id: str | None) -> Place:
    """Return the position of the task before a page."""
    if before_id is None:
        return NEWEST
    found: Any = connection.execute(_SQL["find_task_created_at"], {"id": before_id}).fetchall()
    return Place(int(found[0][0]) if found else id_time(before_id), before_id)


def _find_head(connection: apsw.Connection, lane_ids: Sequence[int], shut: Collection[int]) -> tuple[int, int] | None:
    """Return the best lane that is neither paused nor `shut`, and its best priority."""
    slowed = list_slowed(connection)
    if slowed:
        lane_ids = [each for each in lane_ids if each not in shut and not (each in slowed and slowed[each].paused)]
    found: Any = connection.execute(_SQL["find_head"], {"lane_ids": to_json(list(lane_ids))}).fetchall()
    return found[0] if found else None


def _renewed(renewals: Sequence[Renewal]) -> list[tuple[str, int, str, bool, str | None]]:
    return [
        (renewal.claim.task_id, renewal.claim.version, renewal.claim.owner_id, renewal.progressed, renewal.progress)
        for renewal in renewals
    ]


def renew(connection: apsw.Connection, clock: Clock, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
    """Extend the claims that are still held; return the ids of their tasks."""
    rows = _renewed(renewals)
    text = to_json(rows)
    with writing(connection):
        connection.execute(_SQL["renew"], {"rows": text, "now": clock.now(), "lease_for": lease_for})
        if connection.changes() == len(rows):
            return {row[0] for row in rows}
        found = read_value(connection, _SQL["list_held"], {"rows": text})
    return set(_decode(found))


def held(connection: apsw.Connection, claims: Sequence[Claim]) -> set[str]:
    """Return the ids of the tasks with an unchanged claim."""
    rows = [(claim.task_id, claim.version, claim.owner_id) for claim in claims]
    return set(_decode(read_value(connection, _SQL["list_held"], {"rows": to_json(rows)})))


def list_slowed(connection: apsw.Connection) -> dict[int, LaneRule]:
    """Return the lanes that are paused or have a rate; usually there are none, and the query is nearly free."""
    return {rule.lane_id: rule for rule in _rules(connection, "list_slowed")}


def list_rated_lanes(connection: apsw.Connection, lane_ids: Sequence[int]) -> list[LaneRule]:
    """Return those of the lanes that have a rate and ready tasks, and are not paused."""
    return list(_rules(connection, "list_rated_lanes", {"lane_ids": to_json(list(lane_ids))}))


def _rules(connection: apsw.Connection, name: str, values: dict[str, Any] | None = None) -> Iterator[LaneRule]:
    return (lane_rule(*row) for row in connection.execute(_LANES[name], values))
