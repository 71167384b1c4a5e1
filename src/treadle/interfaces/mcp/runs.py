"""Tools that read runs: list, show, steps, log, outputs; and signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.conversation import PublishedValue, UpdateResult
from treadle.api.runs import BulkResult, Run, RunAction, RunId, RunOutputs, SignalSent
from treadle.api.steps import Step
from treadle.api.tasks import TaskLogLine
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tasks import TaskLine, task_line
from treadle.interfaces.mcp.tool import text_of, tool
from treadle.interfaces.mcp.truncate import PAGE, After, Before, Limit, Whole, error_line, last, line, page_size, shown
from treadle.interfaces.mcp.workflows import StepId, WaitFor, wait_for_end
from treadle.model.access import Scope
from treadle.model.activity import Doing
from treadle.model.states import RunState, StepState
from treadle.model.values import Json

_LINES = 20
_TASKS = 10


@record
class RunSummary(ApiRecord):
    """Summary of a run."""

    id: str
    workflow: str
    state: str
    """`pending`, `running`, `paused`, `completed`, `failed` or `canceled`."""
    steps: int
    """Steps and blocks so far."""
    error: str | None
    doing: str | None
    """The activity of an unfinished run: `running`, `sleeping`, `waiting_for_approval`, ..."""
    activity: str | None
    """The same in one line, with the time, signal or approval."""
    created_at: Instant
    finished_at: Instant | None
    tags: dict[str, Json]
    """Search attributes."""


@record
class RunSummaries(ApiRecord):
    """Runs, newest first."""

    runs: list[RunSummary]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


@record
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
    """The reason for its state, in one line."""
    awaited_signals: list[str]
    open_tasks: list[TaskLine]
    """Its newest 10 live tasks."""


@record
class StepLine(ApiRecord):
    """Summary of a step."""

    id: str
    path: str
    facet: str | None
    about: str
    """Its arguments in one line; for an item of a foreach, the item."""
    state: str
    """`pending`, `running`, `paused`, `completed`, `failed` or `canceled`."""
    began_at: Instant
    ended_at: Instant | None
    error: str | None
    params: Json
    """Null unless values were requested."""
    returns: Json
    task_id: str | None


@record
class StepLines(ApiRecord):
    """Steps of a run, in program order."""

    run_id: str
    steps: list[StepLine]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last page."""


@record
class LogLine(ApiRecord):
    """A log line of the flow, a handler or an agent."""

    at: Instant
    level: str
    message: str
    path: str | None
    """The step's path."""


@record
class StepView(StepLine):
    """One step."""

    run_id: str
    why: str | None
    """The reason for its task's state."""
    attempt: int | None
    """Number of the current attempt."""
    lines: list[LogLine]
    """Its last log lines."""


@record
class LogPage(ApiRecord):
    """Log lines, in the order of writing."""

    run_id: str
    lines: list[LogLine]
    next_before: int | None
    """Pass it as `before` for earlier lines; null if there are none."""
    next_after: int
    """Pass it as `after` for later lines."""


def run_summary(run: Run) -> RunSummary:
    """The summary of a run."""
    return record_of(RunSummary, run, error=error_line(run.error), **_activity(run))


def _activity(run: Run) -> dict[str, str | None]:
    doing = run.activity
    return {"doing": None, "activity": None} if doing is None else {"doing": doing.doing, "activity": line(doing.text)}


def step_line(step: Step, *, values: bool, whole: bool = False) -> StepLine:
    """The summary of a step."""
    return record_of(StepLine, step, **_brief(step, values=values, whole=whole))


def _brief(step: Step, *, values: bool, whole: bool = False) -> dict[str, Any]:
    return {
        "error": None if step.error is None else line(step.error.message),
        "params": shown(step.params, whole) if values else None,
        "returns": shown(step.returns, whole) if values else None,
    }


