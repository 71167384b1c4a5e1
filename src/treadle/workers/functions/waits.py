"""What branches of a function wait for, and how much must come before one of them can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from treadle.kernel.functions.rows import Recorded
from treadle.workers.functions.branches import Branch

NEVER = 2**62
NO_MAIL = 1_000_000_000
"""An amount of mail that never comes: only a timer can let the function go on."""


class Wait:
    """One durable wait: for mail (`mail_key` or `signal`), for an instant (`wake_at`), or for what comes first."""

    __slots__ = (
        "branch",
        "done",
        "error",
        "future",
        "group",
        "index",
        "mail_key",
        "on_done",
        "recorded",
        "signal",
        "value",
        "wake_at",
    )

    def __init__(
        self,
        branch: Branch,
        recorded: Recorded,
        *,
        mail_key: str | None = None,
        signal: str | None = None,
        wake_at: int | None = None,
    ) -> None:
        self.branch = branch
        self.recorded = recorded
        self.mail_key = mail_key
        self.signal = signal
        self.wake_at = wake_at
        self.group: Group | None = None
        self.index = 0
        self.future: asyncio.Future[None] | None = None
        self.on_done: Any = None
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @property
    def mailed(self) -> bool:
        """Whether mail can end it."""
        return self.mail_key is not None or self.signal is not None

    def outcome(self) -> Any:
        """What it came to: returned, or raised."""
        if self.error is not None:
            raise self.error
        return self.value


class Group:
    """A gather: what its branches came to, in their order, and how many of them have not ended."""

    __slots__ = ("coded", "future", "left", "results")

    def __init__(self, size: int) -> None:
        self.left = size
        self.coded = 0
        """Branches among these with code of their own: while one runs or waits, the rest cannot let the gather go on."""
        self.results: list[tuple[Any, BaseException | None]] = [(None, None)] * size
        self.future: asyncio.Future[None] | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What a parked function needs: so much mail, or that instant, whichever comes first."""

    mail: int
    wake_at: int


def need_of(waits: Iterable[Wait]) -> Need:
    """The smallest amount of mail, and the first instant, that could let some branch go on. Never too much or too late."""
    mail, wake_at = NO_MAIL, NEVER
    mails: dict[int, int] = {}
    instants: dict[int, int] = {}
    for wait in waits:
        group = wait.group
        if group is not None and wait.mailed and wait.wake_at is not None:
            group = None  # either may end it: looked at by itself
        if group is None:
            if wait.mailed:
                mail = 1
            if wait.wake_at is not None:
                wake_at = min(wake_at, wait.wake_at)
        elif not group.coded:
            key = id(group)
            mails[key] = mails.get(key, 0) + wait.mailed
            if wait.wake_at is not None:
                instants[key] = max(instants.get(key, 0), wait.wake_at)
    for key, count in mails.items():
        if count:
            mail = min(mail, count)
        else:
            wake_at = min(wake_at, instants.get(key, NEVER))
    return Need(mail, wake_at)
