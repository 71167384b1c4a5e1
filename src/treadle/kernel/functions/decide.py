"""Decisions about function runs: the rows that begin, pause, resume, cancel and end a run, and the messages between runs. Pure.

A request to cancel is in the checkpoint of the function's own task, which the same unit takes from its holder and makes ready: the
next claim replays the function, and `Canceled` is raised at the operation at which it had arrived. A timer of the engine ends the
run if its cleanup takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from treadle.kernel.functions.steps import START, VALUE_LIMIT, VOID, Recorded, find_readable, make_step, queue_name
from treadle.kernel.queue.engine_tasks import cancel_task
from treadle.kernel.queue.service import limit_fields
from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import PutMessage
from treadle.kernel.store.units import BlockRun, CancelRunTasks, Finish, LimitTask, PutRun, Requeue, Row, RunTransition, tag_rows
from treadle.kernel.store.value_store import ValueStore, small_text
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput, UnreadableValue
from treadle.model.ids import derived_id
from treadle.model.names import FLOW_PREFIX, FUNCTION, QueueKey, check_name
from treadle.model.records import Message
from treadle.model.runs import Run, Step
from treadle.model.states import BlockReason, RunState, TaskState
from treadle.model.stored import Stored, convert, plain
from treadle.model.tags import Tags, check_tags
from treadle.model.tasks import NewTask, Task, TaskLimit
from treadle.model.values import Json, decode, decode_object, encode, shown

REPLAYED = "replay"
"""The scope of a function's unclaimed task whose run already has steps: forked, or adopted by another version."""


def new_run(
    *,
    run_id: str,
    namespace: str,
    name: str,
    version: int,
    payload: Mapping[str, Json] | None,
    task_list: str,
    priority: int,
    value_store: ValueStore,
    payload_limit: int,
    root_id: str | None = None,
    trace_id: str | None = None,
    idempotency_key: str | None = None,
    parent_id: str | None = None,
    parent_step_id: str | None = None,
    scope: str | None = None,
    steps: int = 0,
    actor: str | None = None,
    deadline_at: int | None = None,
    fairness_key: str | None = None,
    baggage: str | None = None,
    tags: Tags | None = None,
    continues: Run | None = None,
    limits_for: Callable[[str, Mapping[str, Any]], Mapping[str, TaskLimit]] = lambda name, payload: {},
) -> tuple[Run, NewTask, tuple[Row, ...]]:
    """A new run, the task that executes it, and its rows; it is running from the start. `continues`: the link before it."""
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
    root_id = root_id or run_id
    text, blobs = value_store.pack(dict(payload or {}), root_id, "payload", payload_limit)
    flow_id = f"{FLOW_PREFIX}{queue_name(name, version)}"
    run = Run(
        id=run_id,
        namespace=namespace,
        kind="function",
        flow_id=flow_id,
        workflow=name,
        task_list=check_name(task_list, "task list"),
        priority=priority,
        inputs=text,
        idempotency_key=idempotency_key,
        parent_id=parent_id,
        parent_step_id=parent_step_id,
        root_id=root_id,
        trace_id=trace_id or run_id,
        steps=steps,
        deadline_at=deadline_at,
        fairness_key=fairness_key,
        baggage=baggage,
        lineage_id=None if continues is None else continues.lineage_id or continues.id,
        link=0 if continues is None else continues.link + 1,
    )
    task = own_task(run, version, derived_id(run_id, "task"), scope)
    task = replace(task, **limit_fields(limits_for(task.queue.name, payload or {})))
    started = RunTransition(run_id, "start", RunState.PENDING, RunState.RUNNING, actor=actor)
    return run, task, (*blobs, PutRun(run), started, *tag_rows("run", run_id, check_tags(tags)))


def own_task(run: Run, version: int, task_id: str, scope: str | None = None) -> NewTask:
    """The task that executes the run; `scope` marks a run that already has steps."""
    return NewTask(
        id=task_id,
        queue=QueueKey(run.namespace, FUNCTION, run.task_list, queue_name(run.workflow, version)),
        payload=run.inputs,
        priority=run.priority,
        run_id=run.id,
        flow_id=f"{FLOW_PREFIX}{queue_name(run.workflow, version)}",
        scope=scope,
        root_id=run.root_id,
        trace_id=run.trace_id,
        fairness_key=run.fairness_key,
        baggage=run.baggage,
    )


def task_message(task: Task, finish: Finish, value_store: ValueStore) -> PutMessage:
    """The message with the end of a child task, for the waiting function; the result is in stored form."""
    document = {"state": finish.state, "result": finish.result}
    if finish.error is not None:
        document["error"] = decode(finish.error)
    text = value_store.encode_text(small_text(document) or encode(document, "message", 2 * VALUE_LIMIT))
    return PutMessage(Message(id=task.id, run_id=task.run_id or "", step_id=task.step_id, document=text))


