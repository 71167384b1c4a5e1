"""The values of declared schedules. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from treadle.kernel.declarations.records import SCHEDULE, Value
from treadle.kernel.schedules.options import check_options, make_body
from treadle.kernel.schedules.ticks import make_calendar
from treadle.kernel.triggers.target import named_targets
from treadle.model.schedules import ScheduleBody
from treadle.model.stored import convert, plain
from treadle.model.values import decode, encode

_DEFINITION = ("when", "target", "catch_up", "overlap", "jitter_for", "start_at", "end_at")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def has_target(options: dict[str, Any]) -> bool:
    """Return whether the options name the work to start; raises `InvalidInput` for unknown ones."""
    check_options(options)
    return bool(named_targets(options))


def schedule_value(options: dict[str, Any]) -> dict[str, Any]:
    """Return the value of a declared schedule. Intervals count from 1970, so that they do not depend on the time of a start."""
    if options.get("every") is not None and options.get("anchor") is None and options.get("start") is None:
        options = options | {"anchor": _EPOCH}
    return definition(make_body(options, 0))


def definition(body: ScheduleBody) -> dict[str, Any]:
    """Return the definition of a schedule, without its progress."""
    found: dict[str, Any] = decode(encode(plain(body), "schedule"))
    return {name: found[name] for name in _DEFINITION if found.get(name) not in (None, {})}


def body_of(value: dict[str, Any]) -> ScheduleBody:
    """Return the body of a schedule with this value, before it begins."""
    return convert(ScheduleBody, value | {"cursor": 0})


def is_over(item: str, value: Value, now: int) -> bool:
    """Return whether the item is a schedule without a tick after that instant, so that it may have ended by itself."""
    if value is None or not item.startswith(f"{SCHEDULE} "):
        return False
    body = body_of(value)
    following = make_calendar(body.when).next_after(now)
    return following is None or (body.end_at is not None and following > body.end_at)
