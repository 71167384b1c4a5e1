"""Options of a schedule, and the document of its record that follows from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from treadle.api.options import CatchUpOptions, ScheduleOptions, TimeOptions
from treadle.kernel import triggers
from treadle.kernel.triggers import edit_target
from treadle.model.clock import instant, milliseconds
from treadle.model.errors import InvalidSchedule
from treadle.model.lists import check_count
from treadle.model.schedules import (
    CATCH_UP_POLICIES,
    DEFINITION,
    OVERLAP_POLICIES,
    TASK,
    TIMES,
    WINDOW,
    CatchUp,
    ScheduleDocument,
    Target,
    When,
)

MAX_CATCH_UP = 10_000
"""Maximum number of ticks to catch up with; use `backfill` for more."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for unknown options, and for none at all."""
    triggers.check_options(options, ScheduleOptions, "A schedule", "cron='0 3 * * *'")


def make_document(options: Mapping[str, Any], now: int) -> ScheduleDocument:
    """Return the document of a new schedule; checks each option, but not their combination."""
    check_options(options)
    empty = ScheduleDocument(when=When(), target=_target(options, Target(kind="", name="")), cursor=now)
    return _times(_rest(empty, options), options, now)


def edit_document(document: ScheduleDocument, options: Mapping[str, Any], now: int) -> ScheduleDocument:
    """Return the document with the changes; new times count from now on."""
    new = _rest(msgspec.structs.replace(document, target=_target(options, document.target)), options)
    return _times(new, options, now) if any(name in options for name in TimeOptions.__annotations__) else new


def _rest(document: ScheduleDocument, options: Mapping[str, Any]) -> ScheduleDocument:
    overlap = options.get("overlap", document.overlap)
    if overlap not in OVERLAP_POLICIES:
        raise InvalidSchedule(f"overlap must be one of {', '.join(OVERLAP_POLICIES)}, not {overlap!r}.")
    jitter_for = milliseconds(options["jitter"], "jitter") if "jitter" in options else document.jitter_for
    return msgspec.structs.replace(document, catch_up=_catch_up(options, document.catch_up), overlap=overlap, jitter_for=jitter_for)


def _times(document: ScheduleDocument, options: Mapping[str, Any], now: int) -> ScheduleDocument:
    old = document.when
    start_at = _instant(options, "start", document.start_at)
    end_at = _instant(options, "end", document.end_at)
    if any(options.get(name) is not None for name in ("cron", "every", "at")):
        old = When(zone=old.zone, more=old.more)
    every_for = old.every_for
    if options.get("every") is not None:
        every_for = milliseconds(options["every"], "every", positive=True)
    when = When(
        cron=options.get("cron", old.cron),
        zone=options.get("zone", old.zone),
        every_for=every_for,
        anchor_at=None if every_for is None else _instant(options, "anchor", old.anchor_at or start_at or now),
        at=_instant(options, "at", old.at),
        more=old.more,
    )
    return begin(msgspec.structs.replace(document, when=when, start_at=start_at, end_at=end_at), now)


def begin(document: ScheduleDocument, now: int) -> ScheduleDocument:
    """Return the document with its times counting from now on; ticks that waited are dropped."""
    cursor = now
    if document.when.at is not None:
        cursor = min(now, document.when.at - 1)
    elif document.start_at is not None and document.start_at > now:
        cursor = document.start_at - 1
    return msgspec.structs.replace(document, cursor=cursor, waiting=None, backlog=(), looks=0)


def redefine(document: ScheduleDocument, new: ScheduleDocument, now: int) -> ScheduleDocument:
    """Return the document with the definition of another one. If the times are the same, its ticks continue."""
    changed = msgspec.structs.replace(document, error=None, **{name: getattr(new, name) for name in DEFINITION})
    return begin(changed, now) if any(getattr(document, name) != getattr(new, name) for name in TIMES) else changed


def _target(options: Mapping[str, Any], old: Target) -> Target:
    def kept(old: Target, kind: str) -> Target:
        given_as = "tick" if kind == TASK else None
        return Target(kind="", name="", given_as=given_as, inputs=old.inputs, task_list=old.task_list, more=old.more)

    return edit_target(options, old, "tick_as", kept)


def _catch_up(options: Mapping[str, Any], old: CatchUp) -> CatchUp:
    if not any(name in options for name in CatchUpOptions.__annotations__):
        return old
    policy = options.get("catch_up", old.policy)
    if policy not in CATCH_UP_POLICIES:
        raise InvalidSchedule(f"catch_up must be one of {', '.join(CATCH_UP_POLICIES)}, not {policy!r}.")
    window = options.get("catch_up_window")
    window_for = None if window is None else milliseconds(window, "catch_up_window", positive=True)
    if window_for is None and policy == WINDOW:
        window_for = old.window_for
    if (policy == WINDOW) != (window_for is not None):
        raise InvalidSchedule("catch_up='window' and catch_up_window go together: the window is the maximum age of a missed tick.")
    limit = check_count(options.get("catch_up_limit", old.limit), "catch_up_limit")
    if "catch_up_limit" in options and limit > MAX_CATCH_UP:
        raise InvalidSchedule(f"catch_up_limit must be at most {MAX_CATCH_UP}, not {limit}: each plan reads that many ticks.")
    return msgspec.structs.replace(
        old,
        policy=policy,
        limit=limit,
        window_for=window_for,
        grace_for=milliseconds(options["grace"], "grace") if "grace" in options else old.grace_for,
    )


def _instant(options: Mapping[str, Any], name: str, otherwise: int | None) -> int | None:
    """Return the instant of that option (None if given as None), or the old value if it is not given."""
    if name not in options or (options[name] is None and name == "anchor"):
        return otherwise
    return None if options[name] is None else instant(options[name], name)
