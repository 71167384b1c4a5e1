"""Steps of runs: pages of them, one in full, what their time went into, and what agents say about one that waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.runs import RunId, RunLine, StepName
from treadle.api.tasks import TaskDetail
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.trees import depth_first
from treadle.model.values import Json

Order = Literal["program", "stored"]
SpanKind = Literal["waiting", "running", "outside", "approval", "mixed"]


@dataclass(frozen=True, slots=True)
class StepFailure(ApiRecord):
    """Why a step failed; of a completed one: what was caught."""

    type: str
    message: str
    """The whole story in one line."""
    step_id: str
    """Where it arose."""
    cause: str
    """The message alone."""


@dataclass(frozen=True, slots=True)
class Step(ApiRecord):
    """A step or block of a run; a value that is stored apart is shown by its size: `{"@size": characters}`."""

    id: str
    path: str
    """For people: `Checkout.orders[3].pay`."""
    place: str
    statement_id: str
    """The node of the graph that it is of."""
    name: str
    kind: str
    """Of steps `workflow`, `step`, `schema` or `mixin`; of blocks `block`, `item`, `case` or `catch`."""
    is_step: bool
    """Whether it is a step, and not a block."""
    facet: str | None
    """Of a function's step: its kind, such as `step`, `sleep`, `call`, `wait` or `approval`."""
    state: str
    """`pending`, `running`, `paused`, `completed` or `failed`."""
    language_state: str
    """The state as the language names it."""
    folds: bool
    """Whether there may be something below it."""
    parent_id: str | None
    ordinal: int
    """Its place among its siblings."""
    depth: int
    """How many steps it stands below."""
    task_id: str | None
    """The task whose result it waits for, or waited for."""
    params: Json
    returns: Json
    error: StepFailure | None
    open: int
    """Children that have not ended."""
    failed: int
    """Children that failed."""
    total: int | None
    """Of a foreach: how many items there will be."""
    took_for: int | None
    """Null while it goes on, and where nobody knows."""
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class StepPage(ApiRecord):
    """Steps of a run."""

    run_id: str
    steps: list[Step]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class StepDetail(Step):
    """One step in full."""

    loop: Json
    """Of an item: the variable and its value."""
    task: TaskDetail | None
    """The task with its attempts, payload, result, moves and lines, while it is kept."""
    lines: list[RunLine]
    """The last lines about the step, those of its task among them."""


@dataclass(frozen=True, slots=True)
class TimeSpan(ApiRecord):
    """What a step was in for a while."""

    kind: SpanKind
    """`waiting` for a worker, a backoff or an operator, `running`, `outside` in an outside job, `approval`: waiting for a person;
    `mixed`: it waited, then ran, and the log does not know when it was taken."""
    began_at: Instant
    ended_at: Instant | None
    """Null while it goes on."""


@dataclass(frozen=True, slots=True)
class StepTime(ApiRecord):
    """When a step was there, and what its time went into as far as the log knows."""

    id: str
    path: str
    facet: str | None
    state: str
    depth: int
    task_id: str | None
    began_at: Instant
    ended_at: Instant | None
    spans: list[TimeSpan]
    """Those of its task."""


@dataclass(frozen=True, slots=True)
class Timeline(ApiRecord):
    """Steps in the order of the program with their times."""

    run_id: str
    now: Instant
    """Where what goes on has got to."""
    steps: list[StepTime]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class StepAnswered(ApiRecord):
    """What was said about a step."""

    run_id: str
    step_id: str
    path: str
    done: bool
    """False: it had its result already, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class StepFound(ApiRecord):
    """Where a step is."""

    run_id: str
    step_id: str
    path: str


class StepsApi(Protocol):
    """Steps of runs."""

    @contract.get("/steps/{step_id}", lists=True)
    async def find(self, step_id: Annotated[str, Doc("The step's id", "01935b8e-7c3a-7000-8000-000000000000")]) -> StepFound:
        """Which run a step is of, for who knows its id alone."""

    @contract.get("/runs/{run_id}/steps", lists=True)
    async def list(
        self,
        run_id: RunId,
        *,
        below: Annotated[str | None, Doc("Only the children of this step or block; the run's id: what is at the top")] = None,
        state: Annotated[Sequence[str], Doc("Only these states; may be repeated", ["failed"])] = (),
        blocks: Annotated[bool, Doc("Blocks, items and cases too; without them, only where something happens in them")] = True,
        values: Annotated[bool, Doc("With params and returns")] = True,
        order: Annotated[Order, Doc("That of the program, or as they are stored: cheaper for runs with many steps")] = "program",
        limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100,
        after: Annotated[str | None, Doc("The `next_after` of the page before")] = None,
    ) -> StepPage:
        """Steps and blocks of a run, each below what it belongs to; children alone if asked for, so that a view can fold.

        In the order `stored` a page may be shorter than `limit` though there are more.
        """

    @contract.get("/runs/{run_id}/timeline", lists=True)
    async def timeline(
        self,
        run_id: RunId,
        *,
        below: Annotated[str | None, Doc("Only the children of this step or block; the run's id: what is at the top")] = None,
        blocks: Annotated[bool, Doc("Blocks, items and cases too")] = False,
        limit: Annotated[int, Doc("At most so many, up to 1000", 100)] = 100,
        after: Annotated[str | None, Doc("The `next_after` of the page before")] = None,
    ) -> Timeline:
        """When each step was there: waiting, running, outside; as far as the log knows."""

    @contract.get("/runs/{run_id}/steps/{step}", lists=True)
    async def get(
        self,
        run_id: RunId,
        step: StepName,
        *,
        whole: Annotated[bool, Doc("With big values, which are else shown by their size")] = False,
    ) -> StepDetail:
        """One step: values, error, its task with attempts and moves, and the lines about it."""

    @contract.post("/runs/{run_id}/steps/{step}/continue", Scope.OPERATE)
    async def continue_step(
        self,
        run_id: RunId,
        step: StepName,
        result: Annotated[dict[str, Json] | None, Doc("What its handler would have returned", {"receipt": "r-1"})] = None,
    ) -> StepAnswered:
        """Give a step that waits for its handler its result, whoever holds its task."""

    @contract.post("/runs/{run_id}/steps/{step}/fail", Scope.OPERATE)
    async def fail_step(
        self,
        run_id: RunId,
        step: StepName,
        message: Annotated[str, Doc("Why", "out of stock")],
        *,
        code: Annotated[str, Doc("The stable code of the failure", "failed")] = "failed",
    ) -> StepAnswered:
        """Fail a step that waits for its handler."""


def in_order(steps: Sequence[Step]) -> Iterator[Step]:
    """Steps as a tree, depth first, as the program has them; for those that came as they are stored."""
    return depth_first(
        steps, lambda step: step.id, lambda step: step.parent_id, lambda step: (step.ordinal, step.created_at, step.place)
    )
