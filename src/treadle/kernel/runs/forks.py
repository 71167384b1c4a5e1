"""Forks of runs: the calls that a fork repeats, the right result of an ended step, and the replacement of the old run."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from hashlib import sha256

from treadle.api.runs import RepeatedCall
from treadle.evaluator import CannotGive, RunRef, StepRow, list_repeated
from treadle.kernel.functions.service import Functions
from treadle.kernel.functions.steps import HIDDEN, is_after, is_finished
from treadle.kernel.runs.flows import Flows, check_result
from treadle.kernel.runs.records import StartedRun
from treadle.kernel.runs.service import Runs
from treadle.lang.nodes import Facet
from treadle.lang.nodes import Step as ProgramStep
from treadle.lang.program import Program
from treadle.model.errors import IllegalTransition, InvalidInput, Refused, not_found
from treadle.model.names import is_function
from treadle.model.runs import Run, depth_first
from treadle.model.states import RunState
from treadle.model.values import Json, encode


class Forks:
    """Forks of runs of workflows and functions."""

    def __init__(self, runs: Runs, flows: Flows, functions: Functions) -> None:
        self._runs = runs
        self._flows = flows
        self._functions = functions

    async def list_calls(self, run: Run, step_id: str, *, with_result: bool = False) -> builtins.list[RepeatedCall]:
        """The calls that were made and that a fork at the step makes again, without its own if it gets a result."""
        if is_function(run.flow_id):
            recorded = [step for step in await self._functions.recorded(run.id) if step.kind not in HIDDEN]
            target = next((step for step in recorded if step.id == step_id), None)
            if target is None:
                raise not_found("step", step_id)
            again = [step for step in recorded if is_finished(step) and (step is target or is_after(step.place, target.place))]
            return [RepeatedCall(step.name, step.kind, step.state) for step in again]
        program = await self._flows.program(run.flow_id)
        row = await self._runs.get_step(run.id, step_id)
        rows = list(
            depth_first(
                await self._runs.list_steps(run.id), lambda node: node.id, lambda node: node.parent_id, lambda node: node.ordinal
            )
        )
        repeated = list_repeated(program, RunRef(id=run.id, workflow=run.workflow), rows, row.id)
        return [
            RepeatedCall(step.path, step.facet or "", "failed" if step.error is not None else "completed")
            for step in repeated
            if step.is_step and step.is_terminal and _is_call(program, step) and (step.id != row.id or not with_result)
        ]

    async def fork(
        self,
        run: Run,
        step_id: str,
        *,
        inputs: Mapping[str, Json],
        result: Mapping[str, Json] | None,
        replace: bool,
        actor: str,
    ) -> StartedRun:
        """Start a run that keeps what does not depend on the step; with `replace`, cancel the old one unless it has ended.

        Then, the old run is held until the new one is stored, so that only one of them goes on, and a repeated call with the same
        values returns the same run. A function does not clean up: the new run keeps its finished steps.
        """
        if result is not None or replace:
            await self._check(run, step_id, result)
        if not replace:
            return await self._start(run, step_id, inputs, result, None, actor)
        held = False
        if not run.finished and run.state != RunState.PAUSED:
            try:
                held = (await self._runs.pause(run.id, actor=actor)).state == RunState.PAUSED
            except IllegalTransition:  # it has ended
                pass
        values = [dict(inputs), None if result is None else dict(result)]
        key = f"fork:{step_id}:{sha256(encode(values).encode()).hexdigest()[:16]}"
        try:
            started = await self._start(run, step_id, inputs, result, key, actor)
        except BaseException:
            if held:
                await self._runs.resume(run.id, actor=actor)
            raise
        if not (await self._runs.get_run(run.id)).finished:
            reason = f"Its fork {started.id} replaces it."
            await self._runs.cancel(run.id, actor=actor, reason=reason, code="replaced", force=True)
        return started

    async def _start(
        self,
        run: Run,
        step_id: str,
        inputs: Mapping[str, Json],
        result: Mapping[str, Json] | None,
        key: str | None,
        actor: str,
    ) -> StartedRun:
        try:
            return await self._runs.fork(run.id, step_id, inputs=inputs, result=result, idempotency_key=key, actor=actor)
        except CannotGive:
            message = "The step does not call its handler first (it has a script or mixins): fork without a result."
            raise Refused(message) from None

    async def _check(self, run: Run, step_id: str, result: Mapping[str, Json] | None) -> None:
        """Raise `Refused` for a step that has not ended, and `InvalidInput` for a result that its facet does not declare."""
        if is_function(run.flow_id):
            if result is not None:
                raise InvalidInput("The step of a function takes no result: its code returns it. Fork without one.")
            target = next((step for step in await self._functions.recorded(run.id) if step.id == step_id), None)
            if target is None:
                raise not_found("step", step_id)
            if not is_finished(target):
                raise Refused(f"The step {target.name} has not ended.")
            return
        row = await self._runs.get_step(run.id, step_id)
        if not row.is_terminal:
            raise Refused(f"The step {row.path} has not ended: continue or fail it instead.")
        if result is None:
            return
        program = await self._flows.program(run.flow_id)
        facet = program.find_facet(row.facet or "")
        if not isinstance(facet, Facet) or not facet.is_event or not row.is_step:
            raise InvalidInput(f"The step {row.path} calls no handler: fork without a result.")
        statement = program.find_node(row.statement_id)
        partial = isinstance(statement, ProgramStep) and statement.body is not None
        check_result(program, facet, result, known=row.params, partial=partial)


def _is_call(program: Program, row: StepRow) -> bool:
    facet = program.find_facet(row.facet or "")
    return facet.is_event if facet is not None else row.facet is not None and row.facet.startswith("sys.")
