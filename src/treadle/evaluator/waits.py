"""Rows that wait for a task: the request for the task, and the end of the wait."""

from __future__ import annotations

from treadle.evaluator.draft import Draft
from treadle.evaluator.records import ScriptRequest, StepRow, TaskRequest, Value
from treadle.evaluator.states import BLOCK, BLOCK_EXECUTION_BEGIN, EVENT_TRANSMIT, FACET_SCRIPTS_BEGIN
from treadle.lang.program import Script
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
