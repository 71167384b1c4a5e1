"""Runs: start, read, wait, signal, and operate on one or many."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Protocol, TypedDict, Unpack

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Lookup, Page
from treadle.api.conversation import PublishedValue, UpdateResult
from treadle.api.flows import Sources, Strict
from treadle.api.options import SECONDS, RunOptions
from treadle.api.tasks import TaskLogLine, TaskPage, TransitionRecord, Why
from treadle.api.view import Column, View, words
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.clock import Duration, span
from treadle.model.usage import TokenCounts, UsageSums
from treadle.model.values import Json

RunId = Annotated[str, Doc("The run's id", "01935b8e-7c3a-7000-8000-000000000000")]
StepName = Annotated[str, Doc("A step's id, or its path: Checkout.orders[3].pay", "Checkout.pay")]
Inputs = Annotated[dict[str, Json] | None, Doc("Inputs of the workflow", {"order": 12})]
RunAction = Literal["pause", "resume", "cancel", "retry", "reopen", "signal"]


class Activity(ApiRecord, frozen=True):
    """The activity of an unfinished run."""

    kind: str
    """`running`, `waiting_for_approval`, `waiting_for_signal`, `waiting_for_external_job`, `waiting_for_child`, `retrying`,
    `sleeping`, `waiting_for_worker`, `blocked`, `waiting_for_task` or `stuck`: of several, the first in this order."""
    text: str
    """The activity in one line."""
    until: Instant | None
    """When it continues by itself: the end of a sleep or of a timeout, the next attempt or poll."""
    name: str | None
    """The signal, handler, function or step."""
    id: str | None
    """The approval, external job, child run or task."""
    counts: dict[str, int]
    """Number of open tasks and waits by activity."""


class Run(ApiRecord, frozen=True, kw_only=True):
    """A run without its inputs and outputs, which may be large."""

    id: str
    workflow: str
    """The qualified name of the workflow, or the name of the function."""
    kind: str
    """`workflow` or `function`."""
    state: str
    """`pending`, `running`, `paused`, `completed`, `failed` or `canceled`."""
    namespace: str
    flow_id: str
    """Digest of the flow that it is pinned to; for a function, its name and version."""
    task_list: str
    priority: int
    version: int
    """Increases with every commit that advances the run."""
    steps: int
    """Number of steps and blocks so far."""
    error: Json
    failed_step_id: str | None
    idempotency_key: str | None
    parent_id: str | None
    """The run from which it was forked, rerun or started."""
    root_id: str
    trace_id: str | None
    created_at: Instant
    finished_at: Instant | None
    deadline_at: Instant | None
    """When it is canceled unless it has ended."""
    fairness_key: str | None
    """The key by which its tasks share their lists fairly with those of other keys."""
    activity: Activity | None
    """Its activity; null after its end."""
    took_for: int | None
    """Its duration without the time between a failure and its retry; null until its end."""
    tags: dict[str, Json] = msgspec.field(default_factory=dict)
    """Search attributes."""


class RunPage(Page, frozen=True):
    """Runs, newest first."""

    runs: list[Run]
    searched: int | None = None
    """With `where`: the number of runs that were looked at."""
    complete: bool = True
    """With `where`: false if the search stopped before it had `limit` runs or had looked at all: continue after `next_before`."""


class RunCounts(ApiRecord, frozen=True):
    """Number of matching runs."""

    counts: dict[str, int]
    """By state, including states without runs; with `where`, among the newest 10,000 matches."""
    total: int
    activities: dict[str, int]
    """Unfinished runs by activity, among the newest 10,000 of them."""
    complete: bool = True
    """False: more than 10,000 runs match `where`; the newest are counted."""


class UsageRequest(TokenCounts, ApiRecord, frozen=True):
    """One model request; money in millionths of a dollar."""

    id: str
    run_id: str
    step_id: str | None
    task_id: str
    attempt: int
    request_no: int
    model: str
    state: str
    """`reserved` while it is in progress, then `settled`."""
    reserved_micros: int
    interrupted: int
    at: Instant
    path: str | None
    """The path of its step."""


class RunUsage(ApiRecord, frozen=True):
    """Cost of a run's model requests, and its budget; money in millionths of a dollar."""

    run_id: str
    budget_micros: int | None
    total: UsageSums
    requests: list[UsageRequest]
    """Oldest first."""


class Takeover(ApiRecord, frozen=True):
    """A worker lost a task of the run: its lease expired, and another worker may claim the task."""

    at: Instant
    task_id: str
    name: str | None
    """The task's name, while it is kept."""
    step_id: str | None
    path: str | None
    """The path of its step."""
    worker: str | None
    """The id of the worker that lost it."""


