"""What goes into the evaluator and what comes out: step rows, the view, events, the need for more, and the changes.

A run's state is its set of `StepRow`s and nothing else. Ids are derived from the run and the place, so that doing a thing
twice names the same thing. Yields and `sys` statements have no rows: what a block yielded is in its `returns`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.evaluator.states import STEP_KINDS, TERMINAL, State, StepKind
from treadle.model.ids import derived_id
from treadle.model.names import DEFAULT_LIST, short_name
from treadle.model.outcomes import Problem
from treadle.model.states import RunState, StepState
from treadle.model.values import BlobRef as BlobRef
from treadle.model.values import Json

Value = Json
"""The value of an attribute: JSON, or a `BlobRef`."""


class StepError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a row failed: the root cause, the path of the step where it arose, and that step's id."""

    message: str
    type: str
    path: str
    step_id: str
    origin: str = ""
    """`handler` or `script` for what failed outside; empty for what the evaluator found."""

    @property
    def text(self) -> str:
        """The whole story in one line: `Checkout.pay: handler failed: card declined`."""
        return f"{self.path}: {self.origin} failed: {self.message}" if self.origin else f"{self.path}: {self.message}"


class StepRow(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One step or block of a run. Treat it as frozen: the evaluator hands out changed copies."""

    id: str
    run_id: str
    parent_id: str | None = None
    place: str
    """The full path in the run, such as `Checkout/block-0/pay`; the id is derived from it."""
    statement_id: str
    """The id of the program's node; an item has that of its foreach block."""
    name: str
    """The last segment of the place: a step's name, an alias, or `block-0`, `foreach-3`, `when-case-1`, `catch-0`."""
    kind: StepKind
    facet: str | None = None
    state: State = State.CREATED
    ordinal: int = 0
    depth: int = 0
    """How many steps it stands below."""
    params: dict[str, Any] = {}
    returns: dict[str, Any] = {}
    """A step's returns; a block's merged yields, once it is complete."""
    error: StepError | None = None
    """Of a failed row; of a complete step: the error that was caught; of a running block: its first failed child's."""
    loop: dict[str, Any] = {}
    """Of an item: the foreach variable and its value."""
    open: int = 0
    """Children that are not terminal."""
    failed: int = 0
    """Children that failed (a failed `sys.assert` counts); a catch block's failure does not count."""
    failed_first: int | None = None
    """The ordinal of the failed child whose error is shown: the first one."""
    expanded: int = 0
    total: int | None = None
    """Of a foreach block: how many items exist, and how many there will be."""
    task_id: str | None = None
    """The task whose result it waits for."""
    timeout_for: int | None = None
    """Milliseconds that its handler may take, from a `Timeout` mixin."""
    caught: int = 0
    """The number of the next catch clause (0: the facet's, 1: the step's own) since it was last retried."""
    round: int = 0
    """How often an operator has retried it."""
    failed_in: State | None = None
    """Where it was when it failed, so that a retry knows where to go on."""

    @property
    def is_step(self) -> bool:
        """Whether it is a step (which has a facet), not a block."""
        return self.kind in STEP_KINDS

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def status(self) -> StepState:
        """The state in the words that steps of every kind of run share."""
        return status_of(self.state)

    @property
    def path(self) -> str:
        """The place for people: `Checkout.orders[3].pay`."""
        return path_of(self.place)


def status_of(state: State) -> StepState:
    """An evaluator's state in the words that steps of every kind of run share."""
    if state is State.STATEMENT_COMPLETE:
        return StepState.COMPLETED
    return StepState.FAILED if state is State.STATEMENT_ERROR else StepState.RUNNING


def path_of(place: str) -> str:
    """A place without its blocks and cases, with foreach items as indexes."""
    path = ""
    for segment in place.split("/"):
        word, dash, number = segment.partition("-")
        if not dash:
            path += f".{segment}" if path else segment
        elif word == "foreach":
            path += f"[{number}]"
        elif word == "catch":
            path += ".catch"
    return path


class RunRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The run that is advanced. `rows`: how many rows it has, for the limit on all of them."""

    id: str
    workflow: str
    """The qualified name."""
    rows: int = 0

    @property
    def root_place(self) -> str:
        return short_name(self.workflow)

    @property
    def root_id(self) -> str:
        """The id of the run's root row."""
        return derived_id(self.id, self.root_place)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one call may do, and a run at all."""

    expand: int = 500
    """Foreach items made per call."""
    rows: int = 5_000
    """New rows per call, after which no more blocks are begun; they are in `Changes.again`."""
    depth: int = 100
    """Steps within steps."""
    total_rows: int = 1_000_000
    """Rows of the whole run."""


# --- events --------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The run begins with these inputs."""

    inputs: dict[str, Any] = {}


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The handler, pre-script or script that a row waits for gave a result.

    With a `task_id` it counts only if the row waits for that very task, so that a late second delivery is not taken
    for the result of what came next.
    """

    step_id: str
    result: dict[str, Any] = {}
    task_id: str | None = None


class Errored(msgspec.Struct, frozen=True):
    """The handler, pre-script or script that a row waits for failed for good."""

    step_id: str
    problem: Problem
    task_id: str | None = None


class Updated(msgspec.Struct, frozen=True):
    """Partial results of an event step that goes on waiting."""

    step_id: str
    partial: dict[str, Any]


class Expand(msgspec.Struct, frozen=True):
    """Go on with a block that `Changes.again` named."""

    block_id: str


class Resend(msgspec.Struct, frozen=True):
    """A row waits, but its task is gone: wish for the same task again."""

    step_id: str


class RetryStep(msgspec.Struct, frozen=True):
    """An operator wants a failed step (or everything that failed below a step or block) done again."""

    step_id: str


Event = Started | Finished | Errored | Updated | Expand | Resend | RetryStep

# --- what has been loaded, and what is missing ---------------------------------------------------------------------


class View:
    """What the caller has loaded. The evaluator never guesses at what is not in here; it returns a `Need`."""

    __slots__ = ("blobs", "children", "rows")

    def __init__(self) -> None:
        self.rows: dict[str, StepRow | None] = {}
        """By id; None says that there is no such row."""
        self.children: dict[str, list[str] | tuple[()]] = {}
        """Ids of all children of a row; only for rows whose children are loaded completely."""
        self.blobs: dict[str, Json] = {}

    def add(self, *rows: StepRow) -> None:
        """Rows that exist."""
        for row in rows:
            self.rows[row.id] = row

    def add_new(self, row: StepRow) -> None:
        """A row that was just made: it has no children, and its parent has one more."""
        self.rows[row.id] = row
        self.children[row.id] = ()
        siblings = self.children.get(row.parent_id or "")
        if isinstance(siblings, list):
            siblings.append(row.id)
        elif siblings is not None:
            self.children[row.parent_id or ""] = [row.id]

    def add_absent(self, *ids: str) -> None:
        """Ids that no row has."""
        for each in ids:
            self.rows.setdefault(each, None)

    def add_children(self, parent_id: str, rows: list[StepRow]) -> None:
        """All children of a row, in any order."""
        self.add(*rows)
        self.children[parent_id] = [row.id for row in sorted(rows, key=lambda row: (row.ordinal, row.id))]

    def add_blob(self, digest: str, value: Json) -> None:
        self.blobs[digest] = value


class Need(msgspec.Struct, frozen=True):
    """Load this too and call again: rows (or the fact that there are none), all children of rows, blobs by digest."""

    rows: tuple[str, ...] = ()
    children_of: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


# --- what is to be done --------------------------------------------------------------------------------------------


class ScriptWish(msgspec.Struct, frozen=True, kw_only=True):
    """Code to run out of process. Line n of the code is line `line + n - 1` of the source."""

    code: str
    language: str = "python"
    source: str | None = None
    line: int = 1


class TaskWish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task to create in the same unit as the rows. Its id is derived; values of the payload may be `BlobRef`s."""

    id: str
    step_id: str
    facet: str
    payload: dict[str, Any]
    task_list: str = DEFAULT_LIST
    timeout_for: int | None = None
    script: ScriptWish | None = None

    @property
    def is_script(self) -> bool:
        return self.script is not None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a `sys.log` said; `step_id` is the row of its block."""

    step_id: str
    path: str
    values: dict[str, Any]
    line: int | None = None
    source: str | None = None


class Ignored(msgspec.Struct, frozen=True):
    """An event that changed nothing, and why."""

    event: Event
    reason: str


class Changes(msgspec.Struct, kw_only=True, gc=False):
    """What one call decided, all of it in a deterministic order; to be committed together or not at all."""

    created: list[StepRow] = []
    updated: list[StepRow] = []
    tasks: list[TaskWish] = []
    status: RunState | None = None
    """The run's new state: running, completed or failed; None if it stays what it is."""
    outputs: dict[str, Any] | None = None
    """Of a completed run: all returns of its root; values may be `BlobRef`s."""
    error: StepError | None = None
    """Of a failed run; `error.text` is the message, `error.step_id` the step."""
    again: list[str] = []
    """Blocks that want an `Expand`."""
    ignored: list[Ignored] = []
    logs: list[LogEntry] = []