def log_line(each: TaskLogLine, path: str | None) -> LogLine:
    """The log line, with its details appended to the message."""
    text = each.message if each.details in (None, {}, []) else f"{each.message} {text_of(shown(each.details, most=400))}"
    return LogLine(each.at, each.level, text, path)


@tool()
async def run_list(
    context: RequestContext,
    state: Annotated[Sequence[RunState], Doc("Only these states", ["failed"])] = (),
    workflow: Annotated[str | None, Doc("Only this workflow (qualified name) or function", "shop.Checkout")] = None,
    flow: Annotated[str | None, Doc("Only this flow: a digest, or a name for all its versions", "shop")] = None,
    search: Annotated[str | None, Doc("Text in the workflow's name or the idempotency key, or the beginning of an id")] = None,
    doing: Annotated[Doing | None, Doc("Only unfinished runs with this activity", "waiting_for_approval")] = None,
    where: Annotated[
        str | None, Doc("Only runs that match this query", 'tag.customer = acme and created > 2d ago and error ~ "timeout"')
    ] = None,
    limit: Limit = PAGE,
    before: Before = None,
) -> RunSummaries:
    """List runs of workflows and functions, newest first."""
    page = await context.api.runs.list(
        state=state, workflow=workflow, flow=flow, search=search, doing=doing, where=where, limit=page_size(limit), before=before
    )
    return RunSummaries([run_summary(run) for run in page.runs], page.next_before)


@tool()
async def run_show(context: RequestContext, run_id: RunId, whole: Whole = False) -> RunView:
    """Show one run: inputs, outputs, error, the reason for its state, and its live tasks."""
    run = await context.api.runs.get(run_id)
    tasks = (await context.api.runs.tasks(run_id, limit=_TASKS)).tasks
    return record_of(
        RunView,
        run,
        **_activity(run),
        error=error_line(run.error),
        inputs=shown(run.inputs, whole),
        outputs=shown(run.outputs, whole),
        why=line(run.why.text) or "",
        open_tasks=[task_line(task) for task in tasks],
    )


@tool()
async def run_steps(
    context: RequestContext,
    run_id: RunId,
    state: Annotated[Sequence[StepState], Doc("Only these states; use `failed` to find failures", ["failed"])] = (),
    below: Annotated[str | None, Doc("Only the children of this step or block (its id)")] = None,
    blocks: Annotated[bool, Doc("Include blocks, items and cases")] = False,
    values: Annotated[bool, Doc("Include params and returns")] = False,
    limit: Limit = PAGE,
    after: After = None,
) -> StepLines:
    """List the steps of a run in program order, with their states and errors."""
    page = await context.api.steps.list(
        run_id, state=state, below=below, blocks=blocks, values=values, limit=page_size(limit), after=after
    )
    return StepLines(page.run_id, [step_line(step, values=values) for step in page.steps], page.next_after)


@tool()
async def step_show(context: RequestContext, step_id: StepId, whole: Whole = False) -> StepView:
    """Show one step by its id: values, error, attempts and log lines."""
    found = await context.api.steps.find(step_id)
    step = await context.api.steps.get(found.run_id, found.step_id, whole=whole)
    return record_of(
        StepView,
        step,
        **_brief(step, values=True, whole=whole),
        run_id=found.run_id,
        why=None if step.task is None else line(step.task.why.text),
        attempt=None if step.task is None else step.task.attempt,
        lines=[log_line(each, each.path) for each in last(step.lines, _LINES)],
    )


@tool()
async def run_logs(
    context: RequestContext,
    run_id: RunId,
    limit: Limit = 50,
    before: Annotated[int | None, Doc("Only lines before this number")] = None,
    after: Annotated[int | None, Doc("Only lines after this number")] = None,
) -> LogPage:
    """The latest log lines of a run, or the first ones after a number."""
    page = await context.api.runs.logs(run_id, limit=page_size(limit), before=before, after=after)
    return LogPage(page.run_id, [log_line(each, each.path) for each in page.lines], page.next_before, page.next_after)


