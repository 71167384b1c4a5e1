"""The evaluator's input and output: step rows, the view, events, the need for more rows, and the changes.

A run's state is its set of `StepRow`s and nothing else. Ids are derived from the run and the place, so repeating an operation
yields the same ids. Yields and `sys` statements have no rows: a block's `returns` hold its yielded values.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.evaluator.states import CREATED, STATEMENT_COMPLETE, STATEMENT_ERROR, STEP_KINDS, TERMINAL, State, StepKind
from treadle.model.ids import derived_id
from treadle.model.names import DEFAULT_LIST, short_name
from treadle.model.outcomes import Problem
from treadle.model.runs import ADVANCE_BYTES, RUN_DEPTH, RUN_ROWS
from treadle.model.states import RunState, StepState
from treadle.model.stored import Stored, StoredRow
from treadle.model.values import BlobRef as BlobRef
from treadle.model.values import Json

Value = Json
"""The value of an attribute: JSON, or a `BlobRef`."""


NOT_STARTED = "not_started"
"""The type of the error of a row that did not start: its run, or a `failFast` foreach around it, starts nothing new."""


class StepError(Stored, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The cause of a failure: the root cause, the path of the step where it occurred, and that step's id."""

    message: str
    type: str
    path: str
    step_id: str
    origin: str = ""
    """`handler` or `script` for a failed task; empty for an error of the evaluation."""
    stopped: bool = False
    """Whether nothing failed: the row did not start. Its type is `not_started`, which a handler's error may have, too."""

    @property
    def text(self) -> str:
        """The error in one line: `Checkout.pay: handler failed: card declined`."""
        return f"{self.path}: {self.origin} failed: {self.message}" if self.origin else f"{self.path}: {self.message}"


class StepRow(StoredRow, kw_only=True, omit_defaults=True, gc=False):
    """One step or block of a run. Treat it as frozen: the evaluator returns changed copies."""

    id: str
    run_id: str
    parent_id: str | None = None
    place: str
    """The full path in the run, such as `Checkout/block-0/pay`; the id is derived from it."""
    statement_id: str
    """The id of the program's node; an item has the id of its foreach block."""
    name: str
    """The last segment of the place: a step's name, an alias, or `block-0`, `foreach-3`, `when-case-1`, `catch-0`."""
    kind: StepKind
    facet: str | None = None
    state: State = CREATED
    ordinal: int = 0
    depth: int = 0
    """Number of enclosing steps."""
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    returns: dict[str, Any] = msgspec.field(default_factory=dict)
    """A step's returns; a block's merged yields, once it is complete."""
    error: StepError | None = None
    """Of a failed row; of a complete step, the caught error; of a running block, the error of its first failed child."""
    loop: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of an item: the foreach variable and its value."""
    open: int = 0
    """Children that are not terminal."""
    failed: int = 0
    """Children that failed (a failed `sys.assert` counts); a catch block's failure does not count."""
    failed_first: int | None = None
    """The ordinal of the failed child whose error is displayed: the first one."""
    expanded: int = 0
    total: int | None = None
    """Of a foreach block: number of existing items, and of all items."""
    task_id: str | None = None
    """The task whose result it waits for."""
    timeout_for: int | None = None
    """Timeout of its handler in milliseconds, from a `Timeout` mixin."""
    policy: str | None = None
    """Retry policy of its handler as JSON, from a `Retry` mixin."""
    caught: int = 0
    """The number of the next catch clause (0: the facet's, 1: the step's own) since it was last retried."""
    round: int = 0
    """Number of retries by operators."""
    failed_in: State | None = None
    """The state in which it failed, where a retry continues."""
    generation: int = 0
    """Of the root: how often completed work was repeated. New rows begin with this `round`: their place may have had a task."""
    stops: bool = False
    """Of the root: whether nothing new is started once the run cannot succeed."""
    doom: StepError | None = None
    """Of the root: the failure that no catch will handle, because of which the run will fail; a retry removes it."""

    @property
    def is_step(self) -> bool:
        """Whether it is a step (which has a facet), not a block."""
        return self.kind in STEP_KINDS

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def status(self) -> StepState:
        """The state in the vocabulary shared by the steps of all runs; one that did not start is canceled."""
        stopped = self.state is STATEMENT_ERROR and self.error is not None and self.error.stopped
        return StepState.CANCELED if stopped else status_of(self.state)

    @property
    def path(self) -> str:
        """The place for display: `Checkout.orders[3].pay`."""
        return path_of(self.place)


