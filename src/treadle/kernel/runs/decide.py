"""Decisions about a run: from the evaluator's changes, and from results left for later, to the tasks and rows of a unit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from treadle.evaluator import Changes, Errored, Event, Expand, Finished, RequestedTask, Started
from treadle.evaluator.records import NOT_STARTED, StepError, StepRow, status_of
from treadle.evaluator.states import State, StepKind
from treadle.kernel.functions.reads import shown_row
from treadle.kernel.functions.steps import VOID, read_step
from treadle.kernel.store.units import CancelRunTasks, Dismiss, Finish, PutBlob, PutInbox, PutSteps, Row, RunTransition
from treadle.kernel.store.value_store import ValueStore, ref_json, small_text, unwrapped, wrapped
from treadle.model.errors import UnreadableValue
from treadle.model.ids import derived_id
from treadle.model.names import ADVANCE, APPROVAL, DEFAULT_LIST, HANDLER, PARAM, SCRIPT, QueueKey
from treadle.model.outcomes import Problem
from treadle.model.runs import Run, Step
from treadle.model.states import RUN, RunState, StepState
from treadle.model.stored import convert, plain
from treadle.model.tasks import LogLine, NewTask, Preclaimed, Task
from treadle.model.values import BlobRef, Json, decode, decode_object, encode

_ROW_LIMIT = 64 * 1024 * 1024
_ATTRIBUTES = ("params", "returns", "loop")
_STATES: dict[str, State] = {
    **{state.value: state for state in State},
    StepState.COMPLETED: State.STATEMENT_COMPLETE,
    StepState.FAILED: State.STATEMENT_ERROR,
}


def store_step(row: StepRow, value_store: ValueStore, root_id: str) -> tuple[Step, StepRow, list[PutBlob]]:
    """The stored form, the row as it will be read back (large values replaced by references), and the large values."""
    document = small_text(row)
    if document is not None:
        return _stored(row, value_store.encode_text(document)), row, []
    blobs: list[PutBlob] = []
    parts: dict[str, Any] = plain(msgspec.structs.replace(row, params={}, returns={}, loop={}))
    replaced: dict[str, dict[str, Any]] = {}
    for name in _ATTRIBUTES:
        attributes: dict[str, Any] = getattr(row, name)
        if not attributes:
            continue
        folded = value_store.fold(attributes, root_id)
        blobs += folded.blobs
        parts[name] = {
            key: ref_json(value) if isinstance(value, BlobRef) else wrapped(value) for key, value in folded.attributes.items()
        }
        if folded.attributes is not attributes:
            replaced[name] = folded.attributes
    slim = msgspec.structs.replace(row, **replaced) if replaced else row
    return _stored(row, value_store.encode_text(encode(parts, "step", _ROW_LIMIT))), slim, blobs


def _stored(row: StepRow, document: str) -> Step:
    return Step(
        id=row.id,
        run_id=row.run_id,
        parent_id=row.parent_id,
        ordinal=row.ordinal,
        kind=row.kind,
        name=row.name,
        facet=row.facet,
        state=row.state,
        document=document,
    )


def load_step(step: Step, value_store: ValueStore) -> StepRow:
    """Decode a stored row; large values are `BlobRef`s. A step of a function becomes a `FunctionStepRow`."""
    try:
        return _load(step, value_store)
    except UnreadableValue as error:
        raise UnreadableValue(f"The step {step.name} ({step.id}) cannot be read. {error}") from None


def _load(step: Step, value_store: ValueStore) -> StepRow:
    parts = decode_object(value_store.plain(step.document))
    if "statement_id" not in parts:
        return shown_row(read_step(step, value_store), step.run_id)
    for name in _ATTRIBUTES:
        if isinstance(attributes := parts.get(name), dict):
            parts[name] = {key: unwrapped(value) for key, value in attributes.items()}
    attributes = {name: parts.pop(name) for name in _ATTRIBUTES if isinstance(parts.get(name), dict)}
    row = convert(StepRow, parts)
    return msgspec.structs.replace(row, **attributes) if attributes else row


class _Head(msgspec.Struct):
    statement_id: str
    state: State


_read_head = msgspec.json.Decoder(_Head).decode


def statement_of(step: Step, value_store: ValueStore) -> tuple[str, StepState]:
    """The program node and status of a row, without decoding the rest."""
    try:
        head = _read_head(value_store.plain(step.document))
    except (UnreadableValue, msgspec.MsgspecError, UnicodeError):
        row = show_step(step, value_store)
        return row.statement_id, row.status
    return head.statement_id, status_of(head.state)


def show_step(step: Step, value_store: ValueStore) -> StepRow:
    """Decode a stored row for display; an unreadable row shows its known columns and an error."""
    try:
        return load_step(step, value_store)
    except UnreadableValue as error:
        is_known = step.kind in frozenset(StepKind)
        return StepRow(
            id=step.id,
            run_id=step.run_id,
            parent_id=step.parent_id,
            place=step.name,
            statement_id="",
            name=step.name,
            kind=StepKind(step.kind) if is_known else StepKind.STEP,
            facet=step.facet if is_known else step.kind,
            state=_STATES.get(step.state, State.EVENT_TRANSMIT),
            ordinal=step.ordinal,
            error=StepError(message=str(error), type=error.code, path=step.name, step_id=step.id),
        )


VALUE_LIMIT = 64 * 1024 * 1024
"""Limit on the characters of JSON in the attributes of one row; large values are stored separately."""

_MESSAGE_LIMIT = 4096
_ENDS = {RunState.COMPLETED: "succeed", RunState.FAILED: "fail"}


def rows_of(
    run: Run, changes: Changes, value_store: ValueStore, actor: str | None = None, preclaimed: Preclaimed | None = None
) -> tuple[tuple[NewTask, ...], tuple[Row, ...], list[StepRow]]:
    """Build the tasks and rows of the changes, and the step rows as they will be read back.

    `actor` is recorded for a start or retry; `preclaimed` is the owner of the handler tasks.
    """
    rows: list[Row] = []
    stored: list[StepRow] = []
    if changes.created or changes.updated:
        steps = []
        for row in [*changes.created, *changes.updated]:
            step, slim, blobs = store_step(row, value_store, run.root_id)
            steps.append(step)
            stored.append(slim)
            rows += blobs
        rows.append(PutSteps(run.id, tuple(steps), len(changes.created)))
    if changes.removed:
        removed = (store_step(row, value_store, run.root_id)[0] for row in changes.removed)
        rows.append(PutSteps(run.id, tuple(msgspec.structs.replace(step, kind=VOID) for step in removed), 0))
    tasks = [_step_task(run, request, value_store, rows, preclaimed) for request in changes.tasks]
    if changes.again:
        payload = expand_payload(changes.again)
        tasks.append(advance_task(run, derived_id(run.id, f"advance/{run.version + 1}"), payload))
    rows += _transitions(run, changes, value_store, rows, actor)
    if changes.stopped and changes.error is not None:
        error = encode({"code": changes.error.type, "message": changes.error.text}, "error", VALUE_LIMIT)
        rows.append(CancelRunTasks(run.id, actor or "engine", error))
    if changes.doomed:
        later, withdrawal = withdrawn(run, value_store)
        tasks.append(later)
        rows.append(withdrawal)
    if changes.dismissed:
        rows.append(Dismiss(run.id, tuple(changes.dismissed)))
    return tuple(tasks), once(rows), stored


def withdrawn(run: Run, value_store: ValueStore) -> tuple[NewTask, CancelRunTasks]:
    """The row that ends the tasks not in progress of a run that cannot succeed, and the task that advances the run after it."""
    message = "Not started: the run cannot succeed. A retry of the run starts it."
    error = encode({"code": NOT_STARTED, "message": message, "withdrawn": True}, "error", VALUE_LIMIT)
    inbox = value_store.encode_text(encode({"error": error}, "inbox", VALUE_LIMIT))
    return advance_task(run, derived_id(run.id, f"withdrawn/{run.version + 1}")), CancelRunTasks(run.id, "engine", error, inbox)


def once(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows, with repeated large values removed."""
    seen: set[str] = set()
    unique: list[Row] = []
    for row in rows:
        if isinstance(row, PutBlob):
            if row.digest in seen:
                continue
            seen.add(row.digest)
        unique.append(row)
    return tuple(unique)