@tool()
async def run_outputs(context: RequestContext, run_id: RunId, wait_for: WaitFor = 0.0, whole: Whole = False) -> RunOutputs:
    """The result of a run; optionally waits for its end. If it is not `finished`, `why` has the reason."""
    ended = await wait_for_end(context, run_id, wait_for)
    return replace(ended, outputs=shown(ended.outputs, whole, 20_000), error=shown(ended.error))


@tool(Scope.WORK)
async def run_signal(
    context: RequestContext,
    run_id: RunId,
    name: Annotated[str, Doc("The signal's name, as awaited by the function", "approved")],
    payload: Annotated[Json, Doc("Payload of the signal", {"by": "Ada"})] = None,
    idempotency_key: Annotated[str | None, Doc("A repeated signal with this key is stored once")] = None,
) -> SignalSent:
    """Send a signal to a run of a durable function; it is kept until the function waits for it."""
    return await context.api.runs.signal(run_id, name, payload, idempotency_key=idempotency_key)


@tool()
async def run_query(
    context: RequestContext, run_id: RunId, name: Annotated[str, Doc("The name, as in `ctx.publish`", "progress")]
) -> PublishedValue:
    """The value that a durable function last published under a name; needs no worker."""
    return await context.api.runs.query(run_id, name)


@tool(Scope.WORK)
async def run_update(
    context: RequestContext,
    run_id: RunId,
    name: Annotated[str, Doc("The update's name, as in `ctx.update`", "set_address")],
    payload: Annotated[Json, Doc("Payload of the update", {"city": "Rome"})] = None,
    wait_for: Annotated[float, Doc("Seconds to wait for the answer, up to 60", 10)] = 10.0,
    idempotency_key: Annotated[str | None, Doc("A repeated update with this key is delivered once")] = None,
) -> UpdateResult:
    """Send an update to a durable function and wait for its answer; repeat the call with the returned key to wait longer."""
    return await context.api.runs.update(run_id, name, payload, wait_for=wait_for, idempotency_key=idempotency_key)


@tool(Scope.OPERATE)
async def run_retry(
    context: RequestContext,
    run_id: RunId,
    step: Annotated[str | None, Doc("Only this step and what failed in it; null: the whole run", "Checkout.pay")] = None,
) -> RunSummary:
    """Retry everything that failed in a run, in one commit; completed steps are not repeated."""
    return run_summary(await context.api.runs.retry(run_id, step=step))


@tool(Scope.OPERATE, ends=True)
async def run_bulk(
    context: RequestContext,
    action: Annotated[RunAction, Doc("The action", "retry")],
    dry_run: Annotated[bool, Doc("Return only the number of matching runs; change nothing")] = True,
    state: Annotated[Sequence[RunState], Doc("Only these states, out of those that allow the action")] = (),
    workflow: Annotated[str | None, Doc("Only this workflow (qualified name) or function", "shop.Checkout")] = None,
    flow: Annotated[str | None, Doc("Only this flow: a digest, or a name for all its versions", "shop")] = None,
    search: Annotated[str | None, Doc("Text in the workflow's name or the idempotency key, or the beginning of an id")] = None,
    where: Annotated[str | None, Doc("Only runs that match this query", "tag.customer = acme")] = None,
    limit: Annotated[int, Doc("Maximum number of runs in this call, up to 1000", 100)] = 100,
    before: Before = None,
) -> BulkResult:
    """Pause, resume, cancel or retry the newest matching runs; a preview that only counts them, unless `dry_run` is false."""
    return await context.api.runs.bulk(
        action,
        dry_run=dry_run,
        state=state,
        workflow=workflow,
        flow=flow,
        search=search,
        where=where,
        limit=limit,
        before=before,
    )


TOOLS = (run_list, run_show, run_steps, step_show, run_logs, run_outputs, run_signal, run_query, run_update, run_retry, run_bulk)
