"""Which ticks fire: the one place where missed and overlapping ticks are decided. Pure.

`plan` is given the last tick that was considered and the store's time, and says which ticks fire, which is the last one
considered now, and when there is something to do again. What it is given is all that it knows: asked again after a crash, it
says the same; asked at any times, it considers each tick once, in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.kernel.schedules.ticks import Calendar, count_ticks, last_ticks
from treadle.model.schedules import ALL, ALLOW, CANCEL, LATEST, QUEUE, SKIP, WINDOW, CatchUp

BATCH = 50
"""Ticks that one plan fires at most; what is left fires with the next one, at once."""

COUNTED = 1000
"""Skipped ticks are counted up to so many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a schedule does now."""

    fire: tuple[int, ...]
    skipped: int
    """Ticks that do not fire, of those considered now; `COUNTED` means that many or more."""
    cursor: int
    next_at: int | None
    """The tick for which there is something to do next, which may be due already; None: there is none any more."""


def plan(
    calendar: Calendar,
    catch_up: CatchUp,
    cursor: int,
    now: int,
    *,
    end_at: int | None = None,
    batch: int = BATCH,
) -> Plan:
    """Which of the ticks after `cursor` fire at `now`. A clock that went back fires nothing until it is past the cursor."""
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


def _chosen(calendar: Calendar, catch_up: CatchUp, cursor: int, upto: int, now: int) -> list[int]:
    """The due ticks that fire. Those that are on time fire under every policy."""
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
    """By how much the schedule is later than its ticks: always the same, and another for each schedule, up to `jitter_for`."""
    if jitter_for <= 0:
        return 0
    return int.from_bytes(hashlib.sha256(f"jitter/{schedule_id}".encode()).digest()[:8], "big") % (jitter_for + 1)


@dataclass(frozen=True, slots=True)
class Admission:
    """What the overlap policy makes of ticks that fire."""

    start: tuple[int, ...]
    skipped: tuple[int, ...] = ()
    waiting: int | None = None
    cancel: bool = False
    """Whether what goes on is canceled first."""


def admit(ticks: Sequence[int], overlap: str, *, busy: bool, waiting: int | None) -> Admission:
    """Which of the ticks start something now, while (`busy`) something that was started before goes on."""
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
    """The policy in words."""
    late = f"{catch_up.grace_for / 1000:g} s"
    match catch_up.policy:
        case "skip":
            return f"missed ticks (over {late} late) are skipped"
        case "latest":
            return f"of missed ticks (over {late} late) the newest fires once"
        case "all":
            return f"missed ticks all fire, up to the newest {catch_up.limit}"
        case _:
            window = f"{(catch_up.window_for or 0) / 1000:g} s"
            return f"missed ticks fire that are not over {window} late, up to the newest {catch_up.limit}"
