"""Keys with a rate: the ones whose waiting tasks may start now, and the time until the next."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.model.lists import AHEAD_FOR, Limit


def due_keys(rated: Iterable[Limit], now: int) -> tuple[set[tuple[str, str]], int | None]:
    """Return the keys (namespace, key) that have room now, and the milliseconds until another one has."""
    due: set[tuple[str, str]] = set()
    later: int | None = None
    for limit in rated:
        if (wait := limit.next_start_for(now)) == 0:
            due.add((limit.namespace, limit.key))
        else:
            later = earlier(later, earlier(wait, limit.stuck_for(now) or None))
    return due, later


def stuck_keys(rated: Iterable[Limit], now: int) -> list[Limit]:
    """Return the limits with admitted tasks that nobody claims, for example because no worker has their handler."""
    return [limit for limit in rated if limit.stuck_for(now) == 0]


def keys_ahead(rated: Iterable[Limit], now: int) -> list[Limit]:
    """Return the limits whose buckets would gain nothing for long, because the clock was set back."""
    return [limit for limit in rated if (limit.tokens_at or 0) > now + AHEAD_FOR]


def earlier(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two numbers that may be missing."""
    return other if one is None else one if other is None else min(one, other)
