"""The changes of one call in progress: an overlay over the view that detects missing rows.

`ProgramLookups` has the facts about a program that do not depend on a run, computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

from treadle.evaluator.operators import EvaluationError, Sizes
from treadle.evaluator.records import (
    NOT_STARTED,
    BlobRef,
    Changes,
    Ignored,
    Limits,
    LoadedRows,
    LogEntry,
    RequestedTask,
    RunRef,
    ScriptRequest,
    StepError,
    StepRow,
    Value,
)
from treadle.evaluator.states import (
    BLOCK,
    BLOCK_EXECUTION_BEGIN,
    CATCH_CONTINUE,
    EVENT_TRANSMIT,
    FACET_INIT_BEGIN,
    FACET_SCRIPTS_BEGIN,
    ITEM,
    STATEMENT_COMPLETE,
    STATEMENT_ERROR,
    STEP_KINDS,
    State,
    StepKind,
)
from treadle.lang.nodes import (
    Block,
    Expr,
    Facet,
    InputRef,
    Mixin,
    Param,
    Script,
    Step,
    Sys,
    SysKind,
    walk,
)
from treadle.lang.program import Program
from treadle.model.ids import derived_id
from treadle.model.names import short_name
from treadle.model.states import RunState
from treadle.model.values import Json


def await_handler(draft: Draft, row: StepRow) -> None:
    """Wait for the handler of the row's event facet; it receives all parameters."""
    row.state = EVENT_TRANSMIT
    _request(draft, row, "event", row.params)


def await_script(draft: Draft, row: StepRow, script: Script, owner: StepRow) -> None:
    """Wait for a script that runs on its owner's attributes: a block's script also sees an event's results."""
    row.state = BLOCK_EXECUTION_BEGIN if row.kind is BLOCK else FACET_SCRIPTS_BEGIN
    place = script.location
    request = ScriptRequest(
        code=script.code,
        language=script.language,
        source=place.source if place else None,
        line=(place.code_line or place.line) if place else 1,
    )
    _request(draft, row, "script", {**owner.returns, **owner.params}, request)


def _request(draft: Draft, row: StepRow, what: str, payload: dict[str, Value], script: ScriptRequest | None = None) -> None:
    owner = row if row.facet is not None or row.parent_id is None else draft.get(row.parent_id)
    row.task_id = task_id_of(row, what)
    draft.tasks[row.id] = RequestedTask(
        id=row.task_id,
        step_id=row.id,
        facet=owner.facet or "",
        payload=dict(payload),
        timeout_for=None if script else row.timeout_for,
        policy=None if script else row.policy,
        script=script,
        built_in=script is None and is_built_in_facet(draft, row),
    )


def is_built_in_facet(draft: Draft, row: StepRow) -> bool:
    """Return whether the engine itself has the handler of the row's facet."""
    return row.facet not in draft.plan.program.facets and draft.facet_of(row) is not None


def task_id_of(row: StepRow, what: str = "event") -> str:
    """Return the id of the row's current or latest task since its last retry."""
    return derived_id(row.run_id, f"{row.place}#{what}-{row.round}")


def is_waiting(draft: Draft, row: StepRow) -> bool:
    """Return whether a row waits for a task."""
    if row.state is BLOCK_EXECUTION_BEGIN:
        return draft.block_of(row).script is not None
    return row.state in (EVENT_TRANSMIT, FACET_SCRIPTS_BEGIN)


def stop_waiting(draft: Draft, row: StepRow) -> None:
    """End the wait; drop a task that this call has requested."""
    row.task_id = None
    draft.tasks.pop(row.id, None)


def wait_again(draft: Draft, row: StepRow) -> None:
    """Request the task again: the same one, unless the row has been retried since."""
    if row.state is EVENT_TRANSMIT:
        await_handler(draft, row)
        return
    facet = draft.facet_of(row)
    script = facet.pre_script if row.is_step and facet else draft.block_of(row).script
    if script is not None:
        await_script(draft, row, script, row if row.is_step else draft.get(row.parent_id or ""))


# --- failures that no catch handles ----------------------------------------------------------------------------------


def next_catch(draft: Draft, row: StepRow, failed_in: State) -> tuple[int, Block] | None:
    """Return the catch clause of a step that handles its next failure (the facet's, then its own), and its number.

    A facet's catch does not see errors of arguments, because those belong to its caller; a step's own catch sees all.
    """
    if draft.is_stopped(row):
        return None
    statement = draft.statement_of(row)
    facet = draft.facet_of(row)
    inner = facet.catch if facet is not None and failed_in is not FACET_INIT_BEGIN else None
    clauses = (inner, statement.catch if isinstance(statement, Step) else None)
    return next(((n, clause) for n, clause in enumerate(clauses) if n >= row.caught and clause is not None), None)


