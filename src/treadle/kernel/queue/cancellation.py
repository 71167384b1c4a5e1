"""Deferred cancellation: a task of the engine that cancels tasks and runs, stored with the decision that they are not needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from treadle.kernel.queue.deadlines import CancelRun
from treadle.kernel.store.ports import Store
from treadle.model.errors import IllegalMove, RunNotFound, TaskNotFound
from treadle.model.ids import Ref, derived_id
from treadle.model.names import CANCEL, ENGINE_LIST, Lane
from treadle.model.tasks import NewTask, Task
from treadle.model.values import encode


def cancel_task(
    source_id: str,
    namespace: str,
    reason: str,
    tasks: Sequence[str] = (),
    runs: Sequence[str] = (),
    *,
    force: bool = False,
    actor: str = "engine",
    code: str = "canceled",
    delay: int = 0,
    timer: bool = False,
) -> NewTask:
    """The task that cancels these tasks and runs because of the step or run `source_id`, at most once for each source.

    With `force`, functions do not clean up. A `timer` does nothing to a run that has ended, nor to the runs below it.
    """
    payload = {"tasks": list(tasks), "runs": list(runs), "reason": reason, "force": force, "actor": actor, "code": code}
    payload |= {"timer": True} if timer else {}
    lane = Lane(namespace, CANCEL, ENGINE_LIST, CANCEL)
    return NewTask(id=derived_id(source_id, "cancel"), lane=lane, payload=encode(payload), delay=delay)


class CancelTask(Protocol):
    """Cancels a task, as `Queue.cancel` does."""

    def __call__(self, task_id: Ref, *, actor: str, reason: str | None) -> Awaitable[Task]:
        """End the task."""


def cancel_with(store: Store, task: CancelTask, run: Callable[[], CancelRun]) -> Callable[[dict[str, Any]], Awaitable[None]]:
    """Return the handler of such tasks; whatever has ended or is gone stays as it is.

    One that cannot be canceled does not keep the others: its error is raised after them, and the task is retried.
    """

    async def cancel(payload: dict[str, Any]) -> None:
        by: dict[str, Any] = {"actor": payload["actor"], "reason": payload["reason"]}
        of_runs = by | {"code": payload["code"], "force": payload["force"]}
        errors: list[Exception] = []

        async def attempt(canceled: Awaitable[Any]) -> None:
            try:
                await canceled
            except (IllegalMove, TaskNotFound, RunNotFound):
                pass
            except Exception as error:
                errors.append(error)

        for task_id in payload["tasks"]:
            await attempt(task(task_id, **by))
        for run_id in payload["runs"]:
            if payload.get("timer") and ((found := await store.find_run(run_id)) is None or found.finished):
                continue
            await attempt(run()(run_id, **of_runs))
        if errors:
            raise errors[0]

    return cancel