def _transitions(run: Run, changes: Changes, value_store: ValueStore, rows: list[Row], actor: str | None) -> list[RunTransition]:
    """The transitions from the run's state to the one of the changes; a failed run makes its `retry` first."""
    transitions: list[RunTransition] = []
    state = run.state
    status = changes.status
    if status is None:
        return transitions
    first = {RunState.PENDING.value: "start", RunState.FAILED.value: "retry"}.get(state)
    if first is not None:
        transitions.append(RunTransition(run.id, first, state, RunState.RUNNING, actor=actor))
        state = RunState.RUNNING
    if status in _ENDS and state == RunState.RUNNING:
        transition = _ENDS[status]
        outputs = None
        if changes.outputs is not None:
            outputs, blobs = value_store.pack_known(changes.outputs, run.root_id, "outputs", VALUE_LIMIT)
            rows += blobs
        error = None
        failed_step_id = None
        if changes.error is not None:
            stopped = {"stopped": True} if changes.stopped else {}
            error = encode({"code": changes.error.type, "message": changes.error.text} | stopped, "error", VALUE_LIMIT)
            failed_step_id = changes.error.step_id or None
        transitions.append(
            RunTransition(
                run.id,
                transition,
                state,
                RUN.transitions[(state, transition)],
                outputs=outputs,
                error=error,
                failed_step_id=failed_step_id,
                data=error,
            )
        )
    return transitions


