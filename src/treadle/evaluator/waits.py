"""Rows that wait for the world: the tasks that are wished for, and the end of the wait."""

from __future__ import annotations

from treadle.evaluator.draft import Draft
from treadle.evaluator.records import ScriptWish, StepRow, TaskWish, Value
from treadle.evaluator.states import State, StepKind
from treadle.lang.program import Script
from treadle.model.ids import derived_id


def await_handler(draft: Draft, row: StepRow) -> None:
    """Rest until the handler of the row's event facet has answered; it gets all parameters."""
    row.state = State.EVENT_TRANSMIT
    _wish(draft, row, "event", row.params)


def await_script(draft: Draft, row: StepRow, script: Script, owner: StepRow) -> None:
    """Rest until a script has run on what its owner has: a block's script sees an event's results as well."""
    row.state = State.BLOCK_EXECUTION_BEGIN if row.kind is StepKind.BLOCK else State.FACET_SCRIPTS_BEGIN
    place = script.location
    wish = ScriptWish(
        code=script.code,
        language=script.language,
        source=place.source if place else None,
        line=(place.code_line or place.line) if place else 1,
    )
    _wish(draft, row, "script", {**owner.returns, **owner.params}, wish)


def _wish(draft: Draft, row: StepRow, what: str, payload: dict[str, Value], script: ScriptWish | None = None) -> None:
    owner = row if row.facet is not None or row.parent_id is None else draft.get(row.parent_id)
    row.task_id = task_id_of(row, what)
    draft.tasks[row.id] = TaskWish(
        id=row.task_id,
        step_id=row.id,
        facet=owner.facet or "",
        payload=dict(payload),
        timeout_for=None if script else row.timeout_for,
        script=script,
    )


def task_id_of(row: StepRow, what: str = "event") -> str:
    """The id of the task that the row asks for, or asked for last, since it was last retried."""
    return derived_id(row.run_id, f"{row.place}#{what}-{row.round}")


def is_waiting(draft: Draft, row: StepRow) -> bool:
    """Whether a row waits for a result from outside."""
    if row.state is State.BLOCK_EXECUTION_BEGIN:
        return draft.block_of(row).script is not None
    return row.state in (State.EVENT_TRANSMIT, State.FACET_SCRIPTS_BEGIN)


def stop_waiting(draft: Draft, row: StepRow) -> None:
    """The answer is there; a task that this call wished for is not needed any more."""
    row.task_id = None
    draft.tasks.pop(row.id, None)


def wait_again(draft: Draft, row: StepRow) -> None:
    """Wish for the task once more: the same one, unless the row has been retried since."""
    if row.state is State.EVENT_TRANSMIT:
        await_handler(draft, row)
        return
    facet = draft.facet_of(row)
    script = facet.pre_script if row.is_step and facet else draft.block_of(row).script
    if script is not None:
        await_script(draft, row, script, row if row.is_step else draft.get(row.parent_id or ""))
