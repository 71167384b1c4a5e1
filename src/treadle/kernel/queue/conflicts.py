"""Unique keys that are taken: what a new task or run does about the live one with its key, and the change of a start. Pure."""

from __future__ import annotations

from typing import get_args

import msgspec

from treadle.api.options import OnConflict
from treadle.kernel.queue.decide import blocked
from treadle.kernel.store.units import Requeue
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, Refused
from treadle.model.tasks import Task
from treadle.model.values import shown

REJECT, REPLACE, DEBOUNCE = "reject", "replace", "debounce"


class KeyConflict(msgspec.Struct, frozen=True):
    """The action on a conflict, and the delays of a debounced start in milliseconds."""

    action: str
    delay: int
    max_wait: int | None

    @classmethod
    def of(cls, unique_key: str | None, action: str | None, delay: int, max_wait: Duration | None) -> KeyConflict:
        """Check the options; raise `InvalidInput` if they do not belong together."""
        if action not in (None, *get_args(OnConflict)):
            raise InvalidInput(f"on_conflict is one of {', '.join(get_args(OnConflict))}, not {shown(action)}.")
        if unique_key is None and (action, max_wait) != (None, None):
            raise InvalidInput("on_conflict and max_wait need a unique_key: they are about the live work that has it.")
        if action == DEBOUNCE and not delay:
            raise InvalidInput("Debouncing needs a delay: the time without a call after which the work starts.")
        if action != DEBOUNCE and max_wait is not None:
            raise InvalidInput('max_wait needs on_conflict="debounce".')
        return cls(action or "return", delay, None if max_wait is None else milliseconds(max_wait, "max_wait", positive=True))

    def next_delay(self, created_at: int, now: int) -> int:
        """The delay of a debounced start, which is at most `max_wait` after the first call."""
        return self.delay if self.max_wait is None else max(min(self.delay, created_at + self.max_wait - now), 0)


def key_taken(unique_key: str | None, holder: str = "other work") -> Refused:
    """The error for a unique key that live work has."""
    return Refused(f"The unique key {unique_key} is taken by {holder}; nothing was stored.", code="unique_key_taken")


def has_started(task: Task) -> bool:
    """Whether a worker has claimed the task, or it has ended."""
    return task.finished or task.claim_version > 0


def rescheduled(task: Task, delay: int, now: int, actor: str) -> Requeue:
    """Let a task that has not started do so after the delay; `Refused` (`already_started`) for any other."""
    if has_started(task):
        raise Refused(f"{task.name} has started, so its start cannot be changed.", code="already_started")
    return msgspec.structs.replace(blocked(task, "reschedule", task.blocked_by, now, actor, None), delay=delay or None)
