"""Tools that look at runs: which there are, one in full, its steps, its log, what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from treadle.api.contract import ApiRecord, Doc
from treadle.api.runs import Run, RunId, RunOutputs, SignalTold
from treadle.api.steps import Step
from treadle.api.tasks import Line
from treadle.api.wire import Instant
from treadle.mcp.answers import text_of
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tasks import TaskLine, task_line
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, After, Before, Limit, Whole, error_line, last, line, page_size, shown
from treadle.mcp.workflows import StepId, WaitFor
from treadle.model.access import Scope
from treadle.model.values import Json

_LINES = 20
_TASKS = 10


@dataclass(frozen=True, slots=True)
class RunSummary(ApiRecord):
    """A run in brief."""

    id: str
    workflow: str
    state: str
    """`pending`, `running`, `paused`, `completed`, `failed` or `canceled`."""
    steps: int
    """Steps and blocks so far."""
    error: str | None
    created_at: Instant
    finished_at: Instant | None


@dataclass(frozen=True, slots=True)
class RunSummaries(ApiRecord):
    """Runs, newest first."""

    runs: list[RunSummary]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class RunView(RunSummary):
    """One run."""

    kind: str
    """`workflow` or `function`."""
    flow_id: str
    task_list: str
    inputs: Json
    outputs: Json
    """Null unless it has completed."""
    failed_step_id: str | None
    why: str
    """What it waits for, or how it ended, in one line."""
    awaited_signals: list[str]
    open_tasks: list[TaskLine]
    """The newest 10 of its tasks that have not ended."""


@dataclass(frozen=True, slots=True)
class StepLine(ApiRecord):
    """A step in brief."""

    id: str
    path: str
    facet: str | None
    state: str
    """`pending`, `running`, `paused`, `completed` or `failed`."""
    error: str | None
    params: Json
    """Null unless values were asked for."""
    returns: Json
    task_id: str | None


@dataclass(frozen=True, slots=True)
class StepLines(ApiRecord):
    """Steps of a run, in the order of the program."""

    run_id: str
    steps: list[StepLine]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class LogLine(ApiRecord):
    """A line that the flow, a handler or an agent wrote."""

    at: Instant
    level: str
    message: str
    path: str | None
    """The step's path."""


@dataclass(frozen=True, slots=True)
class StepView(StepLine):
    """One step."""

    run_id: str
    why: str | None
    """Why its task is where it is."""
    attempt: int | None
    """How often its handler was tried."""
    lines: list[LogLine]
    """The last lines about it."""


@dataclass(frozen=True, slots=True)
class LogPage(ApiRecord):
    """Lines in the order of writing."""

    run_id: str
    lines: list[LogLine]
    next_before: int | None
    """Pass it as `before` for the lines before these; null if there are none."""
    next_after: int
    """Pass it as `after` for the lines that come after these."""


def run_summary(run: Run) -> RunSummary:
    """The run in brief."""
    return RunSummary(run.id, run.workflow, run.state, run.steps, error_line(run.error), run.created_at, run.finished_at)


def step_line(step: Step, *, values: bool, whole: bool = False) -> StepLine:
    """The step in brief."""
    return StepLine(
        step.id,
        step.path,
        step.facet,
        step.state,
        None if step.error is None else line(step.error.message),
        shown(step.params, whole) if values else None,
        shown(step.returns, whole) if values else None,
        step.task_id,
    )


def log_line(each: Line, path: str | None) -> LogLine:
    """The line in brief; details follow the message."""
    text = each.message if each.details in (None, {}, []) else f"{each.message} {text_of(shown(each.details, most=400))}"
    return LogLine(each.at, each.level, text, path)


