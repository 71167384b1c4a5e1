"""Durable waits of a function's branches, and the events that a parked function needs before a branch can continue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.kernel.functions.steps import Recorded
from treadle.workers.functions.branches import Branch, PendingUnit
from treadle.workers.functions.errors import error_of

if TYPE_CHECKING:
    from treadle.workers.functions.execution import Execution

NEVER = 2**62
NO_MESSAGES = 1_000_000_000
"""A number of messages that never arrives: only a timer can wake the function."""


class Wait:
    """A durable wait for a message (the end of a child, or a signal), for an instant (`wake_at`), or for the first of both."""

    __slots__ = (
        "branch",
        "child_step_id",
        "done",
        "error",
        "future",
        "group",
        "index",
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
        child_step_id: str | None = None,
        signal: str | None = None,
        wake_at: int | None = None,
    ) -> None:
        self.branch = branch
        self.recorded = recorded
        self.child_step_id = child_step_id
        self.signal = signal
        self.wake_at = wake_at
        self.group: Group | None = None
        self.index = 0
        self.future: asyncio.Future[None] | None = None
        self.on_done: Callable[[Wait], None] | None = None
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    @classmethod
    def over(cls, branch: Branch, recorded: Recorded) -> Wait:
        """Return a wait that has ended as its step records."""
        wait = cls(branch, recorded)
        wait.done, wait.value, wait.error = True, recorded.value, error_of(recorded)
        return wait

    @property
    def by_message(self) -> bool:
        """Whether a message can end it."""
        return self.child_step_id is not None or self.signal is not None

    def next_unit(self) -> PendingUnit:
        """Return the unit for the row of the ended wait: that of the branch that continues because of it."""
        parent = self.branch.parent
        return parent.next_unit() if self.group is not None and parent is not None else self.branch.next_unit()

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Group:
    """A gather: the results of its branches in order, and the number of branches that have not ended."""

    __slots__ = ("coded", "future", "left", "results")
    needs_all = True
    """Whether it continues after the last branch, not after the first."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.coded = 0
        """Branches that execute code of their own: until they end, no message or timer alone can end the gather."""
        self.results: list[tuple[Any, BaseException | None]] = [(None, None)] * size
        self.future: asyncio.Future[None] | None = None

    def end(self, index: int, value: Any, error: BaseException | None, execution: Execution) -> None:
        """Store the result of a branch; after the last one the gather continues."""
        self.results[index] = (value, error)
        self.left -= 1
        if not self.left:
            execution.resume(self.future)


@dataclass(frozen=True, slots=True)
class Need:
    """The events that wake a parked function: that many messages, or that instant, whichever comes first."""

    messages: int
    wake_at: int


def need_of(waits: Iterable[Wait]) -> Need:
    """Return the fewest messages and the first instant that could let a branch continue; never too many or too late."""
    messages, wake_at = NO_MESSAGES, NEVER
    counts: dict[int, int] = {}
    instants: dict[int, int] = {}
    for wait in waits:
        group = wait.group
        if group is not None and (not group.needs_all or (wait.by_message and wait.wake_at is not None)):
            group = None  # it counts by itself
        if group is None:
            if wait.by_message:
                messages = 1
            if wait.wake_at is not None:
                wake_at = min(wake_at, wait.wake_at)
        elif not group.coded:
            key = id(group)
            counts[key] = counts.get(key, 0) + wait.by_message
            if wait.wake_at is not None:
                instants[key] = max(instants.get(key, 0), wait.wake_at)
    for key, count in counts.items():
        if count:
            messages = min(messages, count)
        else:
            wake_at = min(wake_at, instants.get(key, NEVER))
    return Need(messages, wake_at)
