"""Named points at which a test may stop the process or raise: there is one between any two durable writes.

In normal use a point costs one comparison. `treadle.testing` and `TREADLE_CRASH_AT` arm them.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "enqueue.before_commit",
    "enqueue.after_commit",
    "claim.after",
    "handler.before",
    "handler.after",
    "stream.before_commit",
    "stream.after_commit",
    "settle.before_commit",
    "settle.after_commit",
    "operate.before_commit",
    "operate.after_commit",
    "wake.after",
    "advance.before_commit",
    "advance.after_commit",
    "function.before_commit",
    "function.after_commit",
    "leave.before_commit",
    "leave.after_commit",
    "fire.before_commit",
    "fire.after_commit",
    "effect.before_begin",
    "effect.begun",
    "effect.made",
    "effect.recorded",
    "look.before_commit",
    "look.after_commit",
    "alert.before_commit",
    "alert.after_commit",
    "external.before_start",
    "external.after_start",
    "external.after_poll",
    "thread.before_commit",
    "thread.after_commit",
    "partitions.bounded",
    "partitions.validated",
)

_armed: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Call the armed action, if any, with this point."""
    if _armed is not None:
        _armed(point)


def arm(action: Callable[[str], None] | None) -> None:
    """Call `action` with the name of every point that the process reaches; None disarms."""
    global _armed
    _armed = action
