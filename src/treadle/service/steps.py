"""Calls about steps of runs, on an engine."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.api.steps import (
    Order,
    RepeatedCall,
    Step,
    StepCompletion,
    StepDetail,
    StepLocation,
    StepPage,
    StepRedo,
    StepsApi,
    StepTime,
    Timeline,
    TimeSpan,
)
from treadle.api.tasks import TaskDetail
from treadle.api.wire import Instant, record_of
from treadle.kernel.functions.reads import FunctionStepRow
from treadle.kernel.functions.steps import is_function
from treadle.kernel.runs.display import ShownStep
from treadle.kernel.runs.step_reads import task_of
from treadle.lang.program import Program
from treadle.model.errors import InvalidInput, RunNotFound, StepNotFound, TaskNotFound, UnreadableValue
from treadle.model.runs import Run
from treadle.model.values import Json
from treadle.service.run_group import RunGroup
from treadle.service.run_records import by_size, run_line, step_record

_LINES = 100
_LOOKED_AT = 1000


class Steps(RunGroup, StepsApi):
    """See `StepsApi`."""

    async def find(self, step_id: str) -> StepLocation:
        row = await self.engine.kernel.run_services.step_reads.find(step_id)
        try:
            await self.find_run(row.run_id)
        except RunNotFound:
            raise StepNotFound(step_id) from None
        return StepLocation(row.run_id, row.id, row.path)

    async def list(
        self,
        run_id: str,
        *,
        below: str | None = None,
        state: Sequence[str] = (),
        blocks: bool = True,
        values: bool = True,
        order: Order = "program",
        limit: int = 100,
        after: str | None = None,
    ) -> StepPage:
        run = await self.find_run(run_id)
        page = await self.engine.kernel.run_services.step_reads.page(
            run,
            below=below,
            states=tuple(state),
            blocks=blocks,
            after=after,
            limit=limit,
            in_program_order=order == "program",
        )
        program = await self._program(run)
        return StepPage(run.id, [_step(shown, program, values=values) for shown in page.steps], page.next_after)

    async def _program(self, run: Run) -> Program | None:
        """The program of a workflow's run; None if it cannot be read."""
        try:
            return None if is_function(run.flow_id) else await self.engine.kernel.flows.program(run.flow_id)
        except UnreadableValue:
            return None

    async def timeline(
        self,
        run_id: str,
        *,
        below: str | None = None,
        blocks: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> Timeline:
        run = await self.find_run(run_id)
        reads = self.engine.kernel.run_services.step_reads
        page = await reads.page(run, below=below, blocks=blocks, after=after, limit=limit)
        found = await reads.timeline(page)
        now = await self.engine.kernel.store.now()
        return Timeline(run.id, Instant.of(now), [_time(_step(shown, None), spans) for shown, spans in found], page.next_after)

    async def get(self, run_id: str, step: str, *, whole: bool = False) -> StepDetail:
        run = await self.find_run(run_id)
        reads = self.engine.kernel.run_services.step_reads
        shown = await reads.get(run, step)
        row, task_id = shown.row, task_of(shown.row)
        params, returns, loop = row.params, row.returns, row.loop
        if whole:
            params, returns, loop = [await reads.opened(values) for values in (params, returns, loop)]
        lines = [
            (number, line)
            for number, line in await self.engine.kernel.run_reads.page_lines(run.id, _LOOKED_AT)
            if line.step_id == row.id or (task_id is not None and line.task_id == task_id)
        ]
        task = None if task_id is None else await self._task(task_id)
        raised = row.traceback if isinstance(row, FunctionStepRow) else None
        if task is not None:
            raised = raised or (task.error or {}).get("traceback")
            if isinstance(row, FunctionStepRow) and isinstance(task.payload, dict):
                params = params or task.payload
        return step_record(
            StepDetail,
            shown,
            await self._program(run),
            params,
            returns,
            loop=by_size(loop),
            task=task,
            lines=[run_line(number, line, {row.id: row.path}) for number, line in lines[-_LINES:]],
            traceback=raised,
        )

    async def _task(self, task_id: str) -> TaskDetail | None:
        """The step's task; None if it was deleted, belongs to a child run, or its id is damaged."""
        try:
            task = await self.engine.kernel.reads.get_task(task_id)
        except (TaskNotFound, InvalidInput):
            return None
        return await self.engine.kernel.task_records.detail(task)

    async def continue_step(self, run_id: str, step: str, result: dict[str, Json] | None = None) -> StepCompletion:
        run = await self.find_run(run_id)
        row = await self.engine.kernel.run_reads.get_step(run.id, step)
        done = await self.engine.runs.continue_step(run.id, row.id, result, actor=self.actor)
        return StepCompletion(run.id, row.id, row.path, done)

    async def fail_step(self, run_id: str, step: str, message: str, *, code: str = "failed") -> StepCompletion:
        run = await self.find_run(run_id)
        row = await self.engine.kernel.run_reads.get_step(run.id, step)
        done = await self.engine.runs.fail_step(run.id, row.id, message, code=code, actor=self.actor)
        return StepCompletion(run.id, row.id, row.path, done)

    async def redo(self, run_id: str, step: str, result: dict[str, Json] | None = None, *, confirm: bool = False) -> StepRedo:
        run = await self.find_run(run_id)
        row = await self.engine.kernel.run_reads.get_step(run.id, step)
        redos = self.engine.kernel.run_services.redos
        calls = [record_of(RepeatedCall, each) for each in await redos.list_calls(run, row.id, result)]
        new_id = await redos.redo(run, row.id, result, actor=self.actor) if confirm else None
        return StepRedo(run.id, row.id, row.path, confirm, new_id, not run.finished, calls)


def _step(shown: ShownStep, program: Program | None, *, values: bool = True) -> Step:
    return step_record(Step, shown, program, shown.row.params if values else {}, shown.row.returns if values else {})


def _time(step: Step, spans: Sequence[TimeSpan]) -> StepTime:
    return record_of(StepTime, step, began_at=min([step.began_at, *(span.began_at for span in spans)]), spans=list(spans))