def status_of(state: State) -> StepState:
    """Return an evaluator's state in the vocabulary shared by the steps of all runs."""
    if state is STATEMENT_COMPLETE:
        return StepState.COMPLETED
    return StepState.FAILED if state is STATEMENT_ERROR else StepState.RUNNING


def path_of(place: str) -> str:
    """Return a place without its blocks and cases, with foreach items as indexes."""
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
    """The run being advanced. `rows` is its number of rows, for the limit on all of them."""

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
    """Limits on one call, and on a whole run."""

    expand: int = 500
    """Foreach items created per call."""
    rows: int = 2_000
    """New rows per call, after which no more blocks are begun; `Changes.again` lists them."""
    blocks: int = 500
    """`Expand` events per call; further ones go to `Changes.again`."""
    depth: int = RUN_DEPTH
    """Steps within steps."""
    total_rows: int = RUN_ROWS
    """Rows of the whole run."""
    value_bytes: int = 16 * 1024 * 1024
    """Bytes of one computed value, and of all parameters of a step, as JSON text."""
    value_depth: int = 500
    """Lists and maps within lists and maps of a computed value."""
    slice_bytes: int = ADVANCE_BYTES
    """Bytes of computed values per call, after which no more blocks are begun."""
    call_bytes: int = 512 * 1024 * 1024
    """Bytes of computed values per call, at which the step that exceeds it fails."""


# --- events --------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The run begins with these inputs; `stops`: nothing new is started once it cannot succeed."""

    inputs: dict[str, Any] = {}
    stops: bool = False


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The handler, pre-script or script of a waiting row returned a result.

    With a `task_id` it counts only if the row waits for that task, so that a late second delivery is not mistaken for the
    result of the next task.
    """

    step_id: str
    result: dict[str, Any] = {}
    task_id: str | None = None


class Errored(msgspec.Struct, frozen=True):
    """The handler, pre-script or script of a waiting row failed permanently."""

    step_id: str
    problem: Problem
    task_id: str | None = None
    withdrawn: bool = False
    """Whether the kernel withdrew the task of a run that cannot succeed."""


class Updated(msgspec.Struct, frozen=True):
    """Partial results of an event step that is still waiting."""

    step_id: str
    partial: dict[str, Any]


class Expand(msgspec.Struct, frozen=True):
    """Continue a block listed in `Changes.again`."""

    block_id: str


class Resend(msgspec.Struct, frozen=True):
    """A row waits, but its task is gone: request the same task again."""

    step_id: str


class RetryStep(msgspec.Struct, frozen=True):
    """An operator retries a failed step, or everything that failed below a step or block; the root stands for the whole run."""

    step_id: str


Event = Started | Finished | Errored | Updated | Expand | Resend | RetryStep

# --- loaded rows, and missing ones ---------------------------------------------------------------------------------


class LoadedRows:
    """The loaded rows. The evaluator never guesses about missing ones; it returns a `Need`."""

    __slots__ = ("blobs", "children", "rows")

    def __init__(self) -> None:
        self.rows: dict[str, StepRow | None] = {}
        """By id; None means that there is no such row."""
        self.children: dict[str, list[str] | tuple[()]] = {}
        """Ids of all children of a row; only for rows with all children loaded."""
        self.blobs: dict[str, Json] = {}

    def add(self, *rows: StepRow) -> None:
        """Add existing rows."""
        for row in rows:
            self.rows[row.id] = row

    def add_new(self, row: StepRow) -> None:
        """Add a new row: it has no children, and its parent has one more."""
        self.rows[row.id] = row
        self.children[row.id] = ()
        siblings = self.children.get(row.parent_id or "")
        if isinstance(siblings, list):
            siblings.append(row.id)
        elif siblings is not None:
            self.children[row.parent_id or ""] = [row.id]

    def add_absent(self, *ids: str) -> None:
        """Add ids that no row has."""
        for row_id in ids:
            self.rows.setdefault(row_id, None)

    def add_children(self, parent_id: str, rows: list[StepRow]) -> None:
        """Add all children of a row, in any order."""
        self.add(*rows)
        self.children[parent_id] = [row.id for row in sorted(rows, key=lambda row: (row.ordinal, row.id))]

    def drop_ended(self) -> None:
        """Drop the rows that are rarely needed again: all but open rows and their children."""
        rows = {row_id: row for row_id, row in self.rows.items() if row is not None}
        ended = {row_id for row_id, row in rows.items() if row.is_terminal}
        live = rows.keys() - ended
        self.rows = {row_id: row for row_id, row in rows.items() if row_id in live or row.parent_id in live}
        self.children = {row_id: ids for row_id, ids in self.children.items() if row_id in live}

    def add_blob(self, digest: str, value: Json) -> None:
        self.blobs[digest] = value


class Need(msgspec.Struct, frozen=True):
    """Load this too and call again: rows (or their absence), all children of rows, blobs by digest."""

    rows: tuple[str, ...] = ()
    children_of: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


# --- requested actions ---------------------------------------------------------------------------------------------


class ScriptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Code to run out of process. Line n of the code is line `line + n - 1` of the source."""

    code: str
    language: str = "python"
    source: str | None = None
    line: int = 1


class RequestedTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task to create in the same unit as the rows. Its id is derived; payload values may be `BlobRef`s."""

    id: str
    step_id: str
    facet: str
    payload: dict[str, Any]
    task_list: str = DEFAULT_LIST
    timeout_for: int | None = None
    policy: str | None = None
    script: ScriptRequest | None = None
    built_in: bool = False
    """Whether the engine itself has the handler of the facet."""

    @property
    def is_script(self) -> bool:
        return self.script is not None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry written by `sys.log`, where `step_id` is the row of its block, or a warning about a step."""

    step_id: str
    path: str
    values: dict[str, Any] = {}
    warning: str | None = None
    """In place of values: what is wrong with the result of the step's handler."""
    line: int | None = None
    source: str | None = None


class Ignored(msgspec.Struct, frozen=True):
    """An event that changed nothing, and the reason."""

    event: Event
    reason: str


class Changes(msgspec.Struct, kw_only=True, gc=False):
    """The changes of one call, in a deterministic order; commit all of them or none."""

    created: list[StepRow] = []
    updated: list[StepRow] = []
    removed: list[StepRow] = []
    """Rows that are created again when their turn comes."""
    tasks: list[RequestedTask] = []
    status: RunState | None = None
    """The run's new state: running, completed or failed; None if it does not change."""
    outputs: dict[str, Any] | None = None
    """Of a completed run: all returns of its root; values may be `BlobRef`s."""
    error: StepError | None = None
    """Of a failed run; `error.text` is the message, `error.step_id` the step."""
    again: list[str] = []
    """Blocks that need an `Expand` event."""
    stopped: bool = False
    """Whether the run failed at a limit: it has open rows, whose tasks are to be canceled, and cannot be retried."""
    doomed: bool = False
    """Whether this call found that the run cannot succeed: its tasks that have not begun are to be withdrawn."""
    dismissed: list[str] = []
    """Failed tasks that need no attention: a catch handles the failure, or the step was retried."""
    ignored: list[Ignored] = []
    logs: list[LogEntry] = []
