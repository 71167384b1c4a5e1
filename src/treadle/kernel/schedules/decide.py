"""Decides which ticks fire: catch-up of missed ticks, and overlap with earlier work. Pure.

`plan` takes the last considered tick and the store's time; it returns the ticks that fire, the new cursor, and the next tick.
It depends on nothing else: after a crash it returns the same plan, and however often it is called, it considers each tick once,
in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.kernel.schedules.ticks import Calendar, count_ticks, last_ticks
from treadle.model.ids import uuid7
from treadle.model.schedules import ALL, ALLOW, CANCEL, LATEST, QUEUE, SKIP, WINDOW, CatchUp, ScheduleBody

BATCH = 50
"""Maximum number of ticks per plan; the rest fire with the next plan, immediately."""

COUNTED = 1000
"""Maximum count of skipped ticks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The due actions of a schedule."""

    fire: tuple[int, ...]
    skipped: int
    """Considered ticks that do not fire; `COUNTED` means that many or more."""
    cursor: int
    next_at: int | None
    """The next tick, which may be due already; None if there are no more."""


def plan(
    calendar: Calendar,
    catch_up: CatchUp,
    cursor: int,
    now: int,
    *,
    end_at: int | None = None,
    batch: int = BATCH,
) -> Plan:
    """Plan the ticks after `cursor` that fire at `now`. After the clock went back, nothing fires until it passes the cursor."""
    first = _bounded(calendar.next_after(cursor), end_at)
    if first is None or first > now:
        return Plan((), 0, cursor, first)
    upto = now if end_at is None else min(now, end_at)
    chosen = _chosen(calendar, catch_up, cursor, upto, now)
    skipped = count_ticks(calendar, cursor, chosen[0], COUNTED) if chosen else 0
    if len(chosen) > batch:
        return Plan(tuple(chosen[:batch]), skipped, chosen[batch - 1], chosen[batch])
    last = chosen[-1] if chosen else last_ticks(calendar, cursor, upto, 1)[-1]
    if not chosen:
        skipped = count_ticks(calendar, cursor, last + 1, COUNTED)
    return Plan(tuple(chosen), skipped, last, _bounded(calendar.next_after(last), end_at))


def plan_of(body: ScheduleBody, calendar: Calendar, now: int, batch: int = BATCH) -> Plan:
    """Return the plan of a schedule at that time."""
    return plan(calendar, body.catch_up, body.cursor, now, end_at=body.end_at, batch=batch)


def _chosen(calendar: Calendar, catch_up: CatchUp, cursor: int, upto: int, now: int) -> list[int]:
    """Return the due ticks that fire. Those on time fire under every policy."""
    limit = max(catch_up.limit, 1)
    if catch_up.policy == ALL:
        return last_ticks(calendar, cursor, upto, limit)
    late_for = catch_up.grace_for
    if catch_up.policy == WINDOW:
        late_for = max(late_for, catch_up.window_for or 0)
    chosen = last_ticks(calendar, max(cursor, now - late_for - 1), upto, limit)
    if not chosen and catch_up.policy == LATEST:
        return last_ticks(calendar, cursor, upto, 1)
    return chosen


def _bounded(tick: int | None, end_at: int | None) -> int | None:
    return None if tick is None or (end_at is not None and tick > end_at) else tick


def jitter_of(schedule_id: str, jitter_for: int) -> int:
    """Return the delay of the schedule after its ticks: constant and different for each schedule, up to `jitter_for`."""
    if jitter_for <= 0:
        return 0
    return int.from_bytes(hashlib.sha256(f"jitter/{schedule_id}".encode()).digest()[:8], "big") % (jitter_for + 1)


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision of the overlap policy on ticks that fire."""

    start: tuple[int, ...]
    skipped: tuple[int, ...] = ()
    waiting: int | None = None
    cancel: bool = False
    """Whether to cancel the live work first."""


def admit(ticks: Sequence[int], overlap: str, *, busy: bool, waiting: int | None) -> Admission:
    """Decide which ticks start work now; `busy` is whether earlier work is still live."""
    due = [*([] if waiting is None else [waiting]), *ticks]
    if overlap == ALLOW or not due:
        return Admission(tuple(due))
    if overlap == CANCEL:
        return Admission((due[-1],), tuple(due[:-1]), cancel=busy)
    if overlap == SKIP:
        return Admission((), tuple(due)) if busy else Admission((due[0],), tuple(due[1:]))
    assert overlap == QUEUE
    if busy:
        return Admission((), tuple(due[1:]), due[0])
    return Admission((due[0],), tuple(due[2:]), due[1] if len(due) > 1 else None)


def describe(catch_up: CatchUp) -> str:
    """Describe the policy."""
    late = f"{catch_up.grace_for / 1000:g} s"
    match catch_up.policy:
        case "skip":
            return f"missed ticks (over {late} late) are skipped"
        case "latest":
            return f"of missed ticks (over {late} late) only the newest fires"
        case "all":
            return f"all missed ticks fire, up to the newest {catch_up.limit}"
        case _:
            window = f"{(catch_up.window_for or 0) / 1000:g} s"
            return f"missed ticks up to {window} late fire, up to the newest {catch_up.limit}"


def tick_id(schedule_id: str, tick: int) -> str:
    """Return the id of the work that a tick starts: always the same, and sorted by tick."""
    return uuid7(tick, hashlib.sha256(f"{schedule_id}/tick:{tick}".encode()).digest())
