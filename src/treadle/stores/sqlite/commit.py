"""Commits: all units of a call in one transaction, each as a whole or not at all.

Settlements of one kind are one statement each, whatever their number: the guard is in its `where`, the rows that it
wrote carry the numbers given to this call, and what follows refers to these. Only when fewer rows were written than
asked for is it looked up which ones. Settlements come first, so that a unit's new tasks may use what it gave free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.ports import CLAIM_LOST, DONE, Answer, Finish, Keep, Park, Revive, Seen, Unit, Verdict
from treadle.model.errors import InvalidInput
from treadle.model.names import Lane
from treadle.model.tasks import Claim
from treadle.stores.sqlite.connection import read_value
from treadle.stores.sqlite.insert import insert_tasks
from treadle.stores.sqlite.lanes import make_lanes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "commit.sql")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Row = tuple[Any, ...]


class Settling:
    """The units of one call and what has come of them so far; it lives inside one transaction."""

    def __init__(self, connection: apsw.Connection, units: Sequence[Unit], now: int) -> None:
        self._connection = connection
        self._units = units
        self._now = now
        self.answers: list[Answer] = [DONE] * len(units)
        self.applied = [unit.guard is None for unit in units]

    def settle(self) -> None:
        """Settle the guarded tasks; where several units name one task, the first that may change it does."""
        pending = [index for index, unit in enumerate(self._units) if unit.guard or unit.settlement]
        changed: set[str] = set()
        while pending:
            batch: dict[str, int] = {}
            later: list[int] = []
            for index in pending:
                guard = self._units[index].guard
                if guard is None:
                    raise InvalidInput("A unit without a guard cannot settle anything: give the claim, or what was seen.")
                if guard.task_id in changed:
                    self.answers[index] = CLAIM_LOST
                elif guard.task_id in batch:
                    later.append(index)
                else:
                    batch[guard.task_id] = index
            self._settle_distinct(list(batch.values()))
            changed.update(task_id for task_id, index in batch.items() if self.applied[index])
            pending = later

    def _settle_distinct(self, indexes: list[int]) -> None:
        finishes: list[Row] = []
        parks: list[Row] = []
        keeps: list[Row] = []
        revives: list[Row] = []
        finish_at: list[int] = []
        park_at: list[int] = []
        keep_at: list[int] = []
        revive_at: list[int] = []
        for index in indexes:
            unit = self._units[index]
            guard, what = unit.guard, unit.settlement
            if isinstance(guard, Claim):
                start: Row = (guard.task_id, guard.version, guard.owner_id, None)
                actor: str | None = guard.owner_id
            else:
                assert guard is not None
                start = (guard.task_id, guard.claim_version, None, guard.version)
                actor = None
            if isinstance(what, Finish):
                finish_at.append(index)
                finishes.append(
                    (
                        *start,
                        what.actor or actor,
                        what.state,
                        what.move,
                        what.result,
                        what.error,
                        what.error_code,
                        what.fingerprint,
                    )
                )
            elif isinstance(what, Park):
                park_at.append(index)
                parks.append(
                    (
                        *start,
                        what.actor or actor,
                        what.state,
                        what.move,
                        what.attempt,
                        what.failures,
                        what.takeovers,
                        what.hold,
                        what.wake_for,
                        what.checkpoint,
                        what.error,
                        what.data,
                    )
                )
            elif isinstance(what, Keep) and isinstance(guard, Claim):
                keep_at.append(index)
                keeps.append((*start[:3], what.checkpoint))
            elif isinstance(what, Revive) and isinstance(guard, Seen):
                revive_at.append(index)
                revives.append((guard.task_id, guard.claim_version, guard.version, what.actor, what.move, what.payload))
            else:
                raise InvalidInput(f"A unit cannot have the settlement {what!r} under the guard {guard!r}.")
        seq = self._take_seqs(len(finishes) + len(parks) + len(revives))
        if finishes:
            self._finish(finishes, finish_at, seq)
        if parks:
            self._park(parks, park_at, seq + len(finishes))
        if keeps:
            self._keep(keeps, keep_at)
        if revives:
            self._revive(revives, revive_at, seq + len(finishes) + len(parks))

    def _take_seqs(self, count: int) -> int:
        if not count:
            return 0
        last = read_value(self._connection, _SQL["take_seqs"], {"count": count})
        return int(last) - count + 1

    def _finish(self, rows: list[Row], indexes: list[int], first_seq: int) -> None:
        execute = self._connection.execute
        execute(_SQL["finish"], {"rows": _encode(rows).decode(), "first_seq": first_seq, "now": self._now})
        count = self._connection.changes()
        span = {"first_seq": first_seq, "count": len(rows)}
        if count:
            execute(_SQL["drop_finished"], span)
        if count == len(rows):
            for index in indexes:
                self.applied[index] = True
            return
        found = read_value(self._connection, _SQL["list_just_finished"], span)
        for key in _decode(found):
            self.applied[indexes[key]] = True
        self._refuse(rows, indexes)

    def _park(self, rows: list[Row], indexes: list[int], first_seq: int) -> None:
        execute = self._connection.execute
        values = {"rows": _encode(rows).decode(), "first_seq": first_seq, "now": self._now}
        execute(_SQL["log_parks"], values)
        if self._connection.changes():
            execute(_SQL["park"], values)
            self._note_ready(indexes, first_seq)
        self._refuse(rows, indexes)

    def _keep(self, rows: list[Row], indexes: list[int]) -> None:
        execute = self._connection.execute
        values = {"rows": _encode(rows).decode()}
        execute(_SQL["keep"], values)
        if self._connection.changes() == len(rows):
            matched = range(len(rows))
        else:
            found = read_value(self._connection, _SQL["list_kept"], values)
            matched = _decode(found)
        for key in matched:
            self.applied[indexes[key]] = True
        for index in indexes:
            if not self.applied[index]:
                self.answers[index] = CLAIM_LOST

    def _revive(self, rows: list[Row], indexes: list[int], first_seq: int) -> None:
        execute = self._connection.execute
        values = {"rows": _encode(rows).decode(), "first_seq": first_seq, "now": self._now}
        span = {"first_seq": first_seq, "count": len(rows)}
        execute(_SQL["log_revivals"], values)
        if self._connection.changes():
            execute(_SQL["log_ends"], span)
            execute(_SQL["revive"], values)
            execute(_SQL["drop_revived"], span)
            self._note_ready(indexes, first_seq)
        for index in indexes:
            if not self.applied[index]:
                self.answers[index] = CLAIM_LOST

    def _note_ready(self, indexes: list[int], first_seq: int) -> None:
        span = {"first_seq": first_seq, "count": len(indexes)}
        found = read_value(self._connection, _SQL["list_just_parked"], span)
        for key, lane_id in _decode(found):
            index = indexes[key]
            self.applied[index] = True
            if lane_id is not None:
                self.answers[index] = Answer(Verdict.DONE, lane_ids=(lane_id,))

    def _refuse(self, rows: list[Row], indexes: list[int]) -> None:
        """Answer those that did not match: done where this very settlement was committed before, else lost."""
        lost = [key for key, index in enumerate(indexes) if not self.applied[index]]
        for key in lost:
            self.answers[indexes[key]] = CLAIM_LOST
        lost = [key for key in lost if rows[key][2] is not None]
        if not lost:
            return
        claims = [(*rows[key][:3], rows[key][6], rows[key][4]) for key in lost]
        found = read_value(self._connection, _SQL["list_settled"], {"rows": _encode(claims).decode()})
        for number in _decode(found):
            self.answers[indexes[lost[number]]] = DONE


def commit(
    connection: apsw.Connection, units: Sequence[Unit], known: Mapping[Lane, int], now: int
) -> tuple[list[Answer], Mapping[Lane, int]]:
    """Do the units inside a transaction of the caller's; returns their answers, and the lanes that there are after it."""
    settling = Settling(connection, units, now)
    settling.settle()
    answers = settling.answers
    wanted = [(index, task) for index, unit in enumerate(units) if unit.tasks and settling.applied[index] for task in unit.tasks]
    if not wanted:
        return answers, known
    tasks = [task for _, task in wanted]
    missing = {task.lane for task in tasks} - known.keys()
    if missing:
        known = make_lanes(connection, missing)
    lanes: dict[int, set[int]] = {}
    existing: dict[int, dict[str, str]] = {}
    for (index, task), (new, holder_id) in zip(wanted, insert_tasks(connection, tasks, known, now), strict=True):
        if new and task.wait_for <= 0:
            lanes.setdefault(index, set(answers[index].lane_ids)).add(known[task.lane])
        elif holder_id is not None and task.unique_key is not None:
            existing.setdefault(index, {})[task.unique_key] = holder_id
    for index in lanes.keys() | existing.keys():
        lane_ids = tuple(lanes.get(index, answers[index].lane_ids))
        answers[index] = Answer(Verdict.DONE, existing.get(index, {}), lane_ids)
    return answers, known
