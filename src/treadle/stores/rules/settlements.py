"""Settlements sorted by kind, so that a store settles all tasks of one kind with one statement; and checkpoints.

A checkpoint is a unit that stores steps under a claim and changes nothing else. There are many, so each store has a
short path for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from treadle.kernel.store.units import (
    DONE,
    DOUBTFUL_MOVES,
    Amend,
    Answer,
    Finish,
    Keep,
    Park,
    PutSteps,
    Revive,
    Settlement,
    Unit,
    Verdict,
)
from treadle.model.errors import InvalidInput
from treadle.model.states import Hold
from treadle.model.tasks import Claim

S = TypeVar("S", bound=Settlement)

HELD = Answer(Verdict.DONE, held=True)
"""Done, but the task was held meanwhile."""


class Change(msgspec.Struct, Generic[S], frozen=True, gc=False):
    """The settlement of one task: the position of its unit, the guard (None is any owner or version), and the actor."""

    position: int
    task_id: str
    claim_version: int
    owner_id: str | None
    version: int | None
    actor: str | None
    what: S

    @property
    def guard(self) -> tuple[Any, ...]:
        """The values that a statement compares with the task, followed by the actor."""
        return self.task_id, self.claim_version, self.owner_id, self.version, self.actor


class Settlements:
    """Settlements by kind, each of another task."""

    __slots__ = ("amends", "finishes", "keeps", "parks", "quiet_parks", "revivals")

    def __init__(self, units: Iterable[tuple[int, Unit]]) -> None:
        self.finishes: list[Change[Finish]] = []
        self.parks: list[Change[Park]] = []
        self.quiet_parks: list[Change[Park]] = []
        self.keeps: list[Change[Keep]] = []
        self.revivals: list[Change[Revive]] = []
        self.amends: list[Change[Amend]] = []
        for index, unit in units:
            guard, what = unit.guard, unit.settlement
            if guard is None:
                raise InvalidInput("A unit without a guard cannot settle a task: give the claim, or the version that was seen.")
            if isinstance(guard, Claim):
                self._add_claimed(index, guard, what)
            else:
                self._add_seen((index, guard.task_id, guard.claim_version, None, guard.version), what)

    @property
    def doubtful(self) -> list[tuple[Any, ...]]:
        """The guards (id, claim version, owner, version) of tasks whose claim may end during an effect."""
        changes: tuple[Change[Any], ...] = (*self.finishes, *self.parks)
        return [change.guard[:4] for change in changes if change.what.move in DOUBTFUL_MOVES and not _stays(change.what)]

    def follow(self, moved: Mapping[str, int]) -> None:
        """Let the guards match tasks that have made so many moves since they were read."""
        self.finishes = [_after(change, moved) for change in self.finishes]
        self.parks = [_after(change, moved) for change in self.parks]

    def _add_claimed(self, index: int, guard: Claim, what: Settlement | None) -> None:
        start = (index, guard.task_id, guard.version, guard.owner_id, None)
        if isinstance(what, Finish):
            self.finishes.append(Change(*start, what.actor or guard.owner_id, what))
        elif isinstance(what, Park):
            (self.quiet_parks if what.quiet else self.parks).append(Change(*start, what.actor or guard.owner_id, what))
        elif isinstance(what, Keep):
            self.keeps.append(Change(*start, guard.owner_id, what))
        else:
            raise InvalidInput(f"The holder of a claim can finish, park or keep its task, but not {what!r}.")

    def _add_seen(self, start: tuple[int, str, int, None, int], what: Settlement | None) -> None:
        if isinstance(what, Finish):
            self.finishes.append(Change(*start, what.actor, what))
        elif isinstance(what, Park):
            (self.quiet_parks if what.quiet else self.parks).append(Change(*start, what.actor, what))
        elif isinstance(what, Revive):
            self.revivals.append(Change(*start, what.actor, what))
        elif isinstance(what, Amend):
            self.amends.append(Change(*start, what.actor, what))
        else:
            raise InvalidInput(f"A caller without the claim can finish, park, revive or amend a task, but not {what!r}.")


def _stays(what: Finish | Park) -> bool:
    return isinstance(what, Park) and what.stays


def kept_answer(hold: int) -> Answer:
    """Return the answer to a unit that keeps its claim, from the hold of its task."""
    return HELD if hold & Hold.RUN_PAUSED else DONE


def is_checkpoint(unit: Unit) -> bool:
    """Whether the unit has a claim that stays, and steps, and nothing else."""
    return (
        type(unit.guard) is Claim
        and unit.settlement is None
        and unit.run is None
        and bool(unit.rows)
        and not unit.tasks
        and not unit.also
        and all(type(row) is PutSteps and row.steps for row in unit.rows)
    )


def list_checkpoints(units: Sequence[Unit]) -> list[int]:
    """Return the positions of checkpoints of tasks that no other kind of unit names: their order does not matter."""
    found = [position for position, unit in enumerate(units) if is_checkpoint(unit)]
    if not found or len(found) == len(units):
        return found
    alone = set(found)
    others = [unit for position, unit in enumerate(units) if position not in alone]
    named = {unit.guard.task_id for unit in others if unit.guard} | {claim.task_id for unit in others for claim, _ in unit.also}
    return [position for position in found if (guard := units[position].guard) and guard.task_id not in named]


def _after(change: Change[S], moved: Mapping[str, int]) -> Change[S]:
    if change.version is None or change.task_id not in moved:
        return change
    return msgspec.structs.replace(change, version=change.version + moved[change.task_id])