def repair_transition(run: Run, events: Iterable[Event], actor: str | None) -> list[RunTransition]:
    """The transition that names the repaired steps and blocks; none without events."""
    steps = [event.block_id if isinstance(event, Expand) else event.step_id for event in events if not isinstance(event, Started)]
    if not steps:
        return []
    data = encode({"steps": steps}, "data", VALUE_LIMIT)
    return [RunTransition(run.id, "repair", run.state, RUN.transitions[(run.state, "repair")], actor=actor, data=data)]


def _step_task(
    run: Run, request: RequestedTask, value_store: ValueStore, rows: list[Row], preclaimed: Preclaimed | None
) -> NewTask:
    if request.script is not None:
        kind, name = SCRIPT, SCRIPT
        attributes = {f"{PARAM}{param}": value for param, value in request.payload.items()}
        attributes["script"] = msgspec.to_builtins(request.script)
    else:
        kind, name = (APPROVAL, APPROVAL) if request.built_in else (HANDLER, request.facet)
        attributes = request.payload
    text, blobs = value_store.pack_known(attributes, run.root_id, "payload", VALUE_LIMIT)
    rows += blobs
    return NewTask(
        id=request.id,
        queue=QueueKey(run.namespace, kind, run.task_list if request.task_list == DEFAULT_LIST else request.task_list, name),
        payload=text,
        priority=run.priority,
        timeout_for=request.timeout_for,
        policy=request.policy,
        run_id=run.id,
        step_id=request.step_id,
        flow_id=run.flow_id,
        root_id=run.root_id,
        trace_id=run.trace_id,
        fairness_key=run.fairness_key,
        baggage=run.baggage,
        preclaimed=preclaimed if kind == HANDLER else None,
    )


# --- results to be processed later ---

AGAIN_FOR = 100
"""Milliseconds until an advance that could do nothing is tried again."""


def advance_task(of: Run | Task, task_id: str, payload: str = "{}", blocked_by: int = 0, delay: int = 0) -> NewTask:
    """A task that advances the run; built from the run, or from one of its tasks, whose list has workers."""
    return NewTask(
        id=task_id,
        queue=QueueKey(of.namespace, ADVANCE, of.task_list, ADVANCE),
        payload=payload,
        priority=of.priority,
        blocked_by=blocked_by,
        delay=delay,
        run_id=of.id if isinstance(of, Run) else of.run_id,
        flow_id=of.flow_id,
        root_id=of.root_id,
        trace_id=of.trace_id,
    )


def expand_payload(block_ids: Sequence[str]) -> str:
    """The payload of an advance task that expands these blocks."""
    return encode({"expand": list(block_ids)}, "payload", VALUE_LIMIT)


def left_behind(task: Task, finish: Finish, value_store: ValueStore) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
    """The tasks and rows that leave a result for later: the step's inbox, and a task that reads it.

    An advance task that could do nothing leaves another in its place, which is due a little later. These tasks are never held,
    even for a paused run: a held task inserted just after the resume would be held forever.
    """
    if task.kind == ADVANCE:
        return (advance_task(task, derived_id(task.id, f"again/{task.claim_version}"), task.payload, delay=AGAIN_FOR),), ()
    if task.step_id is None:
        return (), ()
    later = advance_task(task, derived_id(task.id, f"advance/{task.claim_version}"))
    return (later,), (inbox_row(task, finish, value_store),)


def inbox_row(task: Task, finish: Finish, value_store: ValueStore) -> PutInbox:
    """The result of the step's task, for the next advance of the run."""
    inbox = encode({"task_id": task.id, "result": finish.result, "error": finish.error}, "inbox", VALUE_LIMIT)
    return PutInbox(task.step_id or "", value_store.encode_text(inbox))


def inbox_event(step_id: str, inbox: str, value_store: ValueStore) -> Event:
    """Decode the result in a step's inbox."""
    stored = decode_object(value_store.plain(inbox))
    if stored.get("error") is None:
        return Finished(step_id, value_store.unfold(stored.get("result")), stored.get("task_id"))
    return errored(step_id, stored["error"], stored.get("task_id"))


def errored(step_id: str, error: str | None, task_id: str | None) -> Errored:
    """The event of a failed task, from its stored error."""
    stored = decode(error) or {}
    problem = Problem(stored.get("code", "failed"), stored.get("message", "failed"), stored.get("type"))
    return Errored(step_id, problem, task_id, stored.get("withdrawn") is True)


# --- log lines ---


def flow_lines(run_id: str, changes: Changes, at: int) -> list[LogLine]:
    """One line per `sys.log` of the changes, and one per warning about a step."""
    return [
        LogLine(
            task_id=entry.step_id,
            at=at,
            level="warning" if entry.warning else "info",
            message=f"{entry.path}: {entry.warning or _shown(entry.values)}"[:_MESSAGE_LIMIT],
            run_id=run_id,
            step_id=entry.step_id,
        )
        for entry in changes.logs
    ]


def _shown(values: dict[str, Json]) -> str:
    """The logged values as JSON; a separately stored value is shown by its size."""
    plain = {name: f"<{value.size} characters>" if isinstance(value, BlobRef) else value for name, value in values.items()}
    return encode(plain, "log", VALUE_LIMIT)
