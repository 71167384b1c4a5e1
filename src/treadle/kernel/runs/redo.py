"""Redoes an ended step, with its handler or with a given result, in a new run that repeats its dependents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from treadle.evaluator import CannotGive, RunRef, StepRow, list_repeated
from treadle.kernel.functions.service import Functions
from treadle.kernel.functions.steps import HIDDEN, is_after, is_finished, is_function
from treadle.kernel.runs.flows import Flows, check_result
from treadle.kernel.runs.service import Runs
from treadle.lang import Program
from treadle.lang.nodes import Facet, Step
from treadle.model.errors import IllegalMove, InvalidInput, Refused, StepNotFound
from treadle.model.runs import Run, depth_first
from treadle.model.states import RunState
from treadle.model.values import Json, encode


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that the old run has made and the new one makes again."""

    path: str
    name: str
    state: str


class Redos:
    """Redoes steps of the runs of one namespace."""

    def __init__(self, runs: Runs, functions: Functions, flows: Flows) -> None:
        self._runs, self._functions, self._flows = runs, functions, flows

    async def list_calls(self, run: Run, step_id: str, result: Mapping[str, Json] | None) -> list[MadeCall]:
        """The calls that a redo of the step repeats, without its own if a result is given.

        Raises `Refused` for a step that has not ended, and `InvalidInput` for a result that its facet does not declare.
        """
        if is_function(run.flow_id):
            return await self._function_calls(run, step_id, result)
        program = await self._flows.program(run.flow_id)
        row = await self._runs.get_step(run.id, step_id)
        if not row.is_terminal:
            raise Refused(f"The step {row.path} has not ended: continue or fail it instead.")
        if result is not None:
            _check(program, row, result)
        rows = list(
            depth_first(
                await self._runs.list_steps(run.id), lambda each: each.id, lambda each: each.parent_id, lambda each: each.ordinal
            )
        )
        repeated = list_repeated(program, RunRef(id=run.id, workflow=run.workflow), rows, row.id)
        return [
            MadeCall(each.path, each.facet or "", "failed" if each.error is not None else "completed")
            for each in repeated
            if each.is_step and each.is_terminal and _is_call(program, each) and (each.id != row.id or result is None)
        ]

    async def _function_calls(self, run: Run, step_id: str, result: Mapping[str, Json] | None) -> list[MadeCall]:
        if result is not None:
            raise InvalidInput("The step of a function takes no result: its code returns it. Redo it without one.")
        recorded = [each for each in await self._functions.recorded(run.id) if each.kind not in HIDDEN]
        target = next((each for each in recorded if each.id == step_id), None)
        if target is None:
            raise StepNotFound(step_id)
        if not is_finished(target):
            raise Refused(f"The step {target.name} has not ended.")
        again = [each for each in recorded if each is target or (is_finished(each) and is_after(each.place, target.place))]
        return [MadeCall(each.name, each.kind, each.state) for each in again]

    async def redo(self, run: Run, step_id: str, result: Mapping[str, Json] | None, *, actor: str) -> str:
        """Start a run that keeps what does not depend on the step, and cancel the old one unless it has ended; returns its id.

        The old run is held until the new one is stored, so that only one of them goes on. A repeated call with the same result
        returns the same run. A function does not clean up: the new run keeps what it has done.
        """
        await self.list_calls(run, step_id, result)
        held = False
        if not run.finished and run.state != RunState.PAUSED:
            try:
                held = (await self._runs.pause(run.id, actor=actor)).state == RunState.PAUSED
            except IllegalMove:  # it has ended
                pass
        digest = sha256(encode(None if result is None else dict(result)).encode()).hexdigest()[:16]
        try:
            new = await self._runs.fork(run.id, step_id, result=result, idempotency_key=f"redo:{step_id}:{digest}", actor=actor)
        except BaseException as error:
            if held:
                await self._runs.resume(run.id, actor=actor)
            if isinstance(error, CannotGive):
                message = "The step does not call its handler first (it has a script or mixins): redo it without a result."
                raise Refused(message) from None
            raise
        if not (await self._runs.get_run(run.id)).finished:
            reason = f"A step was redone: the run {new.id} continues it."
            await self._runs.cancel(run.id, actor=actor, reason=reason, code="redone", force=True)
        return new.id


def _is_call(program: Program, row: StepRow) -> bool:
    facet = program.find_facet(row.facet or "")
    return facet.is_event if facet is not None else row.facet is not None and row.facet.startswith("sys.")


def _check(program: Program, row: StepRow, result: Mapping[str, Json]) -> None:
    facet = program.find_facet(row.facet or "")
    if not isinstance(facet, Facet) or not facet.is_event or not row.is_step:
        raise InvalidInput(f"The step {row.path} calls no handler: redo it without a result.")
    statement = program.find_node(row.statement_id)
    partial = isinstance(statement, Step) and statement.body is not None
    check_result(program, facet, result, known=row.params, partial=partial)
