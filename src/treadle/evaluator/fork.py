"""Forks a run at a step: keeps the finished work that does not depend on the step, and repeats the step and its dependents.

Copied rows keep their places; their ids are derived from the new run. Every ancestor of the step waits again; in each of their
blocks, the dependents of repeated statements are dropped too. Rows that waited in the old run (for a handler, a script, their
turn) wait in the new one, with tasks of their own; rows that were withdrawn begin; failures elsewhere are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from treadle.evaluator.advance import advance, answer, drain
from treadle.evaluator.draft import Draft, LimitReached, Missing, ProgramLookups, collecting, is_waiting, plan_of, wait_again
from treadle.evaluator.expressions import LINK
from treadle.evaluator.records import Changes, Finished, Limits, LoadedRows, Need, RunRef, Started, StepError, StepRow
from treadle.evaluator.retry import is_cause, resume, stopped_beside, waits_for
from treadle.evaluator.states import State, StepKind
from treadle.lang.nodes import Block
from treadle.lang.program import Program
from treadle.model.ids import derived_id
from treadle.model.states import RunState
from treadle.model.values import Json


def fork(
    program: Program,
    run: RunRef,
    rows: Iterable[StepRow],
    step_id: str,
    inputs: Mapping[str, Json],
    changed: Mapping[str, Json] | None = None,
    blobs: Mapping[str, Json] | None = None,
    limits: Limits | None = None,
    result: Mapping[str, Json] | None = None,
) -> Changes | Need:
    """Return all initial rows and tasks of the new run `run`, from all rows of the old run and the id of one of them.

    `inputs` are all inputs of the new run, `changed` those that are new or different: only repeated work sees these. With `result`,
    the step has this result, and its handler is not called; raises `CannotGive` if it does not wait for a handler as soon as it
    begins. A signature alias belongs to its step, which is repeated as a whole. Needs only blobs.
    """
    old = {row.id: row for row in rows}
    target = _repeatable(old, step_id)
    if target.parent_id is None:
        if result is not None:
            raise CannotGive
        view = _view_of([], blobs or {})
        view.add_absent(run.root_id)
        return advance(program, run, view, [Started(dict(inputs), target.stops)], limits)
    plan = plan_of(program)
    copies = _Cut(plan, run, old, target).copies()
    copies[0].params = {**copies[0].params, **(changed or {})}
    run = msgspec.structs.replace(run, rows=len(copies))
    return _go_on(Draft(plan, run, _view_of(copies, blobs or {}), limits or Limits()), copies, [target], result)


def repeat_collected(
    program: Program,
    run: RunRef,
    rows: Iterable[StepRow],
    step_id: str | None = None,
    blobs: Mapping[str, Json] | None = None,
    limits: Limits | None = None,
) -> Changes | Need | None:
    """Return the changes of a failed run that repeat failures collected by `collectErrors`, and everything that followed from them.

    They are those at or below a row; without `step_id`, those from which a failure of the run followed, with its other failures.
    None if there are none. Takes all rows of the run; needs only blobs.
    """
    old = {row.id: row for row in rows}
    plan = plan_of(program)
    targets = [_repeatable(old, target.id) for target in _list_collected(plan, run, old, step_id)]
    if not targets:
        return None
    cut = _Cut(plan, run, old, *targets)
    copies = cut.copies()
    copies[0].generation += 1
    changes = _go_on(Draft(plan, run, _view_of(copies, blobs or {}), limits or Limits()), copies, cut.targets)
    if isinstance(changes, Changes):
        stored = {row.id for row in changes.created}
        changes.removed = [row for row in cut.dropped() if row.id not in stored]
        changes.updated = [row for row in changes.created if row.id in old and row != old[row.id]]
        changes.created = [row for row in changes.created if row.id not in old]
    return changes


def _list_collected(plan: ProgramLookups, run: RunRef, old: Mapping[str, StepRow], step_id: str | None) -> list[StepRow]:
    collected: dict[str, list[StepRow]] = {}
    causes: list[StepRow] = []
    for leaf in old.values():
        if not is_cause(leaf) or "/catch-" in leaf.place or (leaf.error is not None and leaf.error.stopped):
            continue
        above = leaf
        while above.state is State.STATEMENT_ERROR and above.parent_id is not None:
            above = old[above.parent_id]
        block = plan.program.find_node(above.statement_id)
        if above.state is State.STATEMENT_ERROR:
            causes.append(leaf)
        elif above.state is State.STATEMENT_COMPLETE and isinstance(block, Block) and collecting(block, above) is not None:
            collected.setdefault(above.id, []).append(leaf)
    if step_id is not None:
        place = old[step_id].place
        return [leaf for leaves in collected.values() for leaf in leaves if f"{leaf.place}/".startswith(f"{place}/")]
    behind: list[StepRow] = []
    for leaves in collected.values():
        cut = _Cut(plan, run, old, _repeatable(old, leaves[0].id))
        if any(cut.drops(cause) for cause in causes):
            behind += leaves
    return [*behind, *causes] if behind else []


def list_repeated(program: Program, run: RunRef, rows: Iterable[StepRow], step_id: str) -> list[StepRow]:
    """Return the rows of the old run that a fork at the step repeats."""
    old = {row.id: row for row in rows}
    target = _repeatable(old, step_id)
    if target.parent_id is None:
        return list(old.values())
    return _Cut(plan_of(program), run, old, target).dropped()


def _repeatable(old: Mapping[str, StepRow], step_id: str) -> StepRow:
    target = old[step_id]
    while target.kind is StepKind.MIXIN:
        target = old[target.parent_id or ""]
    return target


class CannotGive(Exception):
    """The step does not wait for a handler when it begins, so that no result can be given in its place."""


class _Cut:
    """The rows of a run that are dropped, and those kept that wait again, each with a child for which it waits.

    Copies within the same run keep everything else.
    """

    def __init__(self, plan: ProgramLookups, run: RunRef, old: Mapping[str, StepRow], *targets: StepRow) -> None:
        self._plan, self._run, self._old = plan, run, old
        self._children: dict[str, list[StepRow]] = {}
        for row in old.values():
            self._children.setdefault(row.parent_id or "", []).append(row)
        self._dropped: set[str] = set()
        self._reopened: dict[str, StepRow] = {}
        for target in targets:
            for parent, child in self._above(target):
                for affected in self._affected(parent, child):
                    self._drop(affected)
        self.targets = [target for target in targets if target.id not in self._dropped]
        """Those that begin now; others follow from them."""
        for target in self.targets:
            self._drop(target)
            self._reopened |= {parent.id: child for parent, child in self._above(target)}

    def _above(self, row: StepRow) -> Iterator[tuple[StepRow, StepRow]]:
        """Yield the ancestors of a row, each with its child on the way."""
        while row.parent_id is not None:
            parent = self._old[row.parent_id]
            yield parent, row
            row = parent

    def _drop(self, row: StepRow) -> None:
        pending = [row]
        while pending:
            current = pending.pop()
            if current.id not in self._dropped:
                self._dropped.add(current.id)
                pending += self._children.get(current.id, ())

    def drops(self, row: StepRow) -> bool:
        """Return whether the row is repeated."""
        return row.id in self._dropped

    def _affected(self, parent: StepRow, child: StepRow) -> list[StepRow]:
        """Return the siblings that must be dropped when a child is repeated."""
        siblings = [row for row in self._children[parent.id] if row.id != child.id]
        match child.kind:
            case StepKind.STEP | StepKind.SCHEMA:
                gone = self._dependents(parent, child.name)
                return [row for row in siblings if row.name in gone]
            case StepKind.MIXIN:  # later aliases may read it, and so may all the rest
                return [row for row in siblings if row.kind is not StepKind.MIXIN or row.ordinal > child.ordinal]
            case StepKind.BLOCK:  # other blocks cannot see it; a catch may have nothing left to catch
                return [row for row in siblings if row.kind is StepKind.CATCH]
            case StepKind.CATCH:
                return [row for row in siblings if row.kind is StepKind.CATCH and row.ordinal > child.ordinal]
            case _:
                return []

    def _dependents(self, block: StepRow, name: str) -> set[str]:
        """Return the steps of a block that depend on this one, directly or indirectly."""
        node = self._plan.program.find_node(block.statement_id)
        steps = node.steps if isinstance(node, Block) else ()
        dependents = {name}
        grew = True
        while grew:
            more = {step.name for step in steps if step.name not in dependents and not dependents.isdisjoint(step.depends)}
            grew = bool(more)
            dependents |= more
        return dependents - {name}

    def dropped(self) -> list[StepRow]:
        """Return the rows of the old run that the new one does not keep."""
        return [row for row in self._old.values() if row.id in self._dropped]

    def copies(self) -> list[StepRow]:
        """Return the rows of the new run, parents first; the root is the first."""
        rows = [row for row in self._old.values() if row.id not in self._dropped]
        rows.sort(key=lambda row: (row.place.count("/"), row.ordinal, row.place))
        return [self._reopen(self._copy(row), row) if row.id in self._reopened else self._kept(row) for row in rows]

    def _kept(self, row: StepRow) -> StepRow:
        return row if row.run_id == self._run.id else self._copy(row)

    def _copy(self, row: StepRow) -> StepRow:
        return msgspec.structs.replace(
            row,
            id=self._new_id(row.id),
            run_id=self._run.id,
            parent_id=None if row.parent_id is None else self._new_id(row.parent_id),
            task_id=None,
            doom=None,
            error=self._error(row.error),
            params=self._relinked(row.params),
            returns=self._relinked(row.returns),
            loop=self._relinked(row.loop),
        )

    def _new_id(self, row_id: str) -> str:
        return derived_id(self._run.id, self._old[row_id].place)

    def _error(self, error: StepError | None) -> StepError | None:
        if error is None or error.step_id not in self._old:
            return error
        return msgspec.structs.replace(error, step_id=self._new_id(error.step_id))

    def _relinked(self, value: Any) -> Any:
        """Replace references to steps of the old run with references to steps of the new one."""
        if isinstance(value, dict):
            if value.get(LINK) in self._old and len(value) == 2:
                return {**value, LINK: self._new_id(value[LINK])}
            return {key: self._relinked(inner) for key, inner in value.items()}
        return [self._relinked(inner) for inner in value] if isinstance(value, list) else value

    # --- rows that wait again ---

    def _reopen(self, copy: StepRow, row: StepRow) -> StepRow:
        child = self._reopened[row.id]
        children = [sibling for sibling in self._children[row.id] if sibling.id not in self._dropped]
        copy.state, copy.failed_in = waits_for(child), None
        copy.open = sum(sibling.id in self._reopened or not sibling.is_terminal for sibling in children)
        copy.returns = self._own_returns(row, child)
        if child.kind is StepKind.CATCH:  # the error that it handles stays
            copy.caught = child.ordinal + 1
            caught = StepError(message=child.params["error"], type=child.params["error_type"], path=row.path, step_id=copy.id)
            copy.error = caught if row.state is State.STATEMENT_ERROR else copy.error
            return copy
        failed = [
            sibling
            for sibling in children
            if sibling.state is State.STATEMENT_ERROR and sibling.kind is not StepKind.CATCH and sibling.id not in self._reopened
        ]
        first = min(failed, key=lambda sibling: sibling.ordinal, default=None)
        copy.failed, copy.caught = len(failed), 0
        copy.failed_first = None if first is None else first.ordinal
        copy.error = None if first is None else self._error(first.error)
        if child.kind is StepKind.MIXIN:
            later = {
                sibling.name
                for sibling in self._children[row.id]
                if sibling.kind is StepKind.MIXIN and sibling.ordinal >= child.ordinal
            }
            copy.params = {name: value for name, value in copy.params.items() if name not in later}
        return copy

    def _own_returns(self, row: StepRow, child: StepRow) -> dict[str, Any]:
        """Return a step's returns without those of its blocks: an event's results."""
        plan = self._plan.facet(row.facet)
        if plan is None or not plan.facet.is_event or child.kind is StepKind.MIXIN:
            return {}
        yielded = {name for sibling in self._children[row.id] for name in sibling.returns if not sibling.is_step}
        return {name: self._relinked(value) for name, value in row.returns.items() if name not in yielded}


def _view_of(copies: Sequence[StepRow], blobs: Mapping[str, Json]) -> LoadedRows:
    view = LoadedRows()
    view.blobs.update(blobs)
    children: dict[str, list[StepRow]] = {row.id: [] for row in copies}
    for row in copies:
        if row.parent_id is not None:
            children[row.parent_id].append(row)
    for row in copies:
        view.add(row)
        view.add_children(row.id, children[row.id])
    return view


def _go_on(
    draft: Draft, copies: Sequence[StepRow], targets: Sequence[StepRow], result: Mapping[str, Json] | None = None
) -> Changes | Need:
    """Recreate the rows, request the tasks that rows wait for, and list the blocks that have not begun."""
    try:
        for target in targets:
            parent = draft.edit(derived_id(draft.run.id, target.place.rpartition("/")[0]))
            again = draft.create(
                parent, target.name, target.kind, target.statement_id,
                ordinal=target.ordinal, facet=target.facet, loop=dict(target.loop),
            )  # fmt: skip
            if target.kind is StepKind.CATCH:
                again.params = dict(target.params)
            resume(draft, stopped_beside(draft, again))
        drain(draft)
        if result is not None:
            if draft.get(again.id).state is not State.EVENT_TRANSMIT:
                raise CannotGive
            answer(draft, Finished(again.id, dict(result)))
            drain(draft)
        for copy in copies:
            if copy.error is not None and copy.error.stopped and is_cause(draft.get(copy.id)):
                resume(draft, [draft.get(copy.id)])
                drain(draft)
        for copy in copies:
            row = draft.get(copy.id)
            if not row.is_terminal and is_waiting(draft, row):
                wait_again(draft, draft.edit(row.id))
            elif has_more(draft, row):
                draft.again[row.id] = None
        draft.status = draft.status or RunState.RUNNING
        changes = draft.changes()
    except Missing as missing:
        return Need(missing.rows, missing.children_of, missing.blobs)
    except LimitReached as reached:
        changes = draft.stop(reached)
    changed = {row.id: row for row in changes.updated}
    changes.created = [*(changed.get(row.id, row) for row in copies), *changes.created]
    changes.updated = []
    return changes


# --- pending work of a run -------------------------------------------------------------------------------------------


def open_ends(program: Program, run: RunRef, rows: Iterable[StepRow]) -> tuple[list[StepRow], list[StepRow]]:
    """Return, of all rows of a run, those that wait for a task, and the blocks that wait for an `Expand`."""
    draft = Draft(plan_of(program), run, LoadedRows(), Limits())
    live = [row for row in rows if not row.is_terminal]
    return [row for row in live if is_waiting(draft, row)], [row for row in live if has_more(draft, row)]


def has_more(draft: Draft, row: StepRow) -> bool:
    """Return whether a block waits for its turn, or has more items to create."""
    if row.is_step or row.is_terminal:
        return False
    if row.state is State.BLOCK_EXECUTION_BEGIN:
        return draft.block_of(row).script is None
    return row.total is not None and row.expanded < row.total and not draft.is_stopped(row)
