"""`TREADLE_CRASH_AT`: kill this process at a named crash point, for crash tests."""

from __future__ import annotations

import os
import signal
from itertools import count

from treadle.kernel.store.crashpoints import POINTS, arm
from treadle.model.errors import InvalidInput


def arm_crash(spec: str) -> None:
    """Arm `point` or `point:n` (the n-th time it is reached); an empty spec arms nothing."""
    if not spec:
        return
    point, colon, number = spec.partition(":")
    if point not in POINTS:
        raise InvalidInput(f"TREADLE_CRASH_AT names an unknown crash point: {point!r}; choose one of {', '.join(POINTS)}.")
    if colon and (not number.isdecimal() or int(number) < 1):
        raise InvalidInput(f"TREADLE_CRASH_AT takes `point` or `point:n` with n from 1, not {spec!r}.")
    wanted = int(number or 1)
    reached = count(1)

    def crash(here: str) -> None:
        if here == point and next(reached) == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(crash)