def collecting(block: Block, row: StepRow) -> str | None:
    """Return the return that collects the errors of a foreach's items, if it collects them."""
    return block.foreach.failed if block.foreach is not None and row.kind is not ITEM else None


def is_handled(draft: Draft, row: StepRow) -> bool:
    """Return whether a catch or a collecting foreach above a failed row will handle the failure, or its own catch does so now."""
    if draft.stopping:
        return False
    if row.state is CATCH_CONTINUE:
        return True
    while row.parent_id is not None:
        row = draft.get(row.parent_id)
        if row.is_step and next_catch(draft, row, row.state) is not None:
            return True
        if not row.is_step and collecting(draft.block_of(row), row) is not None and not draft.is_stopped(row):
            return True
    return False


def note_failure(draft: Draft, row: StepRow) -> None:
    """Record on the root that the run cannot succeed, if nothing above a failed row handles the failure.

    Of several failures, the one with the first path: the record does not depend on their order.
    """
    doom, error = draft.get(draft.run.root_id).doom, row.error
    precedes = doom is not None and (draft.stopping or error is None or doom.path <= error.path)
    if not precedes and not (error is not None and error.stopped) and not is_handled(draft, row):
        root = draft.edit(draft.run.root_id)
        root.doom, draft.doomed = error, root.stops


def withdraw(draft: Draft, row: StepRow, failed_in: State, uncaught: StepError | None = None) -> None:
    """End a row that has not begun, or whose catch has not begun to handle `uncaught`; a retry continues in `failed_in`."""
    doom = draft.get(draft.run.root_id).doom
    message = f"not started, because the run will fail: {doom.text if doom else ''}"
    if uncaught is not None:
        message = f"{uncaught.message} (not caught, because the run will fail)"
    draft.fail(row, StepError(message=message, type=NOT_STARTED, path=row.path, step_id=row.id, stopped=True), failed_in)


_REMEMBERED = 64


@dataclass(slots=True)
class BlockPlan:
    """A block's statements by dependency. `aliases`: the signature aliases to which its yields write."""

    block: Block
    order: dict[str, int] = field(default_factory=dict)
    first: list[Step | Sys] = field(default_factory=list)
    after: dict[str, list[Step | Sys]] = field(default_factory=dict)
    asserts: list[Sys] = field(default_factory=list)
    aliases: frozenset[str] = frozenset()
    records: set[str] = field(default_factory=set)
    """The steps that are values of a schema, or values as such, and call nothing."""


@dataclass(slots=True)
class FacetPlan:
    """The parts of a facet's signature by use."""

    facet: Facet
    aliases: tuple[tuple[int, Mixin], ...]
    """The mixins that run as steps of their own, with their numbers."""
    alias_names: frozenset[str]
    checked: tuple[Param, ...]
    """The returns whose values have a type; the others are steps."""
    required: tuple[Param, ...]
    """The returns without a default that may not be missing."""
    defaults: tuple[Param, ...]
    """The returns with a default."""
    pool: dict[str, tuple[str, Expr]]
    """The values that the signature gives to missing parameters, by name, each with its origin."""
    has_implicits: bool
    has_options: bool
    """Whether a mixin of the signature is `Timeout` or `Retry`."""


