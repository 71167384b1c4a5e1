"""Steps of runs: pages, details, timelines, and results set by operators and agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.runs import RunId, RunLogLine, StepName
from treadle.api.tasks import TaskDetail
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.runs import depth_first, place_order
from treadle.model.values import Json

Order = Literal["program", "stored"]
SpanKind = Literal["waiting", "running", "outside", "approval", "mixed"]


class StepFailure(ApiRecord, frozen=True):
    """The failure of a step; for a completed step, the caught failure."""

    type: str
    message: str
    """The failure in one line, with its origin."""
    step_id: str
    """The step where it arose."""
    cause: str
    """The message alone."""


class StepSummary(ApiRecord, frozen=True, kw_only=True):
    """The facts about a step or block that its times are shown with."""

    id: str
    path: str
    """A readable path: `Checkout.orders[3].pay`."""
    facet: str | None
    """For a function's step: its kind, such as `step`, `sleep`, `call`, `wait` or `approval`."""
    about: str
    """Its arguments in one line, up to 120 characters, such as `row = 7`; for an item of a foreach, the item."""
    state: str
    """`pending` (waits for a worker or for its next attempt), `running`, `paused`, `completed`, `failed` or `canceled`."""
    depth: int
    """Number of steps above it."""
    task_id: str | None
    """The task whose result it waits or waited for."""
    began_at: Instant
    """When its last attempt began; if that is unknown, when it was created."""
    ended_at: Instant | None
    """Null while it is open."""
    took_for: int | None
    """Its duration without the time before a retry of its run; null while it is open."""
    kind: str
    """For steps: `workflow`, `step`, `schema` or `mixin`; for blocks: `block`, `item`, `case` or `catch`."""
    folds: bool
    """Whether it can have children."""
    parent_id: str | None
    open: int
    """Children that have not ended."""
    failed: int
    """Children that failed."""
    total: int | None
    """For a foreach: the number of items."""


class Step(StepSummary, frozen=True, kw_only=True):
    """A step or block of a run; a large value is shown by its size: `{"@size": characters}`."""

    place: str
    statement_id: str
    """Its node in the graph."""
    name: str
    is_step: bool
    """Whether it is a step rather than a block."""
    language_state: str
    """The state in the terms of the language."""
    ordinal: int
    """Its position among its siblings."""
    params: Json
    returns: Json
    error: StepFailure | None
    attempt: int | None
    """The number of its current or last attempt; null if unknown."""
    worker: str | None
    """The id of the server that executes or last executed it; null if unknown."""
    created_at: Instant
    updated_at: Instant
    expects: dict[str, str] | None = None
    """For the step of an event facet that has not ended: types of the declared results, by name."""


class StepPage(ApiRecord, frozen=True):
    """Steps of a run."""

    run_id: str
    steps: list[Step]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last page."""


class StepDetail(Step, frozen=True, kw_only=True):
    """All details of one step."""

    loop: Json
    """For an item: the variable and its value."""
    task: TaskDetail | None
    """The task with its attempts, payload, result, history and log lines, while it is kept."""
    lines: list[RunLogLine]
    """The last log lines of the step and its task."""
    traceback: str | None
    """The traceback of its last failure, if the code of a handler or function raised it."""


class TimeSpan(ApiRecord, frozen=True):
    """A span of a step's time."""

    kind: SpanKind
    """`waiting` for a worker, a backoff or an operator; `running`; `outside`: in an external job; `approval`: by a person;
    `mixed`: it waited and then ran, and the log does not contain the boundary."""
    began_at: Instant
    ended_at: Instant | None
    """Null while it continues."""


class StepTime(StepSummary, frozen=True, kw_only=True):
    """Lifetime of a step, divided into spans as far as the log allows."""

    spans: list[TimeSpan]
    """Spans of its task."""


class Timeline(ApiRecord, frozen=True):
    """Steps in program order, with their times."""

    run_id: str
    now: Instant
    """The current time, at which open spans end."""
    steps: list[StepTime]
    next_after: str | None


class StepLocation(ApiRecord, frozen=True):
    """The location of a step."""

    run_id: str
    step_id: str
    path: str


class StepCompletion(StepLocation, frozen=True):
    """The result of completing or failing a step."""

    done: bool
    """False: it already had its result; nothing was changed."""


class StepsApi(Protocol):
    """Steps of runs."""

    @contract.get("/steps/{step_id}", lists=True)
    async def find(self, step_id: Annotated[str, Doc("The step's id", "01935b8e-7c3a-7000-8000-000000000000")]) -> StepLocation:
        """Find the run of a step by the step's id."""

    @contract.get("/runs/{run_id}/steps", lists=True)
    async def list(
        self,
        run_id: RunId,
        *,
        below: Annotated[str | None, Doc("Only the children of this step or block; the run's id: the top level")] = None,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated", ["failed"])] = (),
        blocks: Annotated[bool, Doc("Include blocks, items and cases")] = True,
        values: Annotated[bool, Doc("Include params and returns")] = True,
        order: Annotated[Order, Doc("Program order, or storage order, which is cheaper for runs with many steps")] = "program",
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        after: Annotated[str | None, Doc("`next_after` of the previous page")] = None,
    ) -> StepPage:
        """Steps and blocks of a run, each below its parent; optionally only the children of one, for views that fold.

        In the order `stored`, a page can be shorter than `limit` although there are more.
        """

    @contract.get("/runs/{run_id}/timeline", lists=True)
    async def timeline(
        self,
        run_id: RunId,
        *,
        below: Annotated[str | None, Doc("Only the children of this step or block; the run's id: the top level")] = None,
        blocks: Annotated[bool, Doc("Include blocks, items and cases")] = False,
        limit: Annotated[int, Doc("Page size, up to 1000", 100)] = 100,
        after: Annotated[str | None, Doc("`next_after` of the previous page")] = None,
    ) -> Timeline:
        """Timeline of the steps: waiting, running, external; as far as the log allows."""

    @contract.get("/runs/{run_id}/steps/{step}", lists=True)
    async def get(
        self,
        run_id: RunId,
        step: StepName,
        *,
        whole: Annotated[bool, Doc("Include large values, which are otherwise shown by their size")] = False,
    ) -> StepDetail:
        """One step: values, error, its task with attempts and history, and its log lines."""

    @contract.post("/runs/{run_id}/steps/{step}/continue", Scope.OPERATE)
    async def continue_step(
        self,
        run_id: RunId,
        step: StepName,
        result: Annotated[dict[str, Json] | None, Doc("The result in place of the handler's", {"receipt": "r-1"})] = None,
    ) -> StepCompletion:
        """Complete a step that waits for its handler, even if a worker holds its task."""

    @contract.post("/runs/{run_id}/steps/{step}/fail", Scope.OPERATE)
    async def fail_step(
        self,
        run_id: RunId,
        step: StepName,
        message: Annotated[str, Doc("Reason", "out of stock")],
        *,
        code: Annotated[str, Doc("A stable error code", "failed")] = "failed",
    ) -> StepCompletion:
        """Fail a step that waits for its handler."""


def in_order(steps: Sequence[Step]) -> Iterator[Step]:
    """Steps as a tree in program order, depth first; input is in storage order."""
    return depth_first(
        steps,
        lambda step: step.id,
        lambda step: step.parent_id,
        lambda step: (*place_order(step.place), step.ordinal, step.created_at, step.place),
    )