class RunDetail(Run, frozen=True, kw_only=True):
    """One run with its values and the reason for its state; its steps are a separate list."""

    inputs: Json
    outputs: Json
    """Null unless it has completed."""
    why: Why
    usage: UsageSums
    budget_micros: int | None
    """Budget for model requests; null: no limit."""
    awaited_signals: list[str]
    """Names of the signals that its function waits for and that were not sent yet."""
    takeovers: list[Takeover] = msgspec.field(default_factory=list)
    """The last 20 takeovers, oldest first."""
    release: str | None = None
    """The release of the application that executed its newest task, as far as that worker is known."""
    missing_handlers: list[str] = msgspec.field(default_factory=list)
    """Handlers that it may still need and that no live worker of its task list has; empty after its end."""
    continued_as: str | None = None
    """The current run of its lineage, if `continue_as_new` continued this run; calls that name this run reach that one."""
    lineage_id: str | None = None
    """The first run of the lineage that this run continues."""
    link: int = 0
    """Its number in its lineage, from 0."""
    published: Json = None
    """Values that its function has published (`ctx.publish`), by name; null if there are none."""


class RunStarted(Run, frozen=True, kw_only=True):
    """A durable run."""

    created: bool
    """False: a run with this idempotency key already existed; this is that run."""
    missing_handlers: list[str]
    """Needed handlers that no live worker of its task list has: the run will wait for them."""
    workers: int
    """Live workers of its task list."""


class RepeatedCall(ApiRecord, frozen=True):
    """A call that the run has made, and that a fork makes again."""

    path: str
    name: str
    """The facet; for a function, the kind of the step."""
    state: str


class ForkPreview(ApiRecord, frozen=True):
    """The consequences of a fork."""

    run_id: str
    step_id: str
    path: str
    calls: list[RepeatedCall]
    """Calls that have been made and would be made again, with their effects; the first ones, up to `limit`."""
    count: int
    """The number of all such calls."""
    cancels: bool
    """Whether the old run has not ended, so that `replace` would cancel it."""


class RunOutputs(ApiRecord, frozen=True):
    """The result of a run: `outputs` if it completed, `error` if it failed or was canceled."""

    id: str
    workflow: str
    state: str
    finished: bool
    """False: it has not ended within the waiting time."""
    ended_as: str
    """The run that ended; another id if a function continued as a new run."""
    outputs: Json
    """Outputs by name; a function's return value is `result`."""
    error: Json
    failed_step_id: str | None
    why: str
    """The reason for its state, in one line."""


class RunTransitions(ApiRecord, frozen=True):
    """The state changes of a run itself, in order."""

    run_id: str
    transitions: list[TransitionRecord]


class RunLogLine(TaskLogLine, frozen=True):
    """A log line of the flow, a handler or an agent of a run."""

    number: int
    """Increases with every line."""
    task_id: str
    step_id: str | None
    path: str | None
    """The path of its step."""


class RunLogPage(ApiRecord, frozen=True):
    """Log lines, in the order of writing."""

    run_id: str
    lines: list[RunLogLine]
    next_before: int | None
    """Pass it as `before` for earlier lines; null if there are none."""
    next_after: int
    """Pass it as `after` for later lines."""


class SignalSent(ApiRecord, frozen=True):
    """A stored signal, kept until the function waits for it."""

    run_id: str
    name: str
    accepted: bool
    """False: a signal with this key was stored before."""
    awaited: bool
    """Whether the function was waiting for it."""
    awaited_signals: list[str]
    """The signals that the function still waits for."""


class RunRefusal(ApiRecord, frozen=True):
    """A run that refused the action."""

    id: str
    code: str
    message: str


class BulkResult(Page, frozen=True):
    """The result of an action on a page of runs."""

    action: str
    dry_run: bool
    matched: int
    """Runs that matched at the time of the call, including those of this page."""
    done: list[str]
    """Ids of the runs."""
    refused: list[RunRefusal]
    complete: bool = True
    """False: more than 10,000 runs match `where`, and `matched` counts the newest."""


