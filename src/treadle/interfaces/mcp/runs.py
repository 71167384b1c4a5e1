"""Tools that run workflows, wait for runs and tasks, and act on steps. Runs are durable: anyone can continue one later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from treadle.api.contract import ApiRecord, Doc
from treadle.api.flows import ANSWERS, DryRunCall, SourceText
from treadle.api.runs import Inputs, RunDetail, RunId, RunOutputs
from treadle.api.steps import Step
from treadle.api.tasks import Task, TaskId, TaskLogLine, TaskResult
from treadle.interfaces.mcp.answers import LOG_LINE, RUN_VIEW, STEP, TASK, Fields, Shape, Whole, error_line, line, shown
from treadle.interfaces.mcp.flows import Source, Sources, Strict, check, texts
from treadle.interfaces.mcp.request_context import MAX_WAIT, RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.access import Scope
from treadle.model.errors import Forbidden
from treadle.model.names import DEFAULT_LIST, FUNCTION
from treadle.model.values import Json

_OUTPUTS = 20_000
_WAITING, _CALLS, _TASKS, _LINES = 10, 20, 10, 20
_RESULT = "a worker with its handler, or `afl_continue_step`"
_NEEDS = {
    "awaiting_approval": "a decision: `approval_decide`",
    "awaiting_external": "an external job",
    "paused": "`afl_resume_workflow`",
}

WorkflowName = Annotated[str | None, Doc("The workflow; optional if there is only one", "shop.Checkout")]
WaitFor = Annotated[float, Doc(f"Seconds to wait for its end, up to {MAX_WAIT:g}; the run continues afterwards", 10)]
StepId = Annotated[str, Doc("The step's id, from `run_steps`", "01935b8e-7c3a-7000-8000-000000000000")]
Lenient = Annotated[bool, Doc("Skip the check of the inputs against the workflow's parameters")]
Key = Annotated[str | None, Doc("A repeated start with this key returns the first run")]
TaskList = Annotated[str, Doc("The task list that workers select tasks from")]
Deadline = Annotated[float | None, Doc("Cancel the run this many seconds after its start", 7200)]
Status = Literal["COMPLETED", "RUNNING", "PAUSED", "ERROR"]


class WaitingStep(ApiRecord, frozen=True):
    """A step that waits for a result."""

    step_id: str | None
    """Null in a dry run."""
    path: str
    facet: str
    params: Json
    expects: dict[str, str]
    """Types of its declared results."""
    needs: str


class Execution(ApiRecord, frozen=True):
    """A run and its progress."""

    success: bool
    """False: it failed or was canceled."""
    run_id: str
    """Empty for a dry run."""
    status: Status
    """`COMPLETED`; `RUNNING`: a worker executes it; `PAUSED`: it waits, see `why`; `ERROR`: failed or canceled."""
    iterations: int
    """Commits that advanced it."""
    outputs: dict[str, Json]
    error: str | None
    state: str
    """`pending`, `running`, `paused`, `completed`, `failed` or `canceled`."""
    why: str
    """The reason for its state, in one line."""
    failed_step_id: str | None
    missing_handlers: list[str]
    """Needed handlers that no live worker has: the run waits for a worker, or for `afl_continue_step`."""
    waiting: list[WaitingStep] = msgspec.field(default_factory=list)
    """The first 10 steps that wait."""
    calls: list[DryRunCall] = msgspec.field(default_factory=list)
    """In a dry run: the last 20 answered calls."""


_STEP_DONE: Shape = {"success": bool, "error": str | None, "run_id": str, "step_id": str, "path": str, "changed": bool}
_RUN_VIEW: Shape = {**RUN_VIEW.shape(RunDetail), "open_tasks": list[TASK.type(Task)]}  # type: ignore[misc]
_STEP_VIEW: Shape = {
    **STEP.shape(Step),
    "run_id": str,
    "why": str | None,
    "attempt": int | None,
    "lines": list[LOG_LINE.type(TaskLogLine)],  # type: ignore[misc]
}


@tool(answers=_RUN_VIEW)
async def run_show(context: RequestContext, run_id: RunId, whole: Whole = False) -> Fields:
    """Show one run: inputs, outputs, error, the reason for its state, and its live tasks."""
    run = await context.api.runs.get(run_id)
    tasks = (await context.api.runs.tasks(run_id, limit=_TASKS)).tasks
    return {**RUN_VIEW.of(run, whole), "open_tasks": [TASK.of(task) for task in tasks]}


@tool(answers=_STEP_VIEW)
async def step_show(context: RequestContext, step_id: StepId, whole: Whole = False) -> Fields:
    """Show one step by its id: values, error, attempts and log lines."""
    address = await context.api.steps.find(step_id)
    step = await context.api.steps.get(address.run_id, address.step_id, whole=whole)
    return {
        **STEP.of(step, whole),
        "run_id": address.run_id,
        "why": None if step.task is None else line(step.task.why.text),
        "attempt": None if step.task is None else step.task.attempt,
        "lines": [LOG_LINE.of(log) for log in step.lines[-_LINES:]],
    }


@tool()
async def run_outputs(context: RequestContext, run_id: RunId, wait_for: WaitFor = 0.0, whole: Whole = False) -> RunOutputs:
    """The result of a run; optionally waits for its end. If it is not `finished`, `why` has the reason."""
    ended = await wait_for_end(context, run_id, wait_for)
    return replace(ended, outputs=shown(ended.outputs, whole, _OUTPUTS), error=shown(ended.error))


@tool()
async def task_result(
    context: RequestContext,
    task_id: TaskId,
    wait_for: Annotated[float, Doc(f"Seconds to wait for its end, up to {MAX_WAIT:g}", 10)] = 0.0,
    whole: Whole = False,
) -> TaskResult:
    """The result of a task; optionally waits for its end."""
    ended = await context.patiently(lambda seconds: context.api.tasks.result(task_id, wait_for=seconds), wait_for)
    return replace(ended, result=shown(ended.result, whole, _OUTPUTS), error=shown(ended.error))


async def wait_for_end(context: RequestContext, run_id: str, wait_for: float) -> RunOutputs:
    """Wait for the end of the run, at most that long, with progress notifications about its activity."""

    async def activity() -> str:
        run = await context.api.runs.get(run_id)
        return f"{run.workflow}: {run.state if run.activity is None else line(run.activity.text)}"

    return await context.patiently(lambda seconds: context.api.runs.outputs(run_id, wait_for=seconds), wait_for, activity)


async def execution(context: RequestContext, run_id: str, wait_for: float) -> Execution:
    """Wait for the end of the run, at most that long, and return its state."""
    ended = await wait_for_end(context, run_id, wait_for)
    run = await context.api.runs.get(ended.ended_as)
    status: Status = "COMPLETED" if ended.state == "completed" else "ERROR"
    waiting: list[WaitingStep] = []
    if not ended.finished:
        tasks = (await context.api.runs.tasks(run.id)).tasks
        waiting = await _waiting(context, run.id, tasks)
        tasks = [] if ended.state == "paused" else tasks
        status = "RUNNING" if any(_progresses(task, run.missing_handlers) for task in tasks) else "PAUSED"
    return Execution(
        success=status != "ERROR",
        run_id=run_id,
        status=status,
        iterations=run.version,
        outputs=shown(ended.outputs or {}, most=_OUTPUTS),
        error=error_line(ended.error),
        state=ended.state,
        why=line(ended.why) or "",
        failed_step_id=ended.failed_step_id,
        missing_handlers=run.missing_handlers,
        waiting=waiting,
    )


async def _waiting(context: RequestContext, run_id: str, tasks: Sequence[Task]) -> list[WaitingStep]:
    """The steps whose tasks are not being executed."""
    idle = {task.step_id: task.state for task in tasks if task.step_id is not None and task.state != "running"}
    if not idle:
        return []
    steps = (await context.api.steps.list(run_id, state=("pending", "running", "paused"), blocks=False)).steps
    return [
        WaitingStep(
            step.id, step.path, step.facet or step.name, shown(step.params), step.expects or {}, _NEEDS.get(idle[step.id], _RESULT)
        )
        for step in steps
        if step.id in idle
    ][:_WAITING]


async def dry_run(
    context: RequestContext,
    sources: Sequence[SourceText],
    workflow: str | None,
    inputs: dict[str, Json] | None,
    answers: dict[str, Json],
    *,
    lenient: bool,
) -> Execution:
    """Dry-run a workflow with the answers; nothing is stored."""
    ended = await context.api.flows.dry_run(sources, workflow, inputs, answers=answers, lenient=lenient)
    status: Status = "COMPLETED" if ended.state == "completed" else "ERROR" if ended.state == "failed" else "PAUSED"
    facets = ", ".join(sorted({call.facet for call in ended.waiting}))
    why = f"The dry run needs answers for {facets}." if facets else f"The dry run {ended.state}; nothing was stored."
    if ended.unused:
        why += f" Unused answers: {', '.join(ended.unused)}."
    return Execution(
        success=status != "ERROR",
        run_id="",
        status=status,
        iterations=len(ended.calls),
        outputs=shown(ended.outputs or {}, most=_OUTPUTS),
        error=line(ended.error),
        state=ended.state,
        why=why,
        failed_step_id=None,
        missing_handlers=[],
        waiting=[
            WaitingStep(None, call.path, call.facet, shown(call.params), call.expects, "an answer")
            for call in ended.waiting[:_WAITING]
        ],
        calls=[replace(call, params=shown(call.params), result=shown(call.result)) for call in ended.calls[-_CALLS:]],
    )


def _progresses(task: Task, missing: Sequence[str]) -> bool:
    """Whether a worker executes the task, or can claim it now."""
    ready = task.state == "pending" and task.wake_at is None and not task.blocked_by and task.name not in missing
    return task.state == "running" or (ready and task.kind != FUNCTION)


@tool(Scope.PUBLISH)
async def afl_execute_workflow(
    context: RequestContext,
    source: Source = None,
    workflow_name: WorkflowName = None,
    inputs: Inputs = None,
    sources: Sources = None,
    wait_for: WaitFor = 10.0,
    lenient: Lenient = False,
    idempotency_key: Key = None,
    task_list: TaskList = DEFAULT_LIST,
    strict: Strict = True,
    deadline: Deadline = None,
    answers: Annotated[dict[str, Json] | None, Doc(ANSWERS, {"shop.Pay": {"receipt": "r-1"}})] = None,
) -> Execution:
    """Run a workflow of AFL sources, published or not, and wait briefly for its end.

    With `answers`, it is a dry run: they stand for the handlers, and nothing is stored; `waiting` lists calls without an answer.
    The run is durable: workers execute its steps, even after this returns. If it has not ended, call `run_outputs` later; `why`
    has the reason, such as an approval (`approval_list`) or a missing handler. Sources that do not compile are an error with
    diagnostics.
    """
    source_texts = texts(source, sources)
    await check(context, source_texts, strict=strict)
    if answers is not None:
        return await dry_run(context, source_texts, workflow_name, inputs, answers, lenient=lenient)
    started = await context.api.runs.start_from_source(
        source_texts,
        workflow_name,
        inputs,
        strict=strict,
        lenient=lenient,
        idempotency_key=idempotency_key,
        task_list=task_list,
        deadline=deadline,
    )
    return await execution(context, started.id, wait_for)


@tool(Scope.ENQUEUE)
async def run_start(
    context: RequestContext,
    flow: Annotated[str, Doc("Name or digest of a published flow", "shop")],
    workflow_name: WorkflowName = None,
    inputs: Inputs = None,
    version: Annotated[int | None, Doc("Version of the flow; null: the newest", 1)] = None,
    wait_for: WaitFor = 10.0,
    lenient: Lenient = False,
    idempotency_key: Key = None,
    task_list: TaskList = DEFAULT_LIST,
    deadline: Deadline = None,
) -> Execution:
    """Run a workflow of a published flow, and wait briefly for its end. `flow_show` lists its parameters.

    With the scope `enqueue` or `work` alone, the run starts, but its progress is not returned.
    """
    started = await context.api.runs.start(
        flow,
        workflow_name,
        inputs,
        version=version,
        lenient=lenient,
        idempotency_key=idempotency_key,
        task_list=task_list,
        deadline=deadline,
    )
    try:
        return await execution(context, started.id, wait_for)
    except Forbidden:  # it was started all the same
        return Execution(
            True, started.id, "RUNNING", started.version, {}, None, started.state, "It was started.", None, started.missing_handlers
        )


@tool(Scope.OPERATE, repeatable=True)
async def afl_resume_workflow(
    context: RequestContext,
    run_id: RunId,
    source: Annotated[str | None, Doc("Ignored: a run keeps its flow")] = None,
    workflow_name: Annotated[str | None, Doc("Ignored")] = None,
    inputs: Annotated[dict[str, Json] | None, Doc("Ignored: a run keeps its inputs")] = None,
    wait_for: WaitFor = 10.0,
) -> Execution:
    """Resume a paused run (and repair one that is stuck), and wait briefly for its end.

    A run is pinned to its flow and inputs: `source`, `workflow_name` and `inputs` are accepted for compatibility and ignored. Use
    `afl_retry_step` for a failed run.
    """
    if not (await context.api.runs.outputs(run_id)).finished:
        await context.api.runs.resume(run_id)
    return await execution(context, run_id, wait_for)


def _step_done(run_id: str, step_id: str, path: str, *, changed: bool) -> Fields:
    """The result of an action on a step; `changed` is false if it already had its result."""
    return {"success": True, "error": None, "run_id": run_id, "step_id": step_id, "path": path, "changed": changed}


@tool(Scope.OPERATE, answers=_STEP_DONE, repeatable=True)
async def afl_continue_step(
    context: RequestContext,
    step_id: StepId,
    result: Annotated[dict[str, Json] | None, Doc("The result in place of the handler's", {"receipt": "r-1"})] = None,
) -> Fields:
    """Complete a step that waits for its handler, even if a worker holds its task; the run continues."""
    address = await context.api.steps.find(step_id)
    done = await context.api.steps.continue_step(address.run_id, address.step_id, result)
    return _step_done(done.run_id, done.step_id, done.path, changed=done.done)


@tool(Scope.OPERATE, answers=_STEP_DONE, repeatable=True)
async def afl_fail_step(
    context: RequestContext,
    step_id: StepId,
    message: Annotated[str, Doc("Reason", "out of stock")],
    code: Annotated[str, Doc("A stable error code")] = "failed",
) -> Fields:
    """Fail a step that waits for its handler; a `catch` of the flow handles it, otherwise the run fails."""
    address = await context.api.steps.find(step_id)
    done = await context.api.steps.fail_step(address.run_id, address.step_id, message, code=code)
    return _step_done(done.run_id, done.step_id, done.path, changed=done.done)


@tool(Scope.OPERATE, answers=_STEP_DONE)
async def afl_retry_step(context: RequestContext, step_id: StepId) -> Fields:
    """Retry a failed step and continue its run; completed steps are not repeated."""
    address = await context.api.steps.find(step_id)
    await context.api.runs.retry(address.run_id, step=address.step_id)
    return _step_done(address.run_id, address.step_id, address.path, changed=True)


TOOLS = (
    run_show,
    step_show,
    run_outputs,
    task_result,
    afl_execute_workflow,
    run_start,
    afl_resume_workflow,
    afl_continue_step,
    afl_fail_step,
    afl_retry_step,
)
