"""Cancellation of function runs: the request that lets the code clean up, and the policies of child runs.

The request is in the checkpoint of the function's own task, which the same unit takes from its holder and makes ready: the next
claim replays the function, and `Canceled` is raised at the operation at which it had arrived. A timer of the engine ends the run
if its cleanup takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from treadle.kernel.functions.steps import START, Recorded, find_readable
from treadle.kernel.queue.cancellation import cancel_task
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import LimitTask, Park, Row
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput, UnreadableValue
from treadle.model.ids import derived_id
from treadle.model.runs import Run
from treadle.model.states import Hold, TaskState
from treadle.model.stored import Stored, convert, plain
from treadle.model.tasks import NewTask, Task
from treadle.model.user_values import shown
from treadle.model.values import decode_object, encode

CLEANUP_FOR = 60_000
"""Default limit of a cleanup in milliseconds."""

ABANDON, CANCEL, TERMINATE = "abandon", "cancel", "terminate"
POLICIES = (CANCEL, TERMINATE, ABANDON)
"""The effect of the end of a run on a child: it is canceled, it is ended without cleanup, or nothing. Without a policy, the child
is canceled if its parent is, and continues if its parent completes or fails."""

CleanupHere = Callable[[str], int | None]
"""Returns the limit of the cleanup of a function that is registered in this process (0: it has none), or None."""

_CANCEL, _CLEANUP_FOR = "cancel", "cleanup_for"


class CancelRequest(Stored, frozen=True):
    """A request to cancel a run after its cleanup."""

    actor: str
    reason: str | None
    code: str
    until: int
    """The instant at which the run ends anyway."""

    @property
    def message(self) -> str:
        """The reason, as the error of the run states it."""
        return self.reason or f"Canceled by {self.actor}."

    @property
    def text(self) -> str:
        """The state of the run, for people."""
        return f"is canceled ({self.message.rstrip('.')}) and cleans up until {as_text(self.until)} at the latest"


def check_policy(policy: str | None) -> str | None:
    """Return the policy of a child run, or raise `InvalidInput`."""
    if policy is not None and policy not in POLICIES:
        raise InvalidInput(f"on_parent_close is {', '.join(POLICIES)} or None, not {shown(policy)}.")
    return policy


# --- the checkpoint of the function's task ---


def read_note(checkpoint: str | None) -> dict[str, Any]:
    """The note in the checkpoint of a function's task; {} for one that is damaged, so that its run can continue and be ended."""
    with suppress(UnreadableValue):
        return decode_object(checkpoint)
    return {}


def read_request(task: Task) -> CancelRequest | None:
    """The request to cancel the function that this task executes."""
    if (found := read_note(task.checkpoint).get(_CANCEL)) is not None:
        with suppress(UnreadableValue):
            return convert(CancelRequest, found)
    return None


def noted(checkpoint: str | None, cleanup_for: int, request: CancelRequest | None) -> str:
    """The checkpoint with the limit of the function's cleanup, and the request that it carries on."""
    note = read_note(checkpoint)
    note[_CLEANUP_FOR] = cleanup_for
    if request is not None:
        note[_CANCEL] = plain(request)
    return encode(note)


def cleanup_for(task: Task, here: CleanupHere) -> int:
    """The limit of the cleanup of the function that this task executes, in milliseconds; 0 if it has none, or has not begun.

    A function whose code is unknown may have one: its workers know.
    """
    if task.finished or (task.claim_version == 0 and task.scope is None):
        return 0
    if (known := here(task.name)) is not None:
        return known
    found = read_note(task.checkpoint).get(_CLEANUP_FOR)
    return found if isinstance(found, int) else CLEANUP_FOR


def requested(task: Task, request: CancelRequest, limit: int) -> tuple[Park, tuple[Row, ...]]:
    """Take the function's task from its holder, if it has one, and make it ready, with the request."""
    park = Park(
        "resume",
        TaskState.PENDING,
        task.attempt,
        task.failures,
        task.takeovers,
        hold=task.hold & Hold.LIST_PAUSED,
        checkpoint=noted(task.checkpoint, limit, request),
        actor=request.actor,
        data=encode({"reason": f"The run is canceled, and cleans up: {request.message}"}),
    )
    return park, () if task.limit_key is None else (LimitTask(task.id, None),)


def cleanup_timer(run: Run, request: CancelRequest, limit: int) -> NewTask:
    """The task that ends the run when its cleanup has taken too long."""
    reason = f"{request.message.rstrip('.')}. Its cleanup did not end within {limit / 1000:g} s."
    return cancel_task(
        derived_id(run.id, "cleanup"),
        run.namespace,
        reason,
        runs=[run.id],
        force=True,
        actor=request.actor,
        code=request.code,
        delay=limit,
        timer=True,
    )


# --- children ---


def closing_tasks(run_id: str, namespace: str, children: Sequence[Recorded]) -> tuple[NewTask, ...]:
    """The tasks that apply their policies to the children of a run that ends by its own code: the steps that started them."""
    made = []
    for policy in (CANCEL, TERMINATE):
        if runs := [each.task_id for each in children if each.on_parent_close == policy and each.task_id is not None]:
            reason = f"Its parent, the run {run_id}, has ended."
            made.append(cancel_task(derived_id(run_id, policy), namespace, reason, runs=runs, force=policy == TERMINATE))
    return tuple(made)


async def find_policy(store: Store, value_store: ValueStore, child: Run) -> str | None:
    """The policy with which a child run was started; None if its step is damaged."""
    step = None if child.parent_step_id is None else await store.find_step(child.parent_step_id)
    recorded = None if step is None or step.kind != START else find_readable(step, value_store)
    return None if recorded is None else recorded.on_parent_close
