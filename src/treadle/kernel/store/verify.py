"""Does the log explain the rows? One generic check of every entity's history against its state table.

A history holds when its moves are numbered 1, 2, 3, ..., the first starts in the machine's initial state, each starts
where the one before ended and is in the table, and the row stands where the last one ended, having counted them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.kernel.store.ports import LogStore
from treadle.kernel.store.queries import History
from treadle.model.states import MACHINES


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """How many entities were checked, and in one line each what is wrong with them."""

    checked: int
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check_history(history: History) -> list[str]:
    """What is wrong with the history, in words; nothing if it holds. Pure."""
    what = f"{history.entity} {history.entity_id}"
    machine = MACHINES.get(history.entity)
    if machine is None:
        return [f"{what}: there is no state table for this kind of entity"]
    problems = []
    state: str = machine.initial
    for expected, move in enumerate(history.moves, start=1):
        here = f"{what}: move {move.version} ({move.move})"
        if (move.entity, move.entity_id) != (history.entity, history.entity_id):
            problems.append(f"{here} belongs to {move.entity} {move.entity_id}")
        if move.version != expected:
            problems.append(f"{here} should be number {expected}")
        if move.from_state != state:
            problems.append(f"{here} starts in {move.from_state}, but the one before ended in {state}")
        target = machine.target(move.from_state, move.move)
        if target is None:
            problems.append(f"{here} cannot be made from {move.from_state}")
        elif move.to_state != target:
            problems.append(f"{here} leads from {move.from_state} to {target}, not to {move.to_state}")
        state = move.to_state
    if history.state != state:
        problems.append(f"{what}: the row says {history.state}, but its last move ended in {state}")
    if history.version != len(history.moves):
        problems.append(f"{what}: the row counts {history.version} moves, but the log has {len(history.moves)}")
    return problems


async def verify(store: LogStore, page: int = 1000) -> VerifyReport:
    """Check every entity in the store, `page` at a time; entities made meanwhile may or may not be among them."""
    checked = 0
    problems: list[str] = []
    after_id: str | None = None
    while True:
        found, after_id = await verify_page(store, after_id, page)
        checked += found.checked
        problems += found.problems
        if after_id is None:
            return VerifyReport(checked, tuple(problems))


async def verify_page(store: LogStore, after_id: str | None, limit: int) -> tuple[VerifyReport, str | None]:
    """Check up to `limit` entities after that id, in the order of ids; the last one's id, or None when that was all."""
    histories = await store.list_histories(after_id, limit)
    problems = [problem for history in histories for problem in check_history(history)]
    return VerifyReport(len(histories), tuple(problems)), histories[-1].entity_id if len(histories) == limit else None
