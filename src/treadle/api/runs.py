"""Runs: start, look, wait, tell, and what operators do with one or with many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Protocol, TypedDict, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.flows import Sources
from treadle.api.tasks import Line, MoveMade, TaskPage, Why
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json

RunId = Annotated[str, Doc("The run's id", "01935b8e-7c3a-7000-8000-000000000000")]
StepName = Annotated[str, Doc("A step's id, or its path: Checkout.orders[3].pay", "Checkout.pay")]
Inputs = Annotated[dict[str, Json] | None, Doc("What the workflow is given", {"order": 12})]
RunAction = Literal["pause", "resume", "cancel", "retry"]


@dataclass(frozen=True, slots=True)
class Run(ApiRecord):
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
    """The digest of the flow that it is pinned to; of a function its name and version."""
    task_list: str
    priority: int
    version: int
    """Rises with every commit that advances it."""
    steps: int
    """How many steps and blocks it has so far."""
    error: Json
    failed_step_id: str | None
    idempotency_key: str | None
    parent_id: str | None
    """The run that it was forked from, rerun for or started by."""
    root_id: str
    trace_id: str | None
    created_at: Instant
    finished_at: Instant | None


@dataclass(frozen=True, slots=True)
class RunPage(ApiRecord):
    """Runs, newest first."""

    runs: list[Run]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class RunCounts(ApiRecord):
    """How many runs fit."""

    counts: dict[str, int]
    """By state, every state among them."""
    total: int


@dataclass(frozen=True, slots=True)
class UsageSums(ApiRecord):
    """Sums over requests to models; money in millionths of a dollar."""

    requests: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_micros: int
    unsettled: int
    """Requests whose end nobody saw: counted with all that was set aside for them."""


@dataclass(frozen=True, slots=True)
class UsageRequest(ApiRecord):
    """One request to a model; money in millionths of a dollar."""

    id: str
    run_id: str
    step_id: str | None
    task_id: str
    attempt: int
    request_no: int
    model: str
    state: str
    """`reserved` while it is on its way, then `settled`."""
    reserved_micros: int
    cost_micros: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    interrupted: int
    at: Instant
    path: str | None
    """The path of its step."""


@dataclass(frozen=True, slots=True)
class RunUsage(ApiRecord):
    """What a run spent on models, and what it may; money in millionths of a dollar."""

    run_id: str
    budget_micros: int | None
    total: UsageSums
    requests: list[UsageRequest]
    """The oldest first."""


@dataclass(frozen=True, slots=True)
class RunDetail(Run):
    """One run with its values, and why it is where it is; its steps are in a list of their own."""

    inputs: Json
    outputs: Json
    """Null unless it has completed."""
    why: Why
    usage: UsageSums
    budget_micros: int | None
    """What it may spend on models; null: no limit."""
    awaited_signals: list[str]
    """Names of the signals that its function waits for now."""


@dataclass(frozen=True, slots=True)
class RunStarted(Run):
    """A run that is durable now."""

    created: bool
    """False: a run had that idempotency key already, and this is that one."""
    missing_handlers: list[str]
    """Handlers that it will need and no live worker of its task list has: it will wait there."""
    workers: int
    """Live workers of its task list."""


@dataclass(frozen=True, slots=True)
class RunOutputs(ApiRecord):
    """What a run came to; `outputs` only where it completed, `error` only where it failed or was canceled."""

    id: str
    workflow: str
    state: str
    finished: bool
    """False: it has not ended within the time that was waited."""
    ended_as: str
    """The run that ended: another one where a function went on as a new run."""
    outputs: Json
    """By name; what a function returned is `result`."""
    error: Json
    failed_step_id: str | None
    why: str
    """One line."""


@dataclass(frozen=True, slots=True)
class RunMoves(ApiRecord):
    """The moves of a run itself, in order."""

    run_id: str
    moves: list[MoveMade]


@dataclass(frozen=True, slots=True)
class RunLine(Line):
    """A line that the flow, a handler or an agent wrote about a run."""

    number: int
    """Rises with every line."""
    task_id: str
    step_id: str | None
    path: str | None
    """The path of its step."""


@dataclass(frozen=True, slots=True)
class RunLinePage(ApiRecord):
    """Lines in the order of writing."""

    run_id: str
    lines: list[RunLine]
    next_before: int | None
    """Pass it as `before` for the lines before these; null if there are none."""
    next_after: int
    """Pass it as `after` for the lines that come after these."""


@dataclass(frozen=True, slots=True)
class SignalTold(ApiRecord):
    """A signal that is kept until the function waits for it."""

    run_id: str
    name: str
    told: bool
    """False: the key stands for a signal that it was told already."""
    awaited: bool
    """Whether the function was waiting for it."""
    awaited_signals: list[str]
    """The signals that it was waiting for."""


@dataclass(frozen=True, slots=True)
class RunRefusal(ApiRecord):
    """A run to which it could not be done."""

    id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RunsActed(ApiRecord):
    """What was done to a page of runs."""

    action: str
    dry_run: bool
    matched: int
    """Runs that fitted when this was asked for, those of this page among them."""
    done: list[str]
    """Ids."""
    refused: list[RunRefusal]
    next_before: str | None
    """Pass it as `before` to go on; null at the end."""


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


class RunOptions(TypedDict, total=False):
    """Options of a new run."""

    lenient: Annotated[bool, Doc("Skip the check of the inputs against the workflow's parameters", default=False)]
    idempotency_key: Annotated[str | None, Doc("A repeated start with this key returns the first run")]
    task_list: Annotated[str, Doc("The task list that workers select tasks from", default=DEFAULT_LIST)]
    priority: Annotated[int, Doc("Smaller numbers run first", default=0)]
    trace_id: Annotated[str | None, Doc("Trace id, inherited unchanged by all work that follows from the run")]
    budget: Annotated[float | None, Doc("Maximum cost of model requests, in dollars", 1.5)]


class RunsApi(Protocol):
    """Runs of workflows and of durable functions."""

    @contract.get("/runs", lists=True)
    async def list(
        self,
        *,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated", ["failed"])] = (),
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
        **which: Unpack[RunFilter],
    ) -> RunPage:
        """Runs, newest first."""

    @contract.get("/runs/counts", lists=True)
    async def counts(
        self,
        **which: Unpack[RunFilter],
    ) -> RunCounts:
        """How many runs there are, by state."""

    @contract.post("/runs", Scope.WORK, status=201, lists=True, creates=True)
    async def start(
        self,
        flow: Annotated[str, Doc("A published flow's name, or a digest", "shop")],
        workflow: Annotated[str | None, Doc("Which workflow; may be left out if there is only one", "shop.Checkout")] = None,
        inputs: Inputs = None,
        *,
        version: Annotated[int | None, Doc("A version of the flow; null: the newest", 1)] = None,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        """Start a workflow of a published flow; when this answers, it is durable."""

    @contract.post("/runs/from-source", Scope.OPERATE, status=201, lists=True, creates=True)
    async def start_from_source(
        self,
        sources: Sources,
        workflow: Annotated[str | None, Doc("Which workflow; may be left out if there is only one", "shop.Checkout")] = None,
        inputs: Inputs = None,
        **options: Unpack[RunOptions],
    ) -> RunStarted:
        """Start a workflow of AFL that is not published; when this answers, the flow and the run are durable."""

    @contract.post("/runs/bulk", Scope.OPERATE)
    async def bulk(
        self,
        action: Annotated[RunAction, Doc("What to do", "cancel")],
        *,
        dry_run: Annotated[bool, Doc("Do nothing; only say to how many runs it would be done", True)] = False,
        state: Annotated[Sequence[str], Doc("Only these states, of those from which it is possible")] = (),
        reason: Annotated[str | None, Doc("Why; kept with runs that are canceled")] = None,
        limit: Annotated[int, Doc("At most so many runs by this call, up to 1000", 100)] = 100,
        before: Annotated[str | None, Doc("The `next_before` of the answer before")] = None,
        **which: Unpack[RunFilter],
    ) -> RunsActed:
        """Do something to the newest runs that fit; go on with `next_before` until it is null."""

    @contract.get("/runs/{run_id}", lists=True)
    async def get(self, run_id: RunId) -> RunDetail:
        """One run: facts, inputs, outputs, what it spent, and why it is where it is."""

    @contract.get("/runs/{run_id}/outputs", lists=True)
    async def outputs(
        self,
        run_id: RunId,
        *,
        wait_for: Annotated[float, Doc("Wait so many seconds for its end, up to 60", 10)] = 0.0,
    ) -> RunOutputs:
        """What the run came to; waits for its end if asked to."""

    @contract.get("/runs/{run_id}/moves", lists=True)
    async def moves(self, run_id: RunId) -> RunMoves:
        """What happened to the run itself: started, paused, resumed, ended, and by whom; its tasks have moves of their own."""

    @contract.get("/runs/{run_id}/logs", lists=True)
    async def logs(
        self,
        run_id: RunId,
        *,
        limit: Annotated[int, Doc("At most so many, up to 1000", 200)] = 200,
        before: Annotated[int | None, Doc("Only lines before this number")] = None,
        after: Annotated[int | None, Doc("Only lines after this number: those that came since")] = None,
    ) -> RunLinePage:
        """The last lines about the run, or the first after a number: what the flow, its handlers and agents wrote."""

    @contract.get("/runs/{run_id}/tasks", lists=True)
    async def tasks(self, run_id: RunId, *, limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100) -> TaskPage:
        """Tasks of the run that have not ended, newest first."""

    @contract.get("/runs/{run_id}/usage", lists=True)
    async def usage(self, run_id: RunId) -> RunUsage:
        """What the run spent on models, request by request, against its budget."""

    @contract.post("/runs/{run_id}/signals", Scope.WORK, lists=True)
    async def signal(
        self,
        run_id: RunId,
        name: Annotated[str, Doc("The signal's name, as the function waits for it", "approved")],
        payload: Annotated[Json, Doc("What it is told", {"by": "Ada"})] = None,
        *,
        idempotency_key: Annotated[str | None, Doc("The same signal with the same key is told once")] = None,
    ) -> SignalTold:
        """Tell a run of a durable function something; it is kept until the function waits for it."""

    @contract.post("/runs/{run_id}/pause", Scope.OPERATE)
    async def pause(self, run_id: RunId) -> Run:
        """Hold a run: nothing of it is taken from now on; what is being worked on finishes, and counts."""

    @contract.post("/runs/{run_id}/resume", Scope.OPERATE)
    async def resume(self, run_id: RunId) -> Run:
        """Let a paused run go on, and repair one that cannot."""

    @contract.post("/runs/{run_id}/cancel", Scope.OPERATE)
    async def cancel(self, run_id: RunId, *, reason: Annotated[str | None, Doc("Why; kept with the run")] = None) -> Run:
        """End a run and all its live tasks now; canceling twice is no error."""

    @contract.post("/runs/{run_id}/retry", Scope.OPERATE)
    async def retry(
        self,
        run_id: RunId,
        *,
        step: Annotated[str | None, Doc("A failed step's id or path; null: the one that failed the run", "Checkout.pay")] = None,
    ) -> Run:
        """Do a failed step again, and let the run go on from there; what has completed is not done again."""

    @contract.post("/runs/{run_id}/rerun", Scope.OPERATE, status=201, creates=True)
    async def rerun(
        self,
        run_id: RunId,
        *,
        inputs: Annotated[dict[str, Json] | None, Doc("Laid over those of the old run", {"order": 13})] = None,
        lenient: Annotated[bool, Doc("Do not check the inputs against the workflow's parameters")] = False,
    ) -> RunStarted:
        """Start the same workflow of the same flow again as a new run."""

    @contract.post("/runs/{run_id}/fork", Scope.OPERATE, status=201, creates=True)
    async def fork(
        self,
        run_id: RunId,
        step: StepName,
        *,
        inputs: Annotated[dict[str, Json] | None, Doc("Laid over those of the old run", {"order": 13})] = None,
    ) -> RunStarted:
        """Start a new run that keeps what was finished without a step, and does that step and the rest again."""
