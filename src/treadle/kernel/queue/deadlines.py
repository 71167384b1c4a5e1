"""Deadlines of runs: an instant at which an unfinished run is canceled, by a task of its own that waits for it.

The timer is the engine's own task, so a deadline survives every crash and passes while the run is paused. The end of the run
removes the timer in the same commit. A retry of a run removes its deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from treadle.kernel.store.ports import Store
from treadle.model.clock import Duration, as_text, instant, milliseconds, parse_duration
from treadle.model.errors import IllegalMove, InvalidPolicy, RunNotFound
from treadle.model.ids import Ref
from treadle.model.names import ENGINE_LIST, RUN_DEADLINE, Lane, handles
from treadle.model.runs import Run, deadline_task_id
from treadle.model.tasks import NewTask
from treadle.model.values import encode

EXCEEDED = "deadline_exceeded"
"""The error code of a run that its deadline ended."""

Defaults = Sequence[tuple[str, int]]
"""Names or globs of workflows and functions, and the milliseconds that their runs may take; the first match counts."""


async def find_deadline(
    store: Store, name: str, deadline: Duration | str | None, at: datetime | None, defaults: Defaults = ()
) -> tuple[int | None, int]:
    """Return the deadline of a new run as an instant, or None, and the store's time.

    `deadline` is a duration from now, `at` an instant. Raises `InvalidPolicy` for both, and for one that has passed.
    """
    if deadline is not None and at is not None:
        raise InvalidPolicy("Give either deadline, a duration, or deadline_at, a time, not both.")
    if at is not None:
        found, now = instant(at, "deadline_at"), await store.now()
        if found <= now:
            raise InvalidPolicy(f"The deadline must be in the future; {as_text(found)} has passed.")
        return found, now
    if deadline is None:
        wait_for = next((each for pattern, each in defaults if handles((pattern,), name)), None)
    else:
        wait_for = milliseconds(
            parse_duration(deadline, "deadline") if isinstance(deadline, str) else deadline, "deadline", positive=True
        )
    if wait_for is None:
        return None, 0
    now = await store.now()
    return now + wait_for, now


def deadline_tasks(run: Run, now: int) -> tuple[NewTask, ...]:
    """The timer of the run's deadline, if it has one, to be stored with the run."""
    if run.deadline_at is None:
        return ()
    return (
        NewTask(
            id=deadline_task_id(run.id),
            lane=Lane(run.namespace, RUN_DEADLINE, ENGINE_LIST, RUN_DEADLINE),
            payload=encode({"run_id": run.id}),
            delay=max(run.deadline_at - now, 1),
            trace_id=run.trace_id,
        ),
    )


class CancelRun(Protocol):
    """Cancels a run, as `Runs.cancel` does."""

    def __call__(self, run_id: Ref, *, actor: str, reason: str | None, code: str, force: bool = False) -> Awaitable[Run]:
        """End the run and everything in it; a function cleans up first, unless `force`."""


def expire_with(store: Store, cancel: Callable[[], CancelRun]) -> Callable[[dict[str, Any]], Awaitable[None]]:
    """Return the handler of timers: it cancels a run whose deadline has passed; doing so twice is a no-op."""

    async def expire(payload: dict[str, Any]) -> None:
        run = await store.find_run(payload["run_id"])
        if run is None or run.finished or run.deadline_at is None:
            return
        reason = f"The deadline of the run passed at {as_text(run.deadline_at)}."
        try:
            await cancel()(run.id, actor="deadline", reason=reason, code=EXCEEDED)
        except (IllegalMove, RunNotFound):
            pass  # it has ended meanwhile

    return expire
