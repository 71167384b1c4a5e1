"""The open engine of a process, for servers that fork and use threads."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from treadle.engine.engine import twin_of

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.engine.sync import BlockingEngine

_lock = threading.Lock()
_open: dict[tuple[int, int], BlockingEngine] = {}
"""By the pid, as a forked process must not use the engine of its parent, and by engine."""


def open_engine(engine: Engine) -> BlockingEngine:
    """Return the open engine of this process on the same store; it is opened on first use, and closed at exit."""
    place = os.getpid(), id(engine)
    with _lock:
        found = _open.get(place)
        if found is None:
            found = _open[place] = twin_of(engine).blocking().__enter__()
        return found


@atexit.register
def close_engines() -> None:
    """Close the engines that this process has opened, but not those of the process that forked it."""
    with _lock:
        for place in [place for place in _open if place[0] == os.getpid()]:
            _open.pop(place).__exit__()