class RunFilter(TypedDict, total=False):
    """Conditions that a run must meet."""

    workflow: Annotated[str | None, Doc("Only this workflow (qualified name) or function", "shop.Checkout")]
    flow: Annotated[str | None, Doc("Only this flow: a digest, or a name for all its versions", "shop")]
    kind: Annotated[str | None, Doc("Only `workflow` or `function`", "workflow")]
    task_list: Annotated[str | None, Doc("Only this task list", "default")]
    root_id: Annotated[str | None, Doc("Only runs of this tree")]
    since: Annotated[datetime | None, Doc("Only runs created at or after this time")]
    until: Annotated[datetime | None, Doc("Only runs created before this time")]
    search: Annotated[str | None, Doc("Text in the workflow's name or the idempotency key, or the beginning of an id")]
    activity: Annotated[str | None, Doc("Only unfinished runs with this activity", "waiting_for_approval")]
    where: Annotated[str | None, Doc("Only runs that match this query", "tag.customer = acme and created > 2d ago")]


def _note(run: Run) -> str | None:
    """The most important fact about the run: its error, or its activity."""
    return (run.error or {}).get("message") or (run.activity.text if run.activity is not None else None)


_BRIEF = (
    "id",
    "workflow",
    "state",
    "steps",
    "error",
    Column("activity", "activity.kind"),
    Column("activity_text", "activity.text"),
    "created_at",
    "finished_at",
    "tags",
)
View(
    Run,
    columns=(
        "id",
        "workflow",
        "state",
        "?steps",
        "created_at",
        Column("ended", "finished_at", spare=True),
        Column("tags", spare=True, limit=40),
        Column("note", _note, spare=True, limit=80),
    ),
    brief=_BRIEF,
    empty="No runs. Start one with `treadle run FILE` or `treadle submit FILE`.",
    changed="{workflow} {id} is {state} now",
)


def is_unpriced(request: UsageRequest) -> bool:
    """Whether the cost is unknown: a request that was answered and reserved nothing had no known price."""
    answered = request.input_tokens + request.output_tokens > 0
    return not request.reserved_micros and not request.cost_micros and answered


def dollars(micros: int) -> str:
    """An amount of money."""
    return f"${micros / 1_000_000:,.4f}"


USAGE = View(
    UsageRequest,
    columns=(
        "at",
        Column("step", "path", spare=True),
        "model",
        "state",
        Column("in", "input_tokens"),
        Column("out", "output_tokens"),
        Column("cost", lambda request: "unknown" if is_unpriced(request) else dollars(request.cost_micros)),
    ),
    empty="No requests to models.",
)


def _next_run(run: RunDetail) -> str | None:
    return run.outputs.get("continued_as") if run.continued_as is not None and isinstance(run.outputs, dict) else None


def _lineage(run: RunDetail) -> str | None:
    if run.continued_as is None and run.lineage_id is None:
        return None
    listed = f"`treadle runs list --root {run.root_id} --workflow {run.workflow}`"
    return f"link {run.link} of the lineage {run.lineage_id or run.id}; all links: {listed}"


def _takeovers(run: RunDetail) -> str | None:
    if not run.takeovers:
        return None
    last = run.takeovers[-1]
    return f"{len(run.takeovers)}, the last of {last.path or last.name} at {words(last.at)} from {last.worker}"


RUN = View(
    RunDetail,
    title="{workflow}  {state}  {id}",
    facts=(
        Column("why", "why.text"),
        Column("activity", "activity.text"),
        Column("current run", lambda run: run.continued_as and f"{run.continued_as}, which actions on this run reach"),
        Column("next run", _next_run),
        "created_at",
        Column("deadline", lambda run: run.deadline_at if run.finished_at is None else None, "instant"),
        "finished_at",
        Column("took", lambda run: f"{span(run.took_for or 0)} of work" if run.finished_at is not None else None),
        Column("flow", lambda run: run.flow_id if run.flow_id.startswith("fn:") else run.flow_id[:12]),
        Column("list", lambda run: f"{run.task_list} (namespace {run.namespace}, priority {run.priority})"),
        "steps",
        "fairness_key",
        Column("takeovers", _takeovers),
        "release",
        "tags",
        Column("lineage", _lineage),
        "idempotency_key",
        Column("made from", "parent_id"),
        Column("awaits signals", "awaited_signals"),
        Column("error", lambda run: run.error if run.state != "completed" else None, "error"),
        Column("inputs", kind="json"),
        Column("outputs", kind="json"),
        Column("published", kind="json"),
    ),
    brief=(
        *_BRIEF,
        "kind",
        "flow_id",
        "task_list",
        Column("inputs", kind="json"),
        Column("outputs", kind="json"),
        "failed_step_id",
        Column("why", "why.text"),
        "awaited_signals",
    ),
)


