"""The entry point: applies events to the loaded rows, and returns the changes or the need for more rows.

Restartable: no state is kept between calls. After a `Need` the caller loads the missing rows and calls again with the same
events; it commits `Changes` as a whole, or discards them and calls again later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from treadle.evaluator.blocks import begin_block, child_settled, expand, finish_block
from treadle.evaluator.draft import (
    Draft,
    LimitReached,
    Missing,
    Turn,
    is_built_in_facet,
    is_handled,
    is_waiting,
    note_failure,
    plan_of,
    stop_waiting,
    wait_again,
    withdraw,
)
from treadle.evaluator.records import (
    Changes,
    Errored,
    Event,
    Expand,
    Finished,
    Ignored,
    Limits,
    LoadedRows,
    LogEntry,
    Need,
    Resend,
    RetryStep,
    RunRef,
    Started,
    StepError,
    StepRow,
    Updated,
)
from treadle.evaluator.retry import retry
from treadle.evaluator.states import (
    BLOCK_EXECUTION_BEGIN,
    BLOCK_EXECUTION_CONTINUE,
    EVENT_TRANSMIT,
    FACET_INIT_BEGIN,
    FACET_SCRIPTS_BEGIN,
    STATEMENT_ERROR,
    WORKFLOW,
)
from treadle.evaluator.steps import begin_step, check_result, continue_after_event, continue_after_script, fail_step, part_settled
from treadle.lang.program import Program
from treadle.model.states import RunState

_ENDS = (Finished, Errored)


def advance(
    program: Program, run: RunRef, view: LoadedRows, events: Sequence[Event], limits: Limits | None = None
) -> Changes | Need:
    """Apply the events, in order, and run until everything waits.

    An event for which nothing waits changes nothing and is listed in `Changes.ignored`. One `Need` covers all events. The cost
    is proportional to the changes: the rows of the events' steps, their ancestors and steps that become ready; only the end of a
    foreach block needs all of its items.
    """
    plan, limits = plan_of(program), limits or Limits()
    draft = Draft(plan, run, view, limits)
    missing: list[Missing] = []
    expands = 0
    for event in events:
        if isinstance(event, Expand):
            expands += 1
            if expands > limits.blocks or draft.full or missing:
                draft.again[event.block_id] = None
                continue
        try:
            try:
                reason = _take(draft, event)
                if reason is not None:
                    draft.ignored.append(Ignored(event, reason))
                drain(draft)
            except LimitReached as reached:
                if not missing:
                    return draft.stop(reached)
        except Missing as need:
            missing.append(need)
            draft = Draft(plan, run, view, limits)  # only to collect further needs
    try:
        _withdraw_requested(draft)
    except Missing as need:
        missing.append(need)
    if missing:
        rows = dict.fromkeys(row for need in missing for row in need.rows)
        children = dict.fromkeys(row for need in missing for row in need.children_of)
        blobs = dict.fromkeys(digest for need in missing for digest in need.blobs)
        return Need(tuple(rows), tuple(children), tuple(blobs))
    return draft.changes()


def steps_of(events: Sequence[Event], limits: Limits) -> list[str]:
    """Return the rows that the events are about, for a caller to load with their ancestors and neighbours before the call.

    Blocks that the call will leave for another one are not among them.
    """
    blocks = [event.block_id for event in events if isinstance(event, Expand)]
    return [event.step_id for event in events if not isinstance(event, Expand | Started)] + blocks[: limits.blocks]


def drain(draft: Draft) -> None:
    """Process the agenda until nothing moves, depth first.

    A row is thus begun only after everything before it has ended or waits. A run of any size has few rows that have begun and
    not ended, and when the call is full, few blocks are left for the next one: at most the siblings at each level.
    """
    agenda = draft.agenda
    stack: list[tuple[Turn, str]] = []
    while agenda or stack:
        if agenda:
            agenda.reverse()
            stack += agenda
            agenda.clear()
        turn, row_id = stack.pop()
        row = draft.edit(row_id)
        if turn == "begin":
            if draft.stopping:
                withdraw(draft, row, FACET_INIT_BEGIN if row.is_step else BLOCK_EXECUTION_BEGIN)
            else:
                (begin_step if row.is_step else begin_block)(draft, row)
        elif turn == "settled":
            if row.state is STATEMENT_ERROR:
                note_failure(draft, row)
            parent = draft.edit(row.parent_id or "")
            (part_settled if parent.is_step else child_settled)(draft, parent, row)
        elif draft.stopping:
            _stop_expanding(draft, row)
        else:
            draft.again[row_id] = None


def _withdraw_requested(draft: Draft) -> None:
    """Drop the tasks that this call has requested, if it also found that the run cannot succeed."""
    while draft.tasks and draft.stopping:
        row = draft.edit(next(iter(draft.tasks)))
        stop_waiting(draft, row)
        withdraw(draft, row, row.state)
        drain(draft)


def _stop_expanding(draft: Draft, row: StepRow) -> None:
    if row.open == 0 and not row.is_terminal:
        finish_block(draft, row)


def _take(draft: Draft, event: Event) -> str | None:
    """Apply one event; return the reason if it changes nothing."""
    match event:
        case Started():
            return _start(draft, event)
        case Finished() | Errored() | Updated() | Resend():
            return answer(draft, event)
        case Expand():
            return _expand(draft, event)
        case RetryStep():
            row = draft.find(event.step_id)
            return "there is no such step" if row is None else retry(draft, row)
    assert_never(event)


def _start(draft: Draft, event: Started) -> str | None:
    if draft.find(draft.run.root_id) is not None:
        return "the run has already started"
    facet = draft.plan.program.find_facet(draft.run.workflow)
    if facet is None:
        raise LookupError(f"the program has no workflow {draft.run.workflow}")
    row = draft.create(None, draft.run.root_place, WORKFLOW, facet.id, facet=draft.run.workflow)
    row.params, row.stops = dict(event.inputs), event.stops
    draft.status = RunState.RUNNING
    return None


def _waiting(draft: Draft, event: Finished | Errored | Updated | Resend) -> StepRow | str:
    """Return the row that waits for the event, for editing; or the reason why there is none."""
    row = draft.find(event.step_id)
    if row is None:
        return "there is no such step"
    if row.is_terminal or not is_waiting(draft, row):
        return f"`{row.path}` is not waiting, it is in {row.state}"
    if isinstance(event, _ENDS) and event.task_id is not None and event.task_id != row.task_id:
        return f"`{row.path}` waits for another task"
    return draft.edit(row.id)


def answer(draft: Draft, event: Finished | Errored | Updated | Resend) -> str | None:
    """Apply an event of the row's task; return the reason if the row does not wait for it."""
    row = _waiting(draft, event)
    if isinstance(row, str):
        return row
    match event:
        case Finished():
            _finish(draft, row, event)
        case Errored():
            _err(draft, row, event)
        case Updated() if row.state is not EVENT_TRANSMIT:
            return f"`{row.path}` waits for a script, which has no partial results"
        case Updated():
            row.returns = {**row.returns, **event.partial}
        case Resend():
            wait_again(draft, row)
    return None


