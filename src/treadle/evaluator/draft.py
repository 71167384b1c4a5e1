"""The changes of one call in progress: an overlay over the view that detects missing rows."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from enum import Enum, auto
from typing import Any

from treadle.evaluator.operators import EvaluationError
from treadle.evaluator.plan import Plan, is_fail_fast
from treadle.evaluator.records import (
    NOT_STARTED,
    BlobRef,
    Changes,
    Ignored,
    Limits,
    LogEntry,
    RunRef,
    StepError,
    StepRow,
    TaskRequest,
    Value,
    View,
)
from treadle.evaluator.sizes import Sizes
from treadle.evaluator.states import STATEMENT_COMPLETE, STATEMENT_ERROR, STEP_KINDS, State, StepKind
from treadle.lang.program import Block, Facet, Mixin, Step
from treadle.model.ids import derived_id
from treadle.model.states import RunState
from treadle.model.values import Json

_PATH_SHOWN = 160
_STATEMENTS = (Step, Mixin, Facet)


class Missing(Exception):
    """A row or value that is not in the view is needed to continue; the caller catches this and loads it."""

    def __init__(self, rows: Iterable[str] = (), children_of: Iterable[str] = (), blobs: Iterable[str] = ()) -> None:
        super().__init__()
        self.rows, self.children_of, self.blobs = tuple(rows), tuple(children_of), tuple(blobs)


class LimitReached(Exception):
    """The run reaches a limit at this step and is stopped as a whole; no catch sees this."""

    def __init__(self, row: StepRow, message: str, kind: str) -> None:
        super().__init__(message)
        path = row.path if len(row.path) <= _PATH_SHOWN else f"{row.path[: _PATH_SHOWN - 20]}...{row.path[-17:]}"
        self.row, self.error = row, StepError(message=message, type=kind, path=path, step_id=row.id)


class Turn(Enum):
    """Entries of the agenda: begin a new row, notify the parent of a terminal row, or continue a foreach in another call."""

    BEGIN = auto()
    MORE = auto()
    SETTLED = auto()


_BEGIN, _SETTLED = Turn.BEGIN, Turn.SETTLED


class Draft:
    """The working copy of one call. Rows from `edit` and `create` may be changed; their dicts are replaced, never mutated."""

    def __init__(self, plan: Plan, run: RunRef, view: View, limits: Limits) -> None:
        self.plan, self.run, self.view, self.limits = plan, run, view, limits
        self.created: dict[str, StepRow] = {}
        self.updated: dict[str, StepRow] = {}
        self.tasks: dict[str, TaskRequest] = {}
        self.logs: list[LogEntry] = []
        self.again: dict[str, None] = {}
        self.ignored: list[Ignored] = []
        self.agenda: list[tuple[Turn, str]] = []
        """The entries that the current one has added, in order."""
        self.status: RunState | None = None
        self.logged: set[tuple[str, str]] = set()
        self.doomed = False
        self.dismissed: list[str] = []
        self.sizes = Sizes(limits)
        self._root_id = run.root_id
        self._nodes = plan.program.nodes
        self._born: dict[str, list[str]] = {}
        self._ids: dict[str, str] = {}
        """Derived ids, by place."""

    # --- rows ------------------------------------------------------------------------------------------------------

    def find(self, row_id: str) -> StepRow | None:
        """Return the current row; None if there is none."""
        row = self.created.get(row_id) or self.updated.get(row_id)
        if row is not None:
            return row
        try:
            return self.view.rows[row_id]
        except KeyError:
            raise Missing(rows=[row_id]) from None

    def get(self, row_id: str) -> StepRow:
        """Return the current row, which must exist."""
        row = self.find(row_id)
        if row is None:
            raise LookupError(f"run {self.run.id} has no row {row_id}")
        return row

    def find_child(self, parent: StepRow, name: str) -> StepRow | None:
        """Return the child with this last segment of its place."""
        child_id = self._id_of(f"{parent.place}/{name}")
        if parent.id in self.created or parent.id in self.view.children:
            return self.created.get(child_id) or self.updated.get(child_id) or self.view.rows.get(child_id)
        return self.find(child_id)

    def children(self, parent: StepRow) -> list[StepRow]:
        """Return all children, by ordinal."""
        stored: list[str] | tuple[()] = ()
        if parent.id not in self.created:
            if parent.id not in self.view.children:
                raise Missing(children_of=[parent.id])
            stored = self.view.children[parent.id]
        rows = [self.get(each) for each in (*stored, *self._born.get(parent.id, ()))]
        rows.sort(key=lambda row: row.ordinal)
        return rows

    def edit(self, row_id: str) -> StepRow:
        """Return the row for editing."""
        row = self.created.get(row_id) or self.updated.get(row_id)
        if row is None:
            row = self.updated[row_id] = copy(self.get(row_id))
            self._ids[row.place] = row_id
        return row

    def create(
        self, parent: StepRow | None, name: str, kind: StepKind, statement_id: str, *,
        ordinal: int = 0, facet: str | None = None, loop: dict[str, Any] | None = None,
    ) -> StepRow:  # fmt: skip
        """Create a row and schedule its start; its parent gets one more open child."""
        place = f"{parent.place}/{name}" if parent else name
        row = StepRow(
            id=self._id_of(place), run_id=self.run.id, place=place, statement_id=statement_id, name=name,
            kind=kind, facet=facet, ordinal=ordinal, loop=loop or {},
        )  # fmt: skip
        if parent is not None:
            row.parent_id = parent.id
            row.depth = parent.depth + (kind in STEP_KINDS)
            self.edit(parent.id).open += 1
            self._born.setdefault(parent.id, []).append(row.id)
        self.created[row.id] = row
        self.agenda.append((_BEGIN, row.id))
        return row

    def _id_of(self, place: str) -> str:
        found = self._ids.get(place)
        if found is None:
            found = self._ids[place] = derived_id(self.run.id, place)
        return found

    @property
    def stopping(self) -> bool:
        """Whether the run cannot succeed and starts nothing new."""
        root = self.find(self._root_id)
        return root is not None and root.stops and root.doom is not None

    @property
    def full(self) -> bool:
        """Whether this call has reached its limit on new rows or on bytes of values."""
        return len(self.created) >= self.limits.rows or self.sizes.total >= self.limits.slice_bytes

    # --- the program behind a row ----------------------------------------------------------------------------------

    def block_of(self, row: StepRow) -> Block:
        node = self._nodes.get(row.statement_id)
        if type(node) is not Block:
            raise LookupError(f"the program has no block {row.statement_id}")
        return node

    def statement_of(self, row: StepRow) -> Step | Mixin | Facet:
        """Return the step, alias or workflow of a step's row."""
        node = self._nodes.get(row.statement_id)
        if not isinstance(node, _STATEMENTS):
            raise LookupError(f"the program has no statement {row.statement_id}")
        return node

    def facet_of(self, row: StepRow) -> Facet | None:
        plan = self.plan.facet(row.facet)
        return None if plan is None else plan.facet

    def is_stopped(self, row: StepRow) -> bool:
        """Return whether a row is, or is within, a `failFast` foreach of which an item has failed."""
        each: StepRow | None = row if self.plan.fails_fast else None
        while each is not None:
            if each.total is not None and each.failed and is_fail_fast(self.block_of(each)):
                return True
            each = None if each.parent_id is None else self.get(each.parent_id)
        return False

    # --- values ----------------------------------------------------------------------------------------------------

    def load(self, value: Value) -> Json:
        """Return the JSON behind a value."""
        if not isinstance(value, BlobRef):
            return value
        try:
            loaded = self.view.blobs[value.digest]
        except KeyError:
            raise Missing(blobs=[value.digest]) from None
        self.sizes.know(loaded, value.size)
        return loaded

    # --- ends ------------------------------------------------------------------------------------------------------

    def complete(self, row: StepRow) -> None:
        """Mark the row as complete."""
        row.state, row.failed_in = STATEMENT_COMPLETE, None
        if row.parent_id is None:
            self.status = RunState.COMPLETED
        else:
            self.agenda.append((_SETTLED, row.id))

    def fail(self, row: StepRow, error: StepError, failed_in: State) -> None:
        """Mark the row as failed."""
        row.state, row.error, row.failed_in = STATEMENT_ERROR, error, failed_in
        if row.parent_id is None:
            self.status = RunState.FAILED
        else:
            self.agenda.append((_SETTLED, row.id))

    def stop(self, reached: LimitReached) -> Changes:
        """Return the changes that fail the run at a limit: only the step that reached it and its ancestors change.

        The other rows stay as they are, open ones too, and everything else that this call began is dropped.
        """
        chain: list[StepRow] = []
        row: StepRow | None = reached.row
        while row is not None:
            row = self.edit(row.id)
            row.state, row.error, row.failed_in = STATEMENT_ERROR, reached.error, row.state
            chain.insert(0, row)
            row = self.get(row.parent_id) if row.parent_id is not None else None
        new = [each for each in chain if each.id in self.created]
        old = [each for each in chain if each.id not in self.created]
        return Changes(created=new, updated=old, status=RunState.FAILED, error=reached.error, stopped=True, ignored=self.ignored)

    def changes(self) -> Changes:
        """Return all changes of the call."""
        changes = Changes(
            created=list(self.created.values()), updated=list(self.updated.values()), tasks=list(self.tasks.values()),
            status=self.status, again=list(self.again), ignored=self.ignored, logs=self.logs,
            doomed=self.doomed and self.status is not RunState.FAILED, dismissed=self.dismissed,
        )  # fmt: skip
        if self.status in (RunState.COMPLETED, RunState.FAILED):
            root = self.get(self._root_id)
            changes.outputs = dict(root.returns) if self.status is RunState.COMPLETED else None
            changes.error = root.error if self.status is RunState.FAILED else None
        return changes


def stopped_at(row: StepRow) -> StepError:
    """Return the error of a row that did not start because another item of a `failFast` foreach had failed."""
    message = "not started, because another item of the foreach has failed"
    return StepError(message=message, type=NOT_STARTED, path=row.path, step_id=row.id, stopped=True)


def error_in(row: StepRow, error: EvaluationError) -> StepError:
    """Return the error of a row with an expression that has no value."""
    return StepError(message=error.message, type=error.type, path=row.path, step_id=row.id)
