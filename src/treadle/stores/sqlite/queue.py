"""The queue: taking, waking and renewing. Each looks first, and takes the write lock only if there is something to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import Extension, Renewal, Woken
from treadle.model.clock import Clock
from treadle.model.tasks import Claim, Task
from treadle.stores.sqlite import lists
from treadle.stores.sqlite.connection import read_row, read_value, writing
from treadle.stores.sqlite.limits import admit
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "queue.sql")
_TAKE_SEQS = load_statements(__package__, "commit.sql")["take_seqs"]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_tasks = msgspec.json.Decoder(list[Task]).decode


def claim(
    connection: apsw.Connection, clock: Clock, lane_ids: Sequence[int], owner_id: str, lease_for: int, limit: int
) -> list[Task]:
    """Take the first ready tasks of the best lane."""
    shut: set[int] = set()
    while limit > 0 and (head := _find_head(connection, lane_ids, shut)) is not None:
        lane_id, priority = head
        values = {
            "lane_id": lane_id,
            "priority": priority,
            "limit": limit,
            "owner_id": owner_id,
            "lease_for": lease_for,
        }
        try:
            with writing(connection):
                now = clock.now()
                values["now"] = now
                rule = lists.list_slowed(connection).get(lane_id)
                if rule is not None:
                    tokens = 0.0 if rule.paused else rule.tokens_left(now)
                    if tokens < 1:
                        shut.add(lane_id)
                        continue
                    values["limit"] = int(min(tokens, limit))
                taken = read_value(connection, _SQL["show_taken"], values)
                connection.execute(_SQL["take"], values)
                if rule is not None:
                    lists.spend(connection, lane_id, tokens - connection.changes(), now)
        except apsw.TooBigError:
            if limit == 1:
                raise
            limit = max(limit // 4, 1)
            continue
        # None: another process has taken them since we looked. Look again.
        if tasks := _decode_tasks(taken):
            return tasks
    return []


def _find_head(connection: apsw.Connection, lane_ids: Sequence[int], shut: Collection[int]) -> tuple[int, int] | None:
    """The best lane and its best priority; lanes that are paused, or shut, are left out."""
    slowed = lists.list_slowed(connection)
    if slowed:
        lane_ids = [each for each in lane_ids if each not in shut and not (each in slowed and slowed[each].paused)]
    found: Any = connection.execute(_SQL["find_head"], {"lane_ids": _encode(list(lane_ids)).decode()}).fetchall()
    return found[0] if found else None


def wake(connection: apsw.Connection, clock: Clock, limit: int, expire_leases: bool) -> Woken:
    """Make tasks ready whose time has come."""
    now = clock.now()
    first = read_value(connection, _SQL["find_next_wake"])
    if first is None or first > now:
        return Woken(0, 0, (), None if first is None else first - now, now)
    values = {"now": now, "expire_leases": expire_leases, "limit": limit}
    count, expired, lanes, keys = read_row(connection, _SQL["count_due"], values)
    admitted: set[int] = set()
    if count:
        with writing(connection):
            values["now"] = now = clock.now()
            count, expired, lanes, keys = read_row(connection, _SQL["count_due"], values)
            if expired:
                last = read_value(connection, _TAKE_SEQS, {"count": expired})
                connection.execute(_SQL["log_expired"], {**values, "first_seq": last - expired + 1})
            connection.execute(_SQL["wake_due"], values)
            if keys != "[]":
                admitted = admit(connection, [(namespace, key) for namespace, key in _decode(keys)])
    more, *_ = read_row(connection, _SQL["count_due"], {**values, "limit": 1})
    after = read_value(connection, _SQL["find_next_after"], {"now": now})
    next_for = 0 if more else None if after is None else after - now
    overdue = not expire_leases and bool(read_value(connection, _SQL["find_overdue"], {"now": now}))
    return Woken(count, expired, tuple(admitted.union(_decode(lanes))), next_for, now, overdue)


def renew(connection: apsw.Connection, clock: Clock, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
    """Extend the claims that are still held; the ids of their tasks."""
    if not renewals:
        return set()
    rows = [
        (renewal.claim.task_id, renewal.claim.version, renewal.claim.owner_id, renewal.progressed, renewal.progress)
        for renewal in renewals
    ]
    text = _encode(rows).decode()
    with writing(connection):
        connection.execute(_SQL["renew"], {"rows": text, "now": clock.now(), "lease_for": lease_for})
        if connection.changes() == len(rows):
            return {row[0] for row in rows}
        found = read_value(connection, _SQL["list_held"], {"rows": text})
    return set(_decode(found))


def extend(connection: apsw.Connection, clock: Clock, renewals: Sequence[Renewal], lease_for: int) -> dict[str, Extension]:
    """Extend the claims that are still held, within an attempt's longest time; until when."""
    rows = [
        (renewal.claim.task_id, renewal.claim.version, renewal.claim.owner_id, renewal.progressed, renewal.progress)
        for renewal in renewals
    ]
    with writing(connection):
        now = clock.now()
        values = {"rows": _encode(rows).decode(), "now": now, "lease_for": lease_for}
        found: Any = connection.execute(_SQL["extend"], values).fetchall()
    return {task_id: Extension(until_at, now) for task_id, until_at in found}


def held(connection: apsw.Connection, claims: Sequence[Claim]) -> set[str]:
    """The ids of the tasks whose claim is as given."""
    rows = [(claim.task_id, claim.version, claim.owner_id) for claim in claims]
    found = read_value(connection, _SQL["list_held"], {"rows": _encode(rows).decode()})
    return set(_decode(found))