def _finish(draft: Draft, row: StepRow, event: Finished) -> None:
    """Give a waiting row its result and continue."""
    stop_waiting(draft, row)
    if row.state is EVENT_TRANSMIT:
        result, wrong = check_result(draft, row, {**row.returns, **event.result})
        if wrong is not None and draft.plan.program.strict:
            fail_step(draft, row, _error(draft, row, f"{wrong} (the flow is strict)", "unexpected_result"), row.state)
            return
        if wrong is not None:
            draft.logs.append(LogEntry(step_id=row.id, path=row.path, warning=wrong))
        row.returns = result
        continue_after_event(draft, row)
    elif row.state is FACET_SCRIPTS_BEGIN:
        row.params = {**row.params, **event.result}
        continue_after_script(draft, row)
    else:
        row.returns = dict(event.result)
        draft.complete(row)


def _err(draft: Draft, row: StepRow, event: Errored) -> None:
    problem, task_id = event.problem, row.task_id
    stop_waiting(draft, row)
    if event.withdrawn:
        if draft.stopping:
            withdraw(draft, row, row.state)
        else:  # a retry came first
            row.round += 1
            wait_again(draft, row)
        return
    error = _error(draft, row, problem.message, problem.type or problem.code)
    if row.is_step:
        fail_step(draft, row, error, row.state)
    else:
        draft.fail(row, error, row.state)
    if task_id is not None and is_handled(draft, row):
        draft.dismissed.append(task_id)


def _error(draft: Draft, row: StepRow, message: str, kind: str) -> StepError:
    origin = "" if is_built_in_facet(draft, row) else "handler" if row.state is EVENT_TRANSMIT else "script"
    return StepError(message=message, type=kind, path=row.path, step_id=row.id, origin=origin)


def _expand(draft: Draft, event: Expand) -> str | None:
    row = draft.find(event.block_id)
    if row is None:
        return "there is no such block"
    block = None if row.is_step else draft.block_of(row)
    if block is None or block.script is not None:
        return f"`{row.path}` has nothing to expand"
    if row.state is BLOCK_EXECUTION_BEGIN:
        row = draft.edit(row.id)
        if draft.stopping:
            withdraw(draft, row, row.state)
        else:
            begin_block(draft, row)
        return None
    if block.foreach is None or row.state is not BLOCK_EXECUTION_CONTINUE or row.expanded >= (row.total or 0):
        return f"`{row.path}` has nothing to expand"
    if draft.stopping:
        _stop_expanding(draft, draft.edit(row.id))
    else:
        expand(draft, draft.edit(row.id), block, block.foreach)
    return None