class ProgramLookups:
    """Lookups in one program; `facet` has the plan of a declared facet by its qualified name."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.facet = cache(self._facet)
        self._blocks: dict[str, BlockPlan] = {}

    def _facet(self, name: str | None) -> FacetPlan | None:
        facet = None if name is None else self.program.find_facet(name)
        return None if facet is None else _plan_facet(self.program, facet)

    @cached_property
    def fails_fast(self) -> bool:
        """Whether the program has a foreach with `failFast`."""
        return any(isinstance(node, Block) and is_fail_fast(node) for node in self.program.nodes.values())

    def block(self, block: Block) -> BlockPlan:
        """Return the plan of a block."""
        plan = self._blocks.get(block.id)
        if plan is None or plan.block is not block:
            plan = self._blocks[block.id] = _plan_block(self.program, block)
        return plan


_plans: dict[int, ProgramLookups] = {}


def plan_of(program: Program) -> ProgramLookups:
    """Return the plan of a program; the latest plans are cached, which affects only speed."""
    plan = _plans.get(id(program))
    if plan is None or plan.program is not program:
        for oldest in list(_plans)[: len(_plans) - _REMEMBERED + 1]:
            _plans.pop(oldest, None)
        plan = _plans[id(program)] = ProgramLookups(program)
    return plan


def _plan_block(program: Program, block: Block) -> BlockPlan:
    plan = BlockPlan(block, {step.name: index for index, step in enumerate(block.steps)})
    for step in block.steps:
        if step.call.is_value or (program.find_facet(step.call.name) is None and program.find_schema(step.call.name) is not None):
            plan.records.add(step.name)
    statements: list[Step | Sys] = [*block.steps, *block.sys]
    for statement in statements:
        if isinstance(statement, Sys) and statement.kind is SysKind.ASSERT:
            plan.asserts.append(statement)
        elif not statement.depends:
            plan.first.append(statement)
        else:
            for name in statement.depends:
                plan.after.setdefault(name, []).append(statement)
    plan.aliases = frozenset(_aliases(block))
    return plan


def _plan_facet(program: Program, facet: Facet) -> FacetPlan:
    pool: dict[str, tuple[str, Expr]] = {}
    for mixin in facet.mixins:
        if mixin.alias is None and not is_built_in(mixin):
            for arg in mixin.args:
                pool.setdefault(arg.name, ("mixin argument", arg.value))
    for param in facet.params:
        if param.default is not None:
            pool.setdefault(param.name, ("default of", param.default))
    return FacetPlan(
        facet=facet,
        aliases=tuple((n, mixin) for n, mixin in enumerate(facet.mixins) if mixin.alias is not None and not is_built_in(mixin)),
        alias_names=frozenset(mixin.alias for mixin in facet.mixins if mixin.alias),
        checked=tuple(param for param in facet.returns if not param.reference),
        required=tuple(param for param in facet.returns if param.is_needed),
        defaults=tuple(param for param in facet.returns if param.default is not None),
        pool=pool,
        has_implicits=bool(program.list_implicits(facet.qualified_name, None)),
        has_options=any(is_timeout(mixin) or is_retry(mixin) for mixin in facet.mixins),
    )


def is_fail_fast(block: Block) -> bool:
    return block.foreach is not None and block.foreach.mode == "failFast"


def _aliases(block: Block) -> Iterator[str]:
    pending = [block]
    while pending:
        current = pending.pop()
        pending.extend(case.block for case in current.when)
        for statement in current.yields:
            if statement.into is not None:
                yield statement.into
            yield from (mixin.into for mixin in statement.call.mixins if mixin.into is not None)


def is_timeout(mixin: Mixin) -> bool:
    """Return whether a mixin is the built-in `Timeout`, or a declared facet of that name."""
    return short_name(mixin.name) == "Timeout"


def is_built_in(mixin: Mixin) -> bool:
    """Return whether a mixin only configures the engine, so that its arguments are not attributes."""
    return mixin.resolved is None and (is_timeout(mixin) or is_retry(mixin))


def is_retry(mixin: Mixin) -> bool:
    """Return whether a mixin is the built-in `Retry`; a declared facet of that name, or an alias, means what it says."""
    return mixin.resolved is None and mixin.alias is None and mixin.target == "Retry"


def inputs_in(expr: Expr) -> Iterator[str]:
    """Yield the names that an expression reads as `$.name`."""
    return (node.path[0] for node in walk(expr) if isinstance(node, InputRef))


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


Turn = Literal["begin", "more", "settled"]
"""Entries of the agenda: begin a new row, continue a foreach in another call, or notify the parent of a terminal row."""


class Draft:
    """The working copy of one call. Rows from `edit` and `create` may be changed; their dicts are replaced, never mutated."""

    def __init__(self, plan: ProgramLookups, run: RunRef, view: LoadedRows, limits: Limits) -> None:
        self.plan, self.run, self.view, self.limits = plan, run, view, limits
        self.created: dict[str, StepRow] = {}
        self.updated: dict[str, StepRow] = {}
        self.tasks: dict[str, RequestedTask] = {}
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
        rows = [self.get(row_id) for row_id in (*stored, *self._born.get(parent.id, ()))]
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
            root = self.find(self._root_id)
            row.round = 0 if root is None else root.generation
            row.parent_id = parent.id
            row.depth = parent.depth + (kind in STEP_KINDS)
            self.edit(parent.id).open += 1
            self._born.setdefault(parent.id, []).append(row.id)
        self.created[row.id] = row
        self.agenda.append(("begin", row.id))
        return row

    def _id_of(self, place: str) -> str:
        row_id = self._ids.get(place)
        if row_id is None:
            row_id = self._ids[place] = derived_id(self.run.id, place)
        return row_id

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
        ancestor: StepRow | None = row if self.plan.fails_fast else None
        while ancestor is not None:
            if ancestor.total is not None and ancestor.failed and is_fail_fast(self.block_of(ancestor)):
                return True
            ancestor = None if ancestor.parent_id is None else self.get(ancestor.parent_id)
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
            self.agenda.append(("settled", row.id))

    def fail(self, row: StepRow, error: StepError, failed_in: State) -> None:
        """Mark the row as failed."""
        row.state, row.error, row.failed_in = STATEMENT_ERROR, error, failed_in
        if row.parent_id is None:
            self.status = RunState.FAILED
        else:
            self.agenda.append(("settled", row.id))

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
        new = [ancestor for ancestor in chain if ancestor.id in self.created]
        old = [ancestor for ancestor in chain if ancestor.id not in self.created]
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
