"""Payloads of signals between processes: the lanes with ready tasks, as text."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PAYLOAD = 7000
"""Bytes of a payload; PostgreSQL allows 8000."""


def format_lanes(lane_ids: Sequence[int]) -> str:
    """Return the payload of a signal: the lane ids, or nothing ("poll all lanes") if there are too many."""
    payload = ",".join(map(str, lane_ids))
    return payload if len(payload) <= LONGEST_PAYLOAD else ""


def parse_lanes(payload: str) -> tuple[int, ...]:
    """Return the lanes of a signal; an empty or foreign payload means all lanes."""
    try:
        return tuple(int(part) for part in payload.split(",")) if payload else ()
    except ValueError:
        return ()
