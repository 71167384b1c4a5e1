"""Decisions about function runs: the rows that begin, pause, resume, cancel and end a run, and the messages between runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.kernel.functions.steps import FLOW_PREFIX, VALUE_LIMIT, VOID, Recorded, lane_name, make_step
from treadle.kernel.store.records import PutMessage
from treadle.kernel.store.units import CancelRunTasks, Finish, HoldRun, MoveRun, PutRun, Row, tag_rows
from treadle.kernel.store.value_store import ValueStore, small_text
from treadle.model.errors import InvalidInput
from treadle.model.ids import derived_id
from treadle.model.names import FUNCTION, Lane, check_name
from treadle.model.records import Message
from treadle.model.runs import Run, Step
from treadle.model.states import RunState, TaskState
from treadle.model.tags import Tags, check_tags
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode, encode

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
    tags: Tags | None = None,
    continues: Run | None = None,
) -> tuple[Run, NewTask, tuple[Row, ...]]:
    """A new run, the task that executes it, and its rows; it is running from the start. `continues`: the link before it."""
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
    root_id = root_id or run_id
    text, blobs = value_store.pack(dict(payload or {}), root_id, "payload", payload_limit)
    flow_id = f"{FLOW_PREFIX}{lane_name(name, version)}"
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
        chain_id=None if continues is None else continues.chain_id or continues.id,
        link=0 if continues is None else continues.link + 1,
    )
    task = own_task(run, version, derived_id(run_id, "task"), scope)
    started = MoveRun(run_id, "start", RunState.PENDING, RunState.RUNNING, actor=actor)
    return run, task, (*blobs, PutRun(run), started, *tag_rows("run", run_id, check_tags(tags)))


def own_task(run: Run, version: int, task_id: str, scope: str | None = None) -> NewTask:
    """The task that executes the run; `scope` marks a run that already has steps."""
    return NewTask(
        id=task_id,
        lane=Lane(run.namespace, FUNCTION, run.task_list, lane_name(run.workflow, version)),
        payload=run.inputs,
        priority=run.priority,
        run_id=run.id,
        flow_id=f"{FLOW_PREFIX}{lane_name(run.workflow, version)}",
        scope=scope,
        root_id=run.root_id,
        trace_id=run.trace_id,
        fairness_key=run.fairness_key,
    )


def task_message(task: Task, finish: Finish, value_store: ValueStore) -> PutMessage:
    """The message with the end of a child task, for the waiting function; the result is in stored form."""
    body = {"state": finish.state, "result": finish.result}
    if finish.error is not None:
        body["error"] = decode(finish.error)
    text = value_store.seal(small_text(body) or encode(body, "message", 2 * VALUE_LIMIT))
    return PutMessage(Message(id=task.id, run_id=task.run_id or "", step_id=task.step_id, body=text))


def run_message(run: Run, state: str, outputs: str | None, error: str | None, value_store: ValueStore) -> tuple[PutMessage, ...]:
    """The message with the end of a child run, for the function that started it, if any."""
    if run.parent_step_id is None or run.parent_id is None:
        return ()
    body = {"state": state, "run_id": run.id, "result": outputs, "error": decode(error)}
    text = value_store.seal(encode(body, "message", 2 * VALUE_LIMIT))
    return (PutMessage(Message(id=run.id, run_id=run.parent_id, step_id=run.parent_step_id, body=text)),)


_ENDS = {TaskState.FAILED: ("fail", RunState.FAILED), TaskState.CANCELED: ("cancel", RunState.CANCELED)}


def end_with_task(run: Run, finish: Finish, value_store: ValueStore) -> tuple[Row, ...]:
    """The end of a run together with its own task, when the function did not return.

    Only for running or paused runs. A paused run cannot fail: it is canceled.
    """
    move, state = _ENDS.get(TaskState(finish.state), ("fail", RunState.FAILED))
    if run.state == RunState.PAUSED and move == "fail":
        move, state = "cancel", RunState.CANCELED
    moved = MoveRun(run.id, move, run.state, state, actor=finish.actor, error=finish.error, data=finish.error)
    return (moved, *run_message(run, state, None, finish.error, value_store))


def voided(recorded: Iterable[Recorded], run_id: str, value_store: ValueStore) -> tuple[Step, ...]:
    """The void rows of steps to be repeated."""
    steps = []
    for each in recorded:
        each.kind = VOID
        steps.append(make_step(run_id, each, value_store))
    return tuple(steps)


def paused_rows(runs: Sequence[Run], actor: str) -> list[Row]:
    """Rows that pause the runs and hold their tasks."""
    rows: list[Row] = []
    for run in runs:
        rows += [MoveRun(run.id, "pause", run.state, RunState.PAUSED, actor=actor), HoldRun(run.id, True)]
    return rows


def resumed_rows(runs: Sequence[Run], actor: str) -> list[Row]:
    """Rows that resume the runs and release their tasks."""
    rows: list[Row] = []
    for run in runs:
        rows += [MoveRun(run.id, "resume", run.state, RunState.RUNNING, actor=actor), HoldRun(run.id, False)]
    return rows


def canceled_rows(runs: Sequence[Run], actor: str, error: str, value_store: ValueStore, but: str | None = None) -> list[Row]:
    """Rows that end the runs and all their tasks; of the run `but` only the tasks."""
    rows: list[Row] = []
    ended = {run.id for run in runs}
    for run in runs:
        if run.id != but:
            rows.append(MoveRun(run.id, "cancel", run.state, RunState.CANCELED, actor=actor, error=error, data=error))
        if run.id != but and run.parent_id not in ended:
            rows += run_message(run, RunState.CANCELED, None, error, value_store)
        rows.append(CancelRunTasks(run.id, actor, error))
    return rows
