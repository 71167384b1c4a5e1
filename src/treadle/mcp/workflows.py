"""Tools that run workflows and answer for their steps. All is durable: a run that waits is continued later, by anyone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc
from treadle.api.runs import Inputs, RunStarted
from treadle.mcp.language import Source, Sources, check, texts
from treadle.mcp.request_context import LONGEST_WAIT, RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import error_line, line, shown
from treadle.model.access import Scope
from treadle.model.errors import Forbidden
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

_OUTPUTS = 20_000

WorkflowName = Annotated[str | None, Doc("Which workflow; may be left out if there is only one", "shop.Checkout")]
WaitFor = Annotated[float, Doc(f"Wait so many seconds for its end, up to {LONGEST_WAIT:g}; it goes on anyway", 10)]
StepId = Annotated[str, Doc("The step's id, from `run_steps`", "01935b8e-7c3a-7000-8000-000000000000")]
Lenient = Annotated[bool, Doc("Do not check the inputs against the workflow's parameters")]
Key = Annotated[str | None, Doc("A second start with it names the first run")]
TaskList = Annotated[str, Doc("The task list that workers choose")]
Status = Literal["COMPLETED", "PAUSED", "ERROR"]


@dataclass(frozen=True, slots=True)
class Execution(ApiRecord):
    """A run, as far as it has got."""

    success: bool
    """False: it failed or was canceled."""
    workflow_id: str
    """The run's id, by which all other tools know it."""
    status: Status
    """`COMPLETED`; `PAUSED`: it has not ended, and `why` says what it waits for; `ERROR`: it failed or was canceled."""
    iterations: int
    """Commits that advanced it."""
    outputs: dict[str, Json]
    error: str | None
    state: str
    """`pending`, `running`, `paused`, `completed`, `failed` or `canceled`."""
    why: str
    """What it waits for, or how it ended, in one line."""
    failed_step_id: str | None
    missing_handlers: list[str]
    """Handlers that it needs and no live worker has: it waits there until one comes, or `afl_continue_step` answers."""


@dataclass(frozen=True, slots=True)
class StepDone(ApiRecord):
    """What was said about a step."""

    success: bool
    error: str | None
    run_id: str
    step_id: str
    path: str
    changed: bool
    """False: it had its result already, and nothing was done."""


@dataclass(frozen=True, slots=True)
class RunnerDone(ApiRecord):
    """What became of a run."""

    success: bool
    error: str | None
    runner_id: str
    state: str


async def execution(desk: RequestContext, run_id: str, wait_for: float, started: RunStarted | None = None) -> Execution:
    """How far the run is after that time at most."""
    ended = await desk.patiently(lambda seconds: desk.api.runs.outputs(run_id, wait_for=seconds), wait_for)
    run = await desk.api.runs.get(ended.ended_as)
    status: Status = "COMPLETED" if ended.state == "completed" else "ERROR" if ended.finished else "PAUSED"
    return Execution(
        success=status != "ERROR",
        workflow_id=run_id,
        status=status,
        iterations=run.version,
        outputs=shown(ended.outputs or {}, most=_OUTPUTS),
        error=error_line(ended.error),
        state=ended.state,
        why=line(ended.why) or "",
        failed_step_id=ended.failed_step_id,
        missing_handlers=[] if started is None or ended.finished else started.missing_handlers,
    )


@tool(Scope.OPERATE)
async def afl_execute_workflow(
    desk: RequestContext,
    source: Source = None,
    workflow_name: WorkflowName = None,
    inputs: Inputs = None,
    sources: Sources = None,
    wait_for: WaitFor = 10.0,
    lenient: Lenient = False,
    idempotency_key: Key = None,
    task_list: TaskList = DEFAULT_LIST,
) -> Execution:
    """Run a workflow of AFL sources that need not be published, and wait a little for its end.

    The run is durable: workers do its steps, also after this answers. If it has not ended, look again with `run_outputs`
    (`workflow_id` is the run's id); `why` says what it waits for, such as an approval (`approval_list`) or a handler that nobody
    has. Sources that do not compile are an error with diagnostics.
    """
    given = texts(source, sources)
    await check(desk, given)
    started = await desk.api.runs.start_from_source(
        given, workflow_name, inputs, lenient=lenient, idempotency_key=idempotency_key, task_list=task_list
    )
    return await execution(desk, started.id, wait_for, started)


