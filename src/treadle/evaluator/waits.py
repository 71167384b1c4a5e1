"""Rows that wait for a task: the request for the task, and the end of the wait, also by a failure that no catch handles.

After such a failure the run cannot succeed, and unless it was started otherwise, it starts nothing new. Rows that would begin
are withdrawn instead: they fail with the type `not_started`, so that a retry of the run begins them. Rows that wait for a task
wait until it ends; the kernel withdraws the tasks that have not begun.
"""

from __future__ import annotations

from treadle.evaluator.draft import Draft
from treadle.evaluator.records import NOT_STARTED, ScriptRequest, StepError, StepRow, TaskRequest, Value
from treadle.evaluator.states import (
    BLOCK,
    BLOCK_EXECUTION_BEGIN,
    CATCH_CONTINUE,
    EVENT_TRANSMIT,
    FACET_INIT_BEGIN,
    FACET_SCRIPTS_BEGIN,
    ITEM,
    State,
)
from treadle.lang.nodes import Block, Script, Step
from treadle.model.ids import derived_id


def await_handler(draft: Draft, row: StepRow) -> None:
    """Wait for the handler of the row's event facet; it receives all parameters."""
    row.state = EVENT_TRANSMIT
    _request(draft, row, "event", row.params)


def await_script(draft: Draft, row: StepRow, script: Script, owner: StepRow) -> None:
    """Wait for a script that runs on its owner's attributes: a block's script also sees an event's results."""
    row.state = BLOCK_EXECUTION_BEGIN if row.kind is BLOCK else FACET_SCRIPTS_BEGIN
    place = script.location
    request = ScriptRequest(
        code=script.code,
        language=script.language,
        source=place.source if place else None,
        line=(place.code_line or place.line) if place else 1,
    )
    _request(draft, row, "script", {**owner.returns, **owner.params}, request)


def _request(draft: Draft, row: StepRow, what: str, payload: dict[str, Value], script: ScriptRequest | None = None) -> None:
    owner = row if row.facet is not None or row.parent_id is None else draft.get(row.parent_id)
    row.task_id = task_id_of(row, what)
    draft.tasks[row.id] = TaskRequest(
        id=row.task_id,
        step_id=row.id,
        facet=owner.facet or "",
        payload=dict(payload),
        timeout_for=None if script else row.timeout_for,
        policy=None if script else row.policy,
        script=script,
        built_in=script is None and is_built_in_facet(draft, row),
    )


def is_built_in_facet(draft: Draft, row: StepRow) -> bool:
    """Return whether the engine itself has the handler of the row's facet."""
    return row.facet not in draft.plan.program.facets and draft.facet_of(row) is not None


def task_id_of(row: StepRow, what: str = "event") -> str:
    """Return the id of the row's current or latest task since its last retry."""
    return derived_id(row.run_id, f"{row.place}#{what}-{row.round}")


def is_waiting(draft: Draft, row: StepRow) -> bool:
    """Return whether a row waits for a task."""
    if row.state is BLOCK_EXECUTION_BEGIN:
        return draft.block_of(row).script is not None
    return row.state in (EVENT_TRANSMIT, FACET_SCRIPTS_BEGIN)


def stop_waiting(draft: Draft, row: StepRow) -> None:
    """End the wait; drop a task that this call has requested."""
    row.task_id = None
    draft.tasks.pop(row.id, None)


def wait_again(draft: Draft, row: StepRow) -> None:
    """Request the task again: the same one, unless the row has been retried since."""
    if row.state is EVENT_TRANSMIT:
        await_handler(draft, row)
        return
    facet = draft.facet_of(row)
    script = facet.pre_script if row.is_step and facet else draft.block_of(row).script
    if script is not None:
        await_script(draft, row, script, row if row.is_step else draft.get(row.parent_id or ""))


# --- failures that no catch handles ----------------------------------------------------------------------------------


def next_catch(draft: Draft, row: StepRow, failed_in: State) -> tuple[int, Block] | None:
    """Return the catch clause of a step that handles its next failure (the facet's, then its own), and its number.

    A facet's catch does not see errors of arguments, because those belong to its caller; a step's own catch sees all.
    """
    if draft.is_stopped(row):
        return None
    statement = draft.statement_of(row)
    facet = draft.facet_of(row)
    inner = facet.catch if facet is not None and failed_in is not FACET_INIT_BEGIN else None
    clauses = (inner, statement.catch if isinstance(statement, Step) else None)
    return next(((n, clause) for n, clause in enumerate(clauses) if n >= row.caught and clause is not None), None)


def collecting(block: Block, row: StepRow) -> str | None:
    """Return the return that collects the errors of a foreach's items, if it collects them."""
    return block.foreach.failed if block.foreach is not None and row.kind is not ITEM else None


def is_handled(draft: Draft, row: StepRow) -> bool:
    """Return whether a catch or a collecting foreach above a failed row will handle the failure, or its own catch does so now."""
    if draft.stopping:
        return False
    if row.state is CATCH_CONTINUE:
        return True
    while row.parent_id is not None:
        row = draft.get(row.parent_id)
        if row.is_step and next_catch(draft, row, row.state) is not None:
            return True
        if not row.is_step and collecting(draft.block_of(row), row) is not None and not draft.is_stopped(row):
            return True
    return False


def note_failure(draft: Draft, row: StepRow) -> None:
    """Record on the root that the run cannot succeed, if nothing above a failed row handles the failure.

    Of several failures, the one with the first path: the record does not depend on their order.
    """
    doom, error = draft.get(draft.run.root_id).doom, row.error
    known = doom is not None and (draft.stopping or error is None or doom.path <= error.path)
    if not known and not (error is not None and error.stopped) and not is_handled(draft, row):
        root = draft.edit(draft.run.root_id)
        root.doom, draft.doomed = error, root.stops


def withdraw(draft: Draft, row: StepRow, failed_in: State, uncaught: StepError | None = None) -> None:
    """End a row that has not begun, or whose catch has not begun to handle `uncaught`; a retry continues in `failed_in`."""
    doom = draft.get(draft.run.root_id).doom
    message = f"not started, because the run will fail: {doom.text if doom else ''}"
    if uncaught is not None:
        message = f"{uncaught.message} (not caught, because the run will fail)"
    draft.fail(row, StepError(message=message, type=NOT_STARTED, path=row.path, step_id=row.id, stopped=True), failed_in)