class RunsApi(Lookup[RunDetail], Protocol):
    """Runs of workflows and of durable functions."""

    @contract.get("/runs", lists=True)
    async def list(
        self,
        *,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated", ["failed"])] = (),
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
        **which: Unpack[RunFilter],
    ) -> RunPage:
        """Runs, newest first."""

    @contract.get("/runs/counts", lists=True)
    async def counts(
        self,
        **which: Unpack[RunFilter],
    ) -> RunCounts:
        """Number of runs, by state."""

    @contract.post("/runs", Scope.ENQUEUE, status=201, lists=True, creates=True)
    async def start(
        self,
        flow: Annotated[str, Doc("Name or digest of a published flow", "shop")],
        workflow: Annotated[str | None, Doc("The workflow; optional if the flow has only one", "shop.Checkout")] = None,
        inputs: Inputs = None,
        *,
        version: Annotated[int | None, Doc("Version of the flow; null: the newest", 1)] = None,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        """Start a workflow of a published flow; when this returns, the run is durable."""

    @contract.post("/runs/from-source", Scope.PUBLISH, status=201, lists=True, creates=True)
    async def start_from_source(
        self,
        sources: Sources,
        workflow: Annotated[str | None, Doc("The workflow; optional if the flow has only one", "shop.Checkout")] = None,
        inputs: Inputs = None,
        *,
        strict: Strict = False,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        """Start a workflow of unpublished AFL; when this returns, the flow and the run are durable."""

    @contract.post("/runs/bulk", Scope.OPERATE)
    async def bulk(
        self,
        action: Annotated[RunAction, Doc("The action", "cancel")],
        *,
        dry_run: Annotated[bool, Doc("Return only the number of matching runs; change nothing", True)] = False,
        state: Annotated[Sequence[str], Doc("Only these states, out of those that allow the action")] = (),
        reason: Annotated[str | None, Doc("Reason; stored with canceled runs")] = None,
        signal: Annotated[str | None, Doc("With `signal`: its name, as awaited by the functions", "approved")] = None,
        payload: Annotated[Json, Doc("With `signal`: its payload", {"by": "Ada"})] = None,
        limit: Annotated[int, Doc("Maximum number of runs in this call, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("`next_before` of the previous response")] = None,
        **which: Unpack[RunFilter],
    ) -> BulkResult:
        """Apply an action to the newest matching runs; continue with `next_before` until it is null."""

    @contract.get("/runs/{run_id}", lists=True)
    async def get(self, run_id: RunId) -> RunDetail:
        """One run: its facts, inputs, outputs and cost, and the reason for its state."""

    @contract.get("/runs/{run_id}/outputs", lists=True)
    async def outputs(
        self,
        run_id: RunId,
        *,
        wait_for: Annotated[float, Doc("Seconds to wait for its end, up to 60", 10)] = 0.0,
    ) -> RunOutputs:
        """The result of a run; optionally waits for its end."""

    @contract.get("/runs/{run_id}/transitions", lists=True)
    async def transitions(self, run_id: RunId) -> RunTransitions:
        """State changes of the run itself (started, paused, resumed, ended) with their actors; its tasks have their own."""

    @contract.get("/runs/{run_id}/logs", lists=True)
    async def logs(
        self,
        run_id: RunId,
        *,
        limit: Annotated[int, Doc("Page size, up to 1000", 200)] = 200,
        before: Annotated[int | None, Doc("Only lines before this number")] = None,
        after: Annotated[int | None, Doc("Only lines after this number")] = None,
    ) -> RunLogPage:
        """The latest log lines of a run, or the first ones after a number."""

    @contract.get("/runs/{run_id}/tasks", lists=True)
    async def tasks(self, run_id: RunId, *, limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100) -> TaskPage:
        """Live tasks of a run, newest first."""

    @contract.get("/runs/{run_id}/usage", lists=True)
    async def usage(self, run_id: RunId) -> RunUsage:
        """Model requests of a run with their cost, and the budget."""

    @contract.post("/runs/{run_id}/signals", Scope.WORK, lists=True)
    async def signal(
        self,
        run_id: RunId,
        name: Annotated[str, Doc("The signal's name, as awaited by the function", "approved")],
        payload: Annotated[Json, Doc("Payload of the signal", {"by": "Ada"})] = None,
        *,
        idempotency_key: Annotated[str | None, Doc("A repeated signal with this key is stored once")] = None,
    ) -> SignalSent:
        """Send a signal to a run of a durable function; it is kept until the function waits for it."""

    @contract.get("/runs/{run_id}/published/{name}", lists=True)
    async def query(
        self,
        run_id: RunId,
        name: Annotated[str, Doc("The name, as in `ctx.publish`", "progress")],
        *,
        wait_for: Annotated[float, Doc("Seconds to wait for the first value, up to 60", 10)] = 0.0,
    ) -> PublishedValue:
        """The value that a durable function last published under a name; needs no worker."""

    @contract.post("/runs/{run_id}/updates", Scope.WORK, lists=True)
    async def update(
        self,
        run_id: RunId,
        name: Annotated[str, Doc("The update's name, as in `ctx.update`", "set_address")],
        payload: Annotated[Json, Doc("Payload of the update", {"city": "Rome"})] = None,
        *,
        wait_for: Annotated[float, Doc("Seconds to wait for the answer, up to 60", 10)] = 10.0,
        idempotency_key: Annotated[str | None, Doc("A repeated update with this key is delivered once; the default is new")] = None,
    ) -> UpdateResult:
        """Send an update to a durable function and wait for its answer; repeat the call with its key to wait longer."""

    @contract.post("/runs/{run_id}/pause", Scope.OPERATE)
    async def pause(self, run_id: RunId) -> Run:
        """Pause a run: no further tasks of it start; running tasks finish and count."""

    @contract.post("/runs/{run_id}/resume", Scope.OPERATE)
    async def resume(self, run_id: RunId) -> Run:
        """Resume a paused run, and repair one that is stuck."""

    @contract.post("/runs/{run_id}/reschedule", Scope.OPERATE)
    async def reschedule(
        self,
        run_id: RunId,
        *,
        delay: Annotated[Duration | None, Doc("Start in this many seconds from now", 60, unit=SECONDS)] = None,
        start_at: Annotated[datetime | None, Doc("Start at this time")] = None,
    ) -> Run:
        """Change the start of a function's run that has not started; without a time it starts now. Its deadline stays."""

    @contract.post("/runs/{run_id}/cancel", Scope.OPERATE)
    async def cancel(
        self,
        run_id: RunId,
        *,
        reason: Annotated[str | None, Doc("Reason; stored with the run")] = None,
        force: Annotated[bool, Doc("End a function immediately, without its cleanup")] = False,
    ) -> Run:
        """Cancel a run and all its live tasks; canceling twice is not an error.

        A durable function with cleanup code stays `running` while it cleans up, for a limited time.
        """

    @contract.post("/runs/{run_id}/retry", Scope.OPERATE)
    async def retry(
        self,
        run_id: RunId,
        *,
        step: Annotated[str | None, Doc("Only this step and what failed in it; null: the whole run", "Checkout.pay")] = None,
    ) -> Run:
        """Retry everything that failed in a run, in one commit, and continue it; completed steps are not repeated.

        Steps that were not started because the run could not succeed are started. The failures leave the dead letters.
        """

    @contract.post("/runs/{run_id}/reopen", Scope.OPERATE)
    async def reopen(self, run_id: RunId) -> Run:
        """Continue the canceled run of a function after its last recorded step; what was canceled with it is requested again.

        Refused for a run whose cleanup has begun.
        """

    @contract.post("/runs/{run_id}/rerun", Scope.OPERATE, status=201, creates=True)
    async def rerun(
        self,
        run_id: RunId,
        *,
        inputs: Annotated[dict[str, Json] | None, Doc("Override inputs of the old run", {"order": 13})] = None,
        lenient: Annotated[bool, Doc("Skip the check of the inputs against the workflow's parameters")] = False,
    ) -> RunStarted:
        """Start the same workflow of the same flow as a new run."""

    @contract.get("/runs/{run_id}/fork", lists=True)
    async def preview_fork(
        self,
        run_id: RunId,
        step: StepName,
        *,
        with_result: Annotated[bool, Doc("Leave out the step itself, as for a fork with a `result`")] = False,
        limit: Annotated[int, Doc("Maximum number of calls, up to 1000", 100)] = 100,
    ) -> ForkPreview:
        """Preview a fork: the calls that were made and would be made again. Changes nothing."""

    @contract.post("/runs/{run_id}/fork", Scope.OPERATE, status=201, creates=True)
    async def fork(
        self,
        run_id: RunId,
        step: StepName,
        *,
        inputs: Annotated[dict[str, Json] | None, Doc("Override inputs of the old run", {"order": 13})] = None,
        result: Annotated[
            dict[str, Json] | None, Doc("The right result of the ended step; null: call its handler again", {"receipt": "r-1"})
        ] = None,
        replace: Annotated[bool, Doc("Cancel the old run unless it has ended, so that only the new one continues")] = False,
    ) -> RunStarted:
        """Start a new run that keeps the results that do not depend on a step, and repeats that step and everything after it.

        A repeated call with `replace` and the same values returns the same new run.
        """