def run_message(run: Run, state: str, outputs: str | None, error: str | None, value_store: ValueStore) -> tuple[PutMessage, ...]:
    """The message with the end of a child run, for the function that started it, if any."""
    if run.parent_step_id is None or run.parent_id is None:
        return ()
    document = {"state": state, "run_id": run.id, "result": outputs, "error": decode(error)}
    text = value_store.encode_text(encode(document, "message", 2 * VALUE_LIMIT))
    return (PutMessage(Message(id=run.id, run_id=run.parent_id, step_id=run.parent_step_id, document=text)),)


_ENDS = {TaskState.FAILED: ("fail", RunState.FAILED), TaskState.CANCELED: ("cancel", RunState.CANCELED)}


def end_with_task(run: Run, finish: Finish, value_store: ValueStore) -> tuple[Row, ...]:
    """The end of a run together with its own task, when the function did not return.

    Only for running or paused runs. A paused run cannot fail: it is canceled.
    """
    transition, state = _ENDS.get(TaskState(finish.state), ("fail", RunState.FAILED))
    if run.state == RunState.PAUSED and transition == "fail":
        transition, state = "cancel", RunState.CANCELED
    moved = RunTransition(run.id, transition, run.state, state, actor=finish.actor, error=finish.error, data=finish.error)
    return (moved, *run_message(run, state, None, finish.error, value_store))


def voided(recorded: Iterable[Recorded], run_id: str, value_store: ValueStore) -> tuple[Step, ...]:
    """The void rows of steps to be repeated."""
    steps = []
    for step in recorded:
        step.kind = VOID
        steps.append(make_step(run_id, step, value_store))
    return tuple(steps)


def held_rows(runs: Sequence[Run], actor: str, *, blocked_by: bool) -> list[Row]:
    """Rows that pause the runs and hold their tasks, or resume the runs and release their tasks."""
    transition, state = ("pause", RunState.PAUSED) if blocked_by else ("resume", RunState.RUNNING)
    rows: list[Row] = []
    for run in runs:
        rows += [RunTransition(run.id, transition, run.state, state, actor=actor), BlockRun(run.id, blocked_by)]
    return rows


def canceled_rows(runs: Sequence[Run], actor: str, error: str, value_store: ValueStore, but: str | None = None) -> list[Row]:
    """Rows that end the runs and all their tasks; of the run `but` only the tasks."""
    rows: list[Row] = []
    ended = {run.id for run in runs}
    for run in runs:
        if run.id != but:
            rows.append(RunTransition(run.id, "cancel", run.state, RunState.CANCELED, actor=actor, error=error, data=error))
        if run.id != but and run.parent_id not in ended:
            rows += run_message(run, RunState.CANCELED, None, error, value_store)
        rows.append(CancelRunTasks(run.id, actor, error))
    return rows


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
    if (request := read_note(task.checkpoint).get(_CANCEL)) is not None:
        with suppress(UnreadableValue):
            return convert(CancelRequest, request)
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
    if (limit := here(task.name)) is not None:
        return limit
    noted_limit = read_note(task.checkpoint).get(_CLEANUP_FOR)
    return noted_limit if isinstance(noted_limit, int) else CLEANUP_FOR


def requested(task: Task, request: CancelRequest, limit: int) -> tuple[Requeue, tuple[Row, ...]]:
    """Take the function's task from its holder, if it has one, and make it ready, with the request."""
    requeue = Requeue(
        "resume",
        TaskState.PENDING,
        task.attempt,
        task.failures,
        task.takeovers,
        blocked_by=task.blocked_by & BlockReason.LIST_PAUSED,
        checkpoint=noted(task.checkpoint, limit, request),
        actor=request.actor,
        data=encode({"reason": f"The run is canceled, and cleans up: {request.message}"}),
    )
    return requeue, () if task.limit_key is None else (LimitTask(task.id, None),)


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
    tasks = []
    for policy in (CANCEL, TERMINATE):
        if runs := [child.task_id for child in children if child.on_parent_close == policy and child.task_id is not None]:
            reason = f"Its parent, the run {run_id}, has ended."
            tasks.append(cancel_task(derived_id(run_id, policy), namespace, reason, runs=runs, force=policy == TERMINATE))
    return tuple(tasks)


async def find_policy(store: Store, value_store: ValueStore, child: Run) -> str | None:
    """The policy with which a child run was started; None if its step is damaged."""
    step = None if child.parent_step_id is None else await store.runs.find_step(child.parent_step_id)
    recorded = None if step is None or step.kind != START else find_readable(step, value_store)
    return None if recorded is None else recorded.on_parent_close
