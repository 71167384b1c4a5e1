"""Agents' operations on a waiting step: complete it, fail it, add partial results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from treadle.evaluator import State, StepRow, Updated
from treadle.kernel.queue.decide import failure
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.preflight import check_result
from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Finish, Seen, Verdict
from treadle.lang import Program
from treadle.lang.program import Step
from treadle.model.errors import IllegalMove, InvalidInput, Refused
from treadle.model.ids import Ref
from treadle.model.outcomes import Problem
from treadle.model.runs import Run
from treadle.model.states import TaskState
from treadle.model.values import Json, encode

INPUTS_LIMIT = 64 * 1024 * 1024
"""Limit on the characters of JSON in inputs and results."""


class AgentSteps(ABC):
    """The part of `Runs` for agents."""

    _store: Store
    _committer: Committer
    _advancer: Advancer
    _flows: Flows

    @abstractmethod
    async def get_run(self, run_id: Ref) -> Run:
        """The run, or `RunNotFound`."""

    @abstractmethod
    async def get_step(self, run_id: Ref, step_id: str) -> StepRow:
        """One step of a run, or `StepNotFound`."""

    async def continue_step(
        self,
        run_id: Ref,
        step_id: str,
        result: Mapping[str, Json] | None = None,
        *,
        actor: str = "agent",
        lenient: bool = False,
    ) -> bool:
        """Complete a waiting event step, regardless of the holder of its task; returns False without changes if it already has
        a result.

        Raises `IllegalMove` for a step that never waits for a handler, and `InvalidInput` for a result that does not match the
        declaration of its facet, unless `lenient`.
        """
        if result is not None and not isinstance(result, Mapping):
            raise InvalidInput(f"A result is a dict (a JSON object), not {type(result).__name__}.")
        finish = Finish("succeed", TaskState.COMPLETED, result=encode(dict(result or {}), "result", INPUTS_LIMIT), actor=actor)
        return await self._end_step(run_id, step_id, "continue", finish, None if lenient else dict(result or {}))

    async def fail_step(
        self, run_id: Ref, step_id: str, message: str | Problem, *, code: str = "failed", actor: str = "agent"
    ) -> bool:
        """Fail a waiting event step; returns False without changes if it no longer waits."""
        problem = message if isinstance(message, Problem) else Problem(code, message)
        return await self._end_step(run_id, step_id, "fail", msgspec.structs.replace(failure(problem), actor=actor))

    async def update_step(self, run_id: Ref, step_id: str, partial: Mapping[str, Json]) -> bool:
        """Merge partial results into a waiting step; returns False without changes if it no longer waits."""
        if not isinstance(partial, Mapping):
            raise InvalidInput(f"Partial results are a dict (a JSON object), not {type(partial).__name__}.")
        encode(dict(partial), "partial results", INPUTS_LIMIT)
        row = await self.get_step(run_id, step_id)
        if not await self._waits(row, "update"):
            return False
        return not await self._advancer.offer(row.run_id, Updated(row.id, dict(partial)))

    async def _waits(self, row: StepRow, move: str) -> bool:
        """Whether an event step waits for its handler; raises for steps that never do."""
        facet = None if row.facet is None else (await self._program_of(row)).find_facet(row.facet)
        if facet is None or not facet.is_event or not row.is_step:
            raise IllegalMove("step", row.path, f"not an event step (it is in {row.state})", move)
        if row.state is State.EVENT_TRANSMIT:
            return True
        if row.state in (State.FACET_SCRIPTS_BEGIN, State.MIXIN_BLOCKS_CONTINUE):
            raise IllegalMove("step", row.path, f"not waiting for its handler yet (it is in {row.state})", move, ("wait",))
        return False

    async def _program_of(self, row: StepRow) -> Program:
        return await self._flows.program((await self.get_run(row.run_id)).flow_id)

    async def _end_step(
        self, run_id: Ref, step_id: str, move: str, finish: Finish, checked: Mapping[str, Json] | None = None
    ) -> bool:
        async def attempt() -> bool:
            row = await self.get_step(run_id, step_id)
            if not await self._waits(row, move):
                return False
            task = None if row.task_id is None else await self._store.find_task(row.task_id)
            if task is None or task.finished:
                return False
            program = await self._program_of(row)
            facet = program.find_facet(row.facet or "")
            if facet is not None and checked is not None:
                statement = program.find_node(row.statement_id)
                has_body = isinstance(statement, Step) and statement.body is not None
                check_result(program, facet, checked, known={*row.params, *row.returns}, partial=has_body)
            if task.state == TaskState.AWAITING_APPROVAL:
                raise Refused(f"The step waits for an approval; decide that first: `treadle why {task.id}` names it.")
            if task.state == TaskState.AWAITING_EXTERNAL:
                raise Refused(f"The step waits for an external job; cancel that first: `treadle external cancel {task.id}`.")
            answer = await self._advancer.settle(task, Seen.of(task), finish)
            if answer.verdict is not Verdict.DONE:
                raise Stale
            return True

        return await self._committer.transact(attempt, f"{move} the step {step_id}")