@tool(Scope.WORK)
async def run_start(
    desk: RequestContext,
    flow: Annotated[str, Doc("A published flow's name, or a digest", "shop")],
    workflow_name: WorkflowName = None,
    inputs: Inputs = None,
    version: Annotated[int | None, Doc("A version of the flow; null: the newest", 1)] = None,
    wait_for: WaitFor = 10.0,
    lenient: Lenient = False,
    idempotency_key: Key = None,
    task_list: TaskList = DEFAULT_LIST,
) -> Execution:
    """Run a workflow of a published flow, and wait a little for its end. `flow_show` says what it takes.

    With the scope `work` alone it is started, and nothing is said of how far it is.
    """
    started = await desk.api.runs.start(
        flow, workflow_name, inputs, version=version, lenient=lenient, idempotency_key=idempotency_key, task_list=task_list
    )
    try:
        return await execution(desk, started.id, wait_for, started)
    except Forbidden:  # it was started all the same
        return Execution(
            True, started.id, "PAUSED", started.version, {}, None, started.state, "It was started.", None, started.missing_handlers
        )


@tool(Scope.OPERATE, repeatable=True)
async def afl_resume_workflow(
    desk: RequestContext,
    workflow_id: Annotated[str, Doc("The run's id")],
    source: Annotated[str | None, Doc("Not needed: a run keeps the flow that it was started with")] = None,
    workflow_name: Annotated[str | None, Doc("Not needed")] = None,
    inputs: Annotated[dict[str, Json] | None, Doc("Not needed: a run keeps its inputs")] = None,
    wait_for: WaitFor = 10.0,
) -> Execution:
    """Let a paused run go on (and repair one that cannot), and wait a little for its end.

    A run is pinned to its flow and its inputs; `source`, `workflow_name` and `inputs` are taken for the sake of clients that
    send them, and change nothing. One that failed goes on with `afl_retry_step`.
    """
    if not (await desk.api.runs.outputs(workflow_id)).finished:
        await desk.api.runs.resume(workflow_id)
    return await execution(desk, workflow_id, wait_for)


@tool(Scope.OPERATE, repeatable=True)
async def afl_continue_step(
    desk: RequestContext,
    step_id: StepId,
    result: Annotated[dict[str, Json] | None, Doc("What its handler would have returned", {"receipt": "r-1"})] = None,
) -> StepDone:
    """Give a step that waits for its handler its result, whoever is on it; the run goes on from there."""
    found = await desk.api.steps.find(step_id)
    done = await desk.api.steps.continue_step(found.run_id, found.step_id, result)
    return StepDone(True, None, done.run_id, done.step_id, done.path, done.done)


@tool(Scope.OPERATE, repeatable=True)
async def afl_fail_step(
    desk: RequestContext,
    step_id: StepId,
    message: Annotated[str, Doc("Why", "out of stock")],
    code: Annotated[str, Doc("The stable code of the failure")] = "failed",
) -> StepDone:
    """Fail a step that waits for its handler; a `catch` of the flow sees it, else the run fails."""
    found = await desk.api.steps.find(step_id)
    done = await desk.api.steps.fail_step(found.run_id, found.step_id, message, code=code)
    return StepDone(True, None, done.run_id, done.step_id, done.path, done.done)


@tool(Scope.OPERATE)
async def afl_retry_step(desk: RequestContext, step_id: StepId) -> StepDone:
    """Do a failed step again, and let its run go on from there; what has completed is not done again."""
    found = await desk.api.steps.find(step_id)
    await desk.api.runs.retry(found.run_id, step=found.step_id)
    return StepDone(True, None, found.run_id, found.step_id, found.path, True)


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def afl_manage_runner(
    desk: RequestContext,
    runner_id: Annotated[str, Doc("The run's id")],
    action: Annotated[Literal["pause", "resume", "cancel"], Doc("What to do", "pause")],
    reason: Annotated[str | None, Doc("Why; kept with a run that is canceled")] = None,
) -> RunnerDone:
    """Pause, resume or cancel a run. Paused, nothing more of it is begun; canceled, it and all its tasks end now, for good."""
    runs = desk.api.runs
    match action:
        case "pause":
            run = await runs.pause(runner_id)
        case "resume":
            run = await runs.resume(runner_id)
        case "cancel":
            run = await runs.cancel(runner_id, reason=reason)
    return RunnerDone(True, None, run.id, run.state)


TOOLS = (
    afl_execute_workflow,
    run_start,
    afl_resume_workflow,
    afl_continue_step,
    afl_fail_step,
    afl_retry_step,
    afl_manage_runner,
)
