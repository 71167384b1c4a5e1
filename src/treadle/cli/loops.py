"""The event loop of commands that last: a faster one where it is installed (the extra `fast`)."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable


def lasting_loop() -> Callable[[], AbstractEventLoop] | None:
    """What makes it, for `asyncio.Runner`; None for Python's own."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
