"""Units sorted by what becomes of their tasks: the rows that one statement takes for all of a kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.kernel.store.units import Amend, Finish, Keep, Park, Revive, Seen, Unit
from treadle.model.errors import InvalidInput
from treadle.model.tasks import Claim

Row = tuple[Any, ...]
"""What `commit.sql` reads by position. Finishes and parks begin with (id, claim version, owner, version, actor, state, move)."""


class Batch:
    """The rows of one kind, and for each the index of its unit."""

    __slots__ = ("indexes", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.indexes: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, index: int, row: Row) -> None:
        self.indexes.append(index)
        self.rows.append(row)


class Batches:
    """Guarded units of a call, each about another task."""

    __slots__ = ("amends", "finishes", "keeps", "logged_keeps", "parks", "quiet_parks", "revivals")

    def __init__(self, units: Sequence[Unit], indexes: Iterable[int]) -> None:
        self.finishes, self.parks, self.quiet_parks, self.keeps, self.revivals, self.amends = (Batch() for _ in range(6))
        self.logged_keeps = 0
        """How many numbers the moves of keeps need: as many as there are keeps, if one of them makes a move."""
        for index in indexes:
            unit = units[index]
            guard, what = unit.guard, unit.settlement
            if isinstance(guard, Claim):
                self._add_held(index, guard, what)
            elif isinstance(guard, Seen):
                self._add_seen(index, guard, what)
            else:
                raise InvalidInput("A unit without a guard cannot settle anything: give the claim, or what was seen.")
        if any(row[4] is not None for row in self.keeps.rows):
            self.logged_keeps = len(self.keeps)

    def _add_held(self, index: int, guard: Claim, what: object) -> None:
        start = (guard.task_id, guard.version, guard.owner_id)
        if isinstance(what, Finish):
            self.finishes.add(index, (*start, None, what.actor or guard.owner_id, *_finish(what)))
        elif isinstance(what, Park):
            self._parking(what).add(index, (*start, None, what.actor or guard.owner_id, *_park(what)))
        elif isinstance(what, Keep):
            self.keeps.add(index, (*start, what.checkpoint, what.move, what.data))
        else:
            raise InvalidInput(f"The holder of a claim finishes, parks or keeps its task; it cannot do {what!r}.")

    def _add_seen(self, index: int, guard: Seen, what: object) -> None:
        start = (guard.task_id, guard.claim_version, None, guard.version)
        if isinstance(what, Finish):
            self.finishes.add(index, (*start, what.actor, *_finish(what)))
        elif isinstance(what, Park):
            self._parking(what).add(index, (*start, what.actor, *_park(what)))
        elif isinstance(what, Revive):
            self.revivals.add(index, (*start, what.actor, what.move, what.payload, what.failures, what.delay))
        elif isinstance(what, Amend):
            self.amends.add(index, (*start, what.actor, what.state, what.move))
        else:
            raise InvalidInput(f"Who has only seen a task may finish, park, revive or amend it, but not {what!r}.")

    def _parking(self, what: Park) -> Batch:
        return self.quiet_parks if what.quiet else self.parks


def _finish(what: Finish) -> Row:
    return (what.state, what.move, what.result, what.error, what.error_code, what.fingerprint)


def _park(what: Park) -> Row:
    return (
        what.state,
        what.move,
        what.attempt,
        what.failures,
        what.takeovers,
        what.hold,
        what.delay,
        what.checkpoint,
        what.error,
        what.data,
    )
