"""Decides which ticks fire: catch-up of missed ticks, and overlap with earlier work. Pure.

`plan` takes the last considered tick and the store's time; it returns the ticks that fire, the new cursor, and the next tick.
It depends on nothing else: after a crash it returns the same plan, and however often it is called, it considers each tick once,
in order. `admit` applies the overlap policy to a plan. `decide` does both; the preview, the dry run of a recovery and the
firing itself all call it, so they agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.kernel.schedules.ticks import Calendar, count_ticks, last_ticks
from treadle.model.ids import uuid7
from treadle.model.schedules import ALL, ALLOW, CANCEL, LATEST, QUEUE, WINDOW, CatchUp, ScheduleDocument

BATCH = 50
"""Maximum number of ticks that start in one attempt; the rest start with the next ones, immediately."""

COUNTED = 1000
"""Maximum count of skipped ticks."""


@dataclass(frozen=True, slots=True)
class FiringPlan:
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
) -> FiringPlan:
    """Plan the ticks after `cursor` that fire at `now`. After the clock went back, nothing fires until it passes the cursor."""
    first = _bounded(calendar.next_after(cursor), end_at)
    if first is None or first > now:
        return FiringPlan((), 0, cursor, first)
    upto = now if end_at is None else min(now, end_at)
    chosen = _chosen(calendar, catch_up, cursor, upto, now)
    skipped = count_ticks(calendar, cursor, chosen[0], COUNTED) if chosen else 0
    last = chosen[-1] if chosen else last_ticks(calendar, cursor, upto, 1)[-1]
    if not chosen:
        skipped = count_ticks(calendar, cursor, last + 1, COUNTED)
    return FiringPlan(tuple(chosen), skipped, last, _bounded(calendar.next_after(last), end_at))


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
    """Ticks that start now."""
    skipped: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    """Ticks that start later, one after another (under `allow`: with the next attempt)."""
    cancel: bool = False
    """Whether to cancel the live work first."""


def admit(
    ticks: Sequence[int],
    overlap: str,
    catch_up: CatchUp,
    now: int,
    *,
    busy: bool,
    waiting: Sequence[int] = (),
    batch: int = BATCH,
) -> Admission:
    """Decide which of the planned ticks start work now and which wait; `busy` is whether earlier work is still live.

    Ticks that already wait keep their place. Under `skip` and `queue`, work runs one after another: `all` and `window` keep
    every missed tick, the other policies the newest. A tick that is on time while earlier work is live or waits is skipped;
    `queue` lets one of them wait.
    """
    due = (*waiting, *ticks)
    if overlap == ALLOW or not due:
        return Admission(due[:batch], waiting=due[batch:])
    if overlap == CANCEL:
        return Admission(due[-1:], due[:-1], cancel=busy)
    pending = (*waiting, *_kept(ticks, overlap, catch_up, now, len(waiting) + busy))[-max(catch_up.limit, 1) :]
    skipped = tuple(sorted(set(due) - set(pending)))
    return Admission((), skipped, pending) if busy else Admission(pending[:1], skipped, pending[1:])


def _kept(ticks: Sequence[int], overlap: str, catch_up: CatchUp, now: int, ahead: int) -> Sequence[int]:
    """Return the new ticks that start in order, under `skip` and `queue`, after `ahead` others that run or wait."""
    if not ticks:
        return ()
    missed = now - ticks[0] > catch_up.grace_for if catch_up.policy in (ALL, WINDOW) else now - ticks[-1] > catch_up.grace_for
    if ahead and not missed:
        return ticks[-1:] if overlap == QUEUE and ahead == 1 else ()
    return ticks if catch_up.policy in (ALL, WINDOW) else ticks[-1:]


@dataclass(frozen=True, slots=True)
class Due:
    """The due ticks of a schedule: those that start now or one after another, the number of the others, and the new cursor."""

    fire: tuple[int, ...]
    skipped: int
    """Ticks that do not fire; `COUNTED` and more are not exact."""
    plan: FiringPlan
    admission: Admission


def decide(document: ScheduleDocument, calendar: Calendar, schedule_id: str, now: int, *, busy: bool) -> Due:
    """Decide on the due ticks of a schedule at that time; `busy` is whether work that it started is still live."""
    at = now - jitter_of(schedule_id, document.jitter_for)
    planned = plan(calendar, document.catch_up, document.cursor, at, end_at=document.end_at)
    waiting = () if document.waiting is None else (document.waiting, *document.backlog)
    admitted = admit(planned.fire, document.overlap, document.catch_up, at, busy=busy, waiting=waiting)
    return Due((*admitted.start, *admitted.waiting), planned.skipped + len(admitted.skipped), planned, admitted)


def tick_id(schedule_id: str, tick: int) -> str:
    """Return the id of the work that a tick starts: always the same, and sorted by tick."""
    return uuid7(tick, hashlib.sha256(f"{schedule_id}/tick:{tick}".encode()).digest())
