"""Verify that the log explains the rows: one generic check of every entity's history against its state table.

A history holds if its transitions are numbered 1, 2, 3, ..., the first one starts in the machine's initial state, each starts in
the state in which the previous one ended and is in the table, and the row has the last state and the number of transitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import EntityHistory
from treadle.model.states import MACHINES


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The number of checked entities, and one line for each problem."""

    checked: int
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def check_history(history: EntityHistory) -> list[str]:
    """Return the problems of the history; empty if it holds. Pure."""
    what = f"{history.entity} {history.entity_id}"
    machine = MACHINES.get(history.entity)
    if machine is None:
        return [f"{what}: there is no state table for this kind of entity"]
    problems = []
    state: str = machine.initial
    for expected, transition in enumerate(history.transitions, start=1):
        here = f"{what}: transition {transition.version} ({transition.transition})"
        if (transition.entity, transition.entity_id) != (history.entity, history.entity_id):
            problems.append(f"{here} belongs to {transition.entity} {transition.entity_id}")
        if transition.version != expected:
            problems.append(f"{here} should be number {expected}")
        if transition.from_state != state:
            problems.append(f"{here} starts in {transition.from_state}, but the one before ended in {state}")
        target = machine.target(transition.from_state, transition.transition)
        if target is None:
            problems.append(f"{here} cannot be made from {transition.from_state}")
        elif transition.to_state != target:
            problems.append(f"{here} leads from {transition.from_state} to {target}, not to {transition.to_state}")
        state = transition.to_state
    if history.state != state:
        problems.append(f"{what}: the row says {history.state}, but its last transition ended in {state}")
    if history.version != len(history.transitions):
        problems.append(f"{what}: the row counts {history.version} transitions, but the log has {len(history.transitions)}")
    return problems


async def verify(store: Store, page: int = 1000) -> VerifyReport:
    """Check every entity in the store, `page` at a time; may or may not include entities created meanwhile."""
    checked = 0
    problems: list[str] = []
    after_id: str | None = None
    while True:
        report, after_id = await verify_page(store, after_id, page)
        checked += report.checked
        problems += report.problems
        if after_id is None:
            return VerifyReport(checked, tuple(problems))


async def verify_page(store: Store, after_id: str | None, limit: int) -> tuple[VerifyReport, str | None]:
    """Check up to `limit` entities after that id, in order of id; return also the last id, or None at the end."""
    histories = await store.log.list_histories(after_id, limit)
    problems = [problem for history in histories for problem in check_history(history)]
    return VerifyReport(len(histories), tuple(problems)), histories[-1].entity_id if len(histories) == limit else None