@tool()
async def run_list(
    desk: RequestContext,
    state: Annotated[Sequence[str], Doc("Only these states", ["failed"])] = (),
    workflow: Annotated[str | None, Doc("Only of this workflow (qualified name) or function", "shop.Checkout")] = None,
    flow: Annotated[str | None, Doc("Only of this flow: a digest, or a name with all its versions", "shop")] = None,
    search: Annotated[str | None, Doc("Text in the workflow's name or the idempotency key, or the start of an id")] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> RunSummaries:
    """Runs of workflows and functions, newest first."""
    page = await desk.api.runs.list(state=state, workflow=workflow, flow=flow, search=search, limit=page_size(limit), before=before)
    return RunSummaries([run_summary(run) for run in page.runs], page.next_before)


@tool()
async def run_show(desk: RequestContext, run_id: RunId, whole: Whole = False) -> RunView:
    """One run: inputs, outputs, error, what it waits for, and its tasks that have not ended."""
    run = await desk.api.runs.get(run_id)
    tasks = (await desk.api.runs.tasks(run_id, limit=_TASKS)).tasks
    brief = run_summary(run)
    return RunView(
        brief.id,
        brief.workflow,
        brief.state,
        brief.steps,
        brief.error,
        brief.created_at,
        brief.finished_at,
        kind=run.kind,
        flow_id=run.flow_id,
        task_list=run.task_list,
        inputs=shown(run.inputs, whole),
        outputs=shown(run.outputs, whole),
        failed_step_id=run.failed_step_id,
        why=line(run.why.text) or "",
        awaited_signals=run.awaited_signals,
        open_tasks=[task_line(task) for task in tasks],
    )


@tool()
async def run_steps(
    desk: RequestContext,
    run_id: RunId,
    state: Annotated[Sequence[str], Doc("Only these states: `failed` finds what went wrong", ["failed"])] = (),
    below: Annotated[str | None, Doc("Only the children of this step or block (its id)")] = None,
    blocks: Annotated[bool, Doc("Blocks, items and cases too")] = False,
    values: Annotated[bool, Doc("With what steps were given and returned")] = False,
    limit: Limit = PAGE,
    after: After = None,
) -> StepLines:
    """Steps of a run in the order of the program: what is done, what waits, what failed and why."""
    page = await desk.api.steps.list(
        run_id, state=state, below=below, blocks=blocks, values=values, limit=page_size(limit), after=after
    )
    return StepLines(page.run_id, [step_line(step, values=values) for step in page.steps], page.next_after)


@tool()
async def step_show(desk: RequestContext, step_id: StepId, whole: Whole = False) -> StepView:
    """One step by its id: values, error, how often it was tried, and the lines about it."""
    found = await desk.api.steps.find(step_id)
    step = await desk.api.steps.get(found.run_id, found.step_id, whole=whole)
    brief = step_line(step, values=True, whole=whole)
    return StepView(
        brief.id,
        brief.path,
        brief.facet,
        brief.state,
        brief.error,
        brief.params,
        brief.returns,
        brief.task_id,
        run_id=found.run_id,
        why=None if step.task is None else line(step.task.why.text),
        attempt=None if step.task is None else step.task.attempt,
        lines=[log_line(each, each.path) for each in last(step.lines, _LINES)],
    )


@tool()
async def run_logs(
    desk: RequestContext,
    run_id: RunId,
    limit: Limit = 50,
    before: Annotated[int | None, Doc("Only lines before this number")] = None,
    after: Annotated[int | None, Doc("Only lines after this number: those that came since")] = None,
) -> LogPage:
    """The last lines about a run, or the first after a number: what the flow, its handlers and agents wrote."""
    page = await desk.api.runs.logs(run_id, limit=page_size(limit), before=before, after=after)
    return LogPage(page.run_id, [log_line(each, each.path) for each in page.lines], page.next_before, page.next_after)


@tool()
async def run_outputs(desk: RequestContext, run_id: RunId, wait_for: WaitFor = 0.0, whole: Whole = False) -> RunOutputs:
    """What a run came to; waits for its end if asked to. Not `finished`: `why` says what it waits for."""
    ended = await desk.patiently(lambda seconds: desk.api.runs.outputs(run_id, wait_for=seconds), wait_for)
    return RunOutputs(
        ended.id,
        ended.workflow,
        ended.state,
        ended.finished,
        ended.ended_as,
        shown(ended.outputs, whole, 20_000),
        shown(ended.error),
        ended.failed_step_id,
        ended.why,
    )


@tool(Scope.WORK)
async def run_signal(
    desk: RequestContext,
    run_id: RunId,
    name: Annotated[str, Doc("The signal's name, as the function waits for it", "approved")],
    payload: Annotated[Json, Doc("What it is told", {"by": "Ada"})] = None,
    idempotency_key: Annotated[str | None, Doc("The same signal with the same key is told once")] = None,
) -> SignalTold:
    """Tell a run of a durable function something; it is kept until the function waits for it."""
    return await desk.api.runs.signal(run_id, name, payload, idempotency_key=idempotency_key)


TOOLS = (run_list, run_show, run_steps, step_show, run_logs, run_outputs, run_signal)
