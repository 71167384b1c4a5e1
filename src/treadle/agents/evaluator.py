"""`Evaluator`: drives runs in the calling thread, as the agent SDK specifies.

It is the blocking facade of the pure evaluator, which decides, and the kernel, which commits. It keeps no state between calls,
so any number of threads and processes may drive the same runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from treadle.agents.connection import forbid_event_loop
from treadle.agents.invoke import CtrlC, ToolRegistry
from treadle.agents.persistence import Persistence
from treadle.kernel.runs.flows import Source, find_workflow
from treadle.kernel.runs.records import ExecutionResult as ExecutionResult
from treadle.kernel.runs.records import ExecutionStatus as ExecutionStatus
from treadle.lang.codec import qualified_name_of
from treadle.model.errors import InvalidInput, NotFound, Refused
from treadle.model.names import DEFAULT_LIST, HANDLER
from treadle.model.outcomes import Failed, Problem, Succeeded
from treadle.model.states import RunState
from treadle.model.tasks import Preclaimed, Task
from treadle.model.text import safe_logger
from treadle.model.values import Json
from treadle.workers.call import outcome_of_error


class Telemetry:
    """Keeps up to `max_events` events, oldest first; a subclass may override `emit`. It never affects execution.

    An event has `timestamp` (ms), `eventType` (such as `workflow.start`), `workflowId`, `stepId` and `details`.
    """

    def __init__(self, enabled: bool = True, max_events: int = 10_000) -> None:
        self.enabled = enabled
        self.events: deque[dict[str, Any]] = deque(maxlen=max_events)

    def emit(self, event: dict[str, Any]) -> None:
        """Keep the event, unless disabled."""
        if self.enabled:
            self.events.append(event)


_log = safe_logger("treadle.agents")
_PAUSE = 0.02
_STILL_FOR = 5
"""Polls without progress after which a run is checked for lost tasks."""


class UnknownStep(NotFound, ValueError, code="step_not_found"):
    """There is no step with that id."""


class Evaluator:
    """Executes workflows on a store, and continues, fails and retries their steps."""

    def __init__(self, persistence: Persistence, telemetry: Telemetry | None = None, max_iterations: int = 1000) -> None:
        self.persistence = persistence
        self.telemetry = telemetry
        self._max_iterations = max_iterations

    # runs

    def execute(
        self,
        workflow_ast: Mapping[str, Any] | str | None,
        inputs: Mapping[str, Json] | None = None,
        program_ast: Mapping[str, Any] | str | None = None,
        runner_id: str = "",
        dispatcher: ToolRegistry | None = None,
        wf_id: str = "",
        *,
        task_list: str = DEFAULT_LIST,
        born: Preclaimed | None = None,
        budget: float | None = None,
    ) -> ExecutionResult:
        """Start a run and drive it to its first fixed point.

        `program_ast` is a compiled program or AFL text; `workflow_ast` the workflow in it, by name or compiled. Without
        `program_ast`, `workflow_ast` is the whole program (compiled or AFL text) with one workflow. With `wf_id`, a second call
        finds the run of the first. With `born`, the steps' tasks are created preclaimed by that owner. `budget` limits the
        dollars that the run may spend on models. Steps with a handler in `dispatcher` are handled here, instead of by workers.
        """
        forbid_event_loop("execute")
        arguments = dict(inputs or {})
        key = runner_id or wf_id or None
        options = {"idempotency_key": key, "task_list": task_list, "preclaimed": born, "budget": budget}
        run_id = self.persistence.run(self._start(workflow_ast, program_ast, arguments, options))
        self._emit("workflow.start", run_id)
        return self._drive(run_id, dispatcher)

    def resume(
        self,
        workflow_id_val: str,
        workflow_ast: Mapping[str, Any] | None = None,
        program_ast: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Json] | None = None,
        runner_id: str = "",
        dispatcher: ToolRegistry | None = None,
    ) -> ExecutionResult:
        """Drive a run to its next fixed point; return the result of a run that has ended.

        A run is pinned to its program, so the other arguments are not needed.
        """
        forbid_event_loop("resume")
        return self._drive(workflow_id_val, dispatcher)

    def status(self, workflow_id: str) -> ExecutionResult:
        """Return the status of the run without driving it."""
        return _shown(self.persistence.run(self.persistence.engine.kernel.runs.status(workflow_id)))

    # steps

    def continue_step(self, step_id: str, result: Mapping[str, Json] | None = None) -> None:
        """Give a waiting event step its result and end its task, in one commit; a repeated call is a no-op, and logged.

        It uses the claim if the task was claimed through this evaluator's store; otherwise the holder of the task loses it.
        Raises `UnknownStep`, a `ValueError`, and `IllegalTransition` for a step that does not wait for a handler.
        """
        if result is not None and not isinstance(result, Mapping):
            raise InvalidInput(f"A result is a dict (a JSON object), not {type(result).__name__}.")
        self.persistence.run(self._end_step(step_id, Succeeded(dict(result or {}))))

    def fail_step(
        self,
        step_id: str,
        error_message: str,
        *,
        code: str = "failed",
        error_type: str | None = None,
        traceback: str | None = None,
    ) -> None:
        """Fail a waiting event step and its task, in one commit; a repeated call is a no-op, and logged.

        `error_type` is the type that a `catch` of the flow sees; without one it is the code.
        """
        self.persistence.run(self._end_step(step_id, Failed(Problem(code, str(error_message), error_type, traceback))))
        self._emit("step.error", "", step_id, error=str(error_message))

    def update_step(self, step_id: str, partial_result: Mapping[str, Json]) -> None:
        """Merge partial results into the returns of a step, which continues to wait."""

        async def update() -> None:
            run_id = await self._run_of(step_id)
            if not await self.persistence.engine.kernel.runs.update_step(run_id, step_id, partial_result):
                _log.warning("step %s no longer waits: its partial results are dropped", step_id)

        self.persistence.run(update())

    def retry_step(self, step_id: str, *, actor: str = "operator") -> None:
        """Retry a failed step, and continue its run from there."""

        async def retry() -> None:
            await self.persistence.engine.kernel.runs.retry(await self._run_of(step_id), step_id, actor=actor)

        self.persistence.run(retry())

    # internal

    async def _start(self, workflow: object, program: object, inputs: dict[str, Json], options: dict[str, Any]) -> str:
        engine = self.persistence.engine
        if program is None:
            workflow, program = None, workflow
        flow: str | list[Source]
        name = workflow if isinstance(workflow, str) else None
        if isinstance(program, str):
            flow = [("<execute>", program)]
            _, loaded, _ = engine.kernel.flows.compile(flow)
        elif isinstance(program, Mapping):
            whole = program if program.get("type") == "Program" else {"type": "Program", "declarations": [program]}
            if isinstance(workflow, Mapping) and (name := qualified_name_of(whole, workflow)) is None:
                name = str(workflow.get("name"))
                whole = {**whole, "declarations": [*whole.get("declarations", ()), workflow]}
            flow = (await engine.kernel.flows.adopt(whole)).id
            loaded = await engine.kernel.flows.program(flow)
        else:
            raise InvalidInput("Give a compiled program or AFL text.")
        if name is None and isinstance(workflow, Mapping):
            name = str(workflow.get("name"))
        entry = find_workflow(loaded, name)
        return (await engine.start_run(flow, entry.qualified_name, inputs, lenient=True, on_failure="finish", **options)).id

    def _emit(self, event: str, run_id: str, step_id: str = "", **details: object) -> None:
        """Emit an event; errors of the telemetry are ignored."""
        if self.telemetry is not None:
            at = self.persistence.kernel.clock.now()
            record = {"timestamp": at, "eventType": event, "workflowId": run_id, "stepId": step_id, "details": details}
            with suppress(Exception):
                self.telemetry.emit(record)

    def _drive(self, run_id: str, dispatcher: ToolRegistry | None) -> ExecutionResult:
        result = self.persistence.run(self._to_fixed_point(run_id))
        while dispatcher is not None and result.status is ExecutionStatus.PAUSED:
            waiting = self.persistence.run(self._waiting(run_id))
            mine = [(task, payload) for task, payload in waiting if dispatcher.can_dispatch(task.name)]
            if not mine:
                break
            for task, payload in mine:
                try:
                    with CtrlC() as ctrl_c:
                        returned = dispatcher.dispatch(task.name, payload)
                except BaseException as error:
                    if ctrl_c.pressed:
                        raise
                    problem = outcome_of_error(error).problem
                    kind, trace = problem.type or "", problem.traceback
                    self.fail_step(task.step_id or "", problem.message, code=problem.code, error_type=kind, traceback=trace)
                else:
                    self.continue_step(task.step_id or "", returned)
            result = self.persistence.run(self._to_fixed_point(run_id))
        if result.status in (ExecutionStatus.COMPLETED, ExecutionStatus.ERROR):
            self._emit(f"workflow.{'complete' if result.success else 'error'}", run_id, error=result.error)
        return result

    async def _to_fixed_point(self, run_id: str) -> ExecutionResult:
        runs = self.persistence.engine.kernel.runs
        seen, still = -1, 0
        for _ in range(self._max_iterations):
            progress = await runs.status(run_id)
            if progress.status is not ExecutionStatus.RUNNING:
                return _shown(progress)
            if await self.persistence.work_own_kinds():
                continue
            seen, still = progress.iterations, still + 1 if progress.iterations == seen else 0
            if still == _STILL_FOR and (await runs.get_run(run_id)).state == RunState.RUNNING:
                still = 0
                with suppress(Refused):  # it changes too fast to need repair
                    await runs.repair(run_id, actor=self.persistence.owner_id)
            await self.persistence.engine.kernel.clock.sleep(_PAUSE)  # others are driving it
        problem = f"still active after {self._max_iterations} polls"
        return ExecutionResult(ExecutionStatus.TIMEOUT, run_id, {}, problem, self._max_iterations)

    async def _waiting(self, run_id: str) -> list[tuple[Task, dict[str, Json]]]:
        """Return the unclaimed tasks of the run that wait for a handler."""
        live = await self.persistence.engine.kernel.run_reads.list_live_tasks(run_id, 1000)
        free = [task for task in reversed(live) if task.kind == HANDLER and task.owner_id is None]
        return [(task, await self.persistence.payload_of(task)) for task in free]

    async def _end_step(self, step_id: str, outcome: Succeeded | Failed) -> None:
        row = await self.persistence.find_step_row(step_id)
        if row is None:
            raise UnknownStep(step_id)
        step_id, claims = row.id, self.persistence.claims
        task = claims.pop(next((task.id for task in list(claims.values()) if task.step_id == step_id), ""), None)
        if task is not None:
            if not await self.persistence.settle(task, outcome):
                _log.warning("step %s: the claim on its task was lost, so its outcome is dropped", step_id)
            return
        runs = self.persistence.engine.kernel.runs
        if isinstance(outcome, Succeeded):
            done = await runs.continue_step(row.run_id, step_id, outcome.result, lenient=True)
        else:
            done = await runs.fail_step(row.run_id, step_id, outcome.problem)
        if not done:
            _log.info("step %s no longer waits: nothing was done", step_id)

    async def _run_of(self, step_id: str) -> str:
        row = await self.persistence.find_step_row(step_id)
        if row is None:
            raise UnknownStep(step_id)
        return row.run_id


_SHOWN_AS = {ExecutionStatus.RUNNING: ExecutionStatus.PAUSED, ExecutionStatus.CANCELED: ExecutionStatus.ERROR}


def _shown(result: ExecutionResult) -> ExecutionResult:
    """The result in the terms of the agent SDK."""
    return replace(result, status=_SHOWN_AS.get(result.status, result.status))
