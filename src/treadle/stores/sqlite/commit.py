"""Commits: all units of a call in one transaction, each as a whole or not at all.

Settlements of one kind are one statement each, whatever their number: the guard is in its `where`, the rows that it
wrote carry the numbers given to this call, and what follows refers to these. Only when fewer rows were written than
asked for is it looked up which ones. Settlements come first, so that a unit's new tasks may use what it gave free. Last,
the next tasks are admitted of limit keys that something was done about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.units import CLAIM_LOST, DONE, Answer, Unit, Verdict
from treadle.model.names import Lane
from treadle.model.tasks import Claim, NewTask
from treadle.stores.checkpoints import kept_answer, list_checkpoints
from treadle.stores.preclaimed import has_births, list_births
from treadle.stores.sqlite.batch import Batch, Batches
from treadle.stores.sqlite.checkpoints import list_staying, put_checkpoints
from treadle.stores.sqlite.connection import read_value
from treadle.stores.sqlite.insert import claim_born, insert_tasks
from treadle.stores.sqlite.lanes import make_lanes
from treadle.stores.sqlite.limits import Key, admit, put_limits
from treadle.stores.sqlite.lists import Guarded, check_entrance, list_guarded
from treadle.stores.sqlite.rows import has_rows, judge, merge, write_rows
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "commit.sql")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Settling:
    """The units of one call and what has come of them so far; it lives inside one transaction."""

    def __init__(self, connection: apsw.Connection, units: Sequence[Unit], now: int) -> None:
        self._connection = connection
        self._units = units
        self._now = now
        self.answers: list[Answer] = [CLAIM_LOST if unit.guard else DONE for unit in units]
        self.applied = [unit.guard is None for unit in units]
        self.keys: set[Key] = set()
        """Limit keys of settled tasks: others may go on instead."""

    def settle(self) -> None:
        """Settle the guarded tasks; where several units name one task, the first that may change it does.

        Units whose claim stays are looked at before those that settle: of these, only those before them in the call matter.
        """
        pending = [index for index, unit in enumerate(self._units) if unit.guard or unit.settlement]
        changed: set[str] = set()
        while pending:
            distinct: dict[str, int] = {}
            staying: list[int] = []
            later: list[int] = []
            for index in pending:
                guard = self._units[index].guard
                task_id = guard.task_id if guard else ""
                if task_id in distinct:
                    later.append(index)
                elif task_id in changed:
                    continue
                elif self._units[index].settlement is None and isinstance(guard, Claim):
                    staying.append(index)
                else:
                    distinct[task_id] = index
            if later:  # before anything of this call is written: that does not make them repeats
                repeats = Batches(self._units, [index for index in later if self._units[index].settlement is not None])
                self._recognise_repeats(repeats.finishes)
                self._recognise_repeats(repeats.parks)
            if staying:
                self._stay(staying)
            self._settle(Batches(self._units, distinct.values()))
            if not later:
                break
            changed.update(task_id for task_id, index in distinct.items() if self.applied[index])
            pending = later

    def _settle(self, batches: Batches) -> None:
        finishes, parks, revivals, amends = batches.finishes, batches.parks, batches.revivals, batches.amends
        logged = len(finishes) + len(parks) + len(revivals) + len(amends)
        first_seq = 0
        if count := logged + batches.logged_keeps:
            first_seq = read_value(self._connection, _SQL["take_seqs"], {"count": count}) - count + 1
        if finishes:
            self._finish(finishes, first_seq)
        if parks:
            self._park(parks, first_seq + len(finishes))
        if batches.quiet_parks:
            self._park_quietly(batches.quiet_parks)
        if revivals:
            self._revive(revivals, first_seq + len(finishes) + len(parks))
        if amends:
            self._amend(amends, first_seq + len(finishes) + len(parks) + len(revivals))
        if batches.keeps:
            self._keep(batches.keeps, first_seq + logged if batches.logged_keeps else None)

    def _stay(self, indexes: Sequence[int]) -> None:
        for position, hold in list_staying(self._connection, [self._units[index] for index in indexes]).items():
            self.applied[indexes[position]] = True
            self.answers[indexes[position]] = kept_answer(hold)

    def _finish(self, batch: Batch, first_seq: int) -> None:
        values = {"rows": _encode(batch.rows).decode(), "first_seq": first_seq, "count": len(batch), "now": self._now}
        self._connection.execute(_SQL["finish"], values)
        count = self._connection.changes()
        if count:
            if read_value(self._connection, _SQL["has_admitted"]):
                freed = _decode(read_value(self._connection, _SQL["list_freed"], values))
                self.keys.update((namespace, key) for namespace, key in freed)
            self._connection.execute(_SQL["drop_finished"], values)
        if count == len(batch):
            self._note_applied(batch.indexes)
        else:
            found = _decode(read_value(self._connection, _SQL["list_just_finished"], values))
            self._note_applied(batch.indexes[key] for key in found)
            self._recognise_repeats(batch)

    def _park(self, batch: Batch, first_seq: int) -> None:
        values = {"rows": _encode(batch.rows).decode(), "first_seq": first_seq, "count": len(batch), "now": self._now}
        self._connection.execute(_SQL["log_parks"], values)
        count = self._connection.changes()
        if count:
            self._connection.execute(_SQL["park"], values)
            self._note_ready(batch, values)
        if count < len(batch):
            self._recognise_repeats(batch)

    def _park_quietly(self, batch: Batch) -> None:
        values = {"rows": _encode(batch.rows).decode(), "now": self._now}
        indexes = {row[0]: index for index, row in zip(batch.indexes, batch.rows, strict=True)}
        for task_id, lane_id, namespace, limit_key in self._connection.execute(_SQL["park_quietly"], values).fetchall():
            if limit_key is not None:
                self.keys.add((str(namespace), str(limit_key)))
            index = indexes[str(task_id)]
            self.applied[index] = True
            self.answers[index] = DONE if lane_id is None else Answer(Verdict.DONE, lane_ids=(int(str(lane_id)),))

    def _revive(self, batch: Batch, first_seq: int) -> None:
        values = {"rows": _encode(batch.rows).decode(), "first_seq": first_seq, "count": len(batch), "now": self._now}
        self._connection.execute(_SQL["log_revivals"], values)
        if self._connection.changes():
            for name in ("log_ends", "revive", "drop_revived"):
                self._connection.execute(_SQL[name], values)
            self._note_ready(batch, values)

    def _amend(self, batch: Batch, first_seq: int) -> None:
        values = {"rows": _encode(batch.rows).decode(), "first_seq": first_seq, "count": len(batch), "now": self._now}
        self._connection.execute(_SQL["log_amended"], values)
        if self._connection.changes():
            self._connection.execute(_SQL["amend"], values)
            found = _decode(read_value(self._connection, _SQL["list_just_finished"], values))
            self._note_applied(batch.indexes[key] for key in found)

    def _keep(self, batch: Batch, first_seq: int | None) -> None:
        """Store checkpoints; where there are moves to log, their numbers begin at `first_seq`."""
        values = {"rows": _encode(batch.rows).decode()}
        if first_seq is not None:
            numbers = values | {"first_seq": first_seq, "count": len(batch), "now": self._now}
            self._connection.execute(_SQL["log_keeps"], numbers)
            if self._connection.changes():
                self._connection.execute(_SQL["count_keeps"], numbers)
        kept: list[Any] = self._connection.execute(_SQL["keep"], values).fetchall()
        holds: dict[str, int] = dict(kept)
        for index, row in zip(batch.indexes, batch.rows, strict=True):
            if row[0] in holds:
                self.applied[index] = True
                self.answers[index] = kept_answer(holds[row[0]])

    def _note_applied(self, indexes: Iterable[int]) -> None:
        applied, answers = self.applied, self.answers
        for index in indexes:
            applied[index] = True
            answers[index] = DONE

    def _note_ready(self, batch: Batch, values: dict[str, Any]) -> None:
        for key, lane_id, namespace, limit_key in _decode(read_value(self._connection, _SQL["list_just_parked"], values)):
            index = batch.indexes[key]
            if limit_key is not None:
                self.keys.add((namespace, limit_key))
            self.applied[index] = True
            self.answers[index] = DONE if lane_id is None else Answer(Verdict.DONE, lane_ids=(lane_id,))

    def _recognise_repeats(self, batch: Batch) -> None:
        """Answer `done` where this very settlement of this very claim was committed before; it changes nothing now."""
        lost = [
            (index, (*row[:3], row[6], row[4]))
            for index, row in zip(batch.indexes, batch.rows, strict=True)
            if row[2] is not None and not self.applied[index]
        ]
        if lost:
            rows = _encode([row for _, row in lost]).decode()
            for number in _decode(read_value(self._connection, _SQL["list_settled"], {"rows": rows})):
                self.answers[lost[number][0]] = DONE


def commit(
    connection: apsw.Connection, units: Sequence[Unit], known: Mapping[Lane, int], now: int
) -> tuple[list[Answer], Mapping[Lane, int]]:
    """Do the units inside a transaction of the caller's; returns their answers, and the lanes that there are after it."""
    short = list_checkpoints(units)
    if not short:
        return _commit(connection, units, known, now)
    answers = dict(zip(short, put_checkpoints(connection, [units[index] for index in short], now), strict=True))
    rest = [index for index in range(len(units)) if index not in answers]
    if rest:
        others, known = _commit(connection, [units[index] for index in rest], known, now)
        answers |= dict(zip(rest, others, strict=True))
    return [answers[index] for index in range(len(units))], known


def _commit(
    connection: apsw.Connection, units: Sequence[Unit], known: Mapping[Lane, int], now: int
) -> tuple[list[Answer], Mapping[Lane, int]]:
    keys: set[Key] = set()
    if not any(map(has_rows, units)):
        answers, known = _commit_tasks(connection, units, [unit.guard is None for unit in units], known, now, keys)
    else:
        judged = judge(connection, units, now)
        entrances = [units[owner].guard is None and units[owner].run is None for owner in judged.owners]
        simple, known = _commit_tasks(connection, judged.units, entrances, known, now, keys)
        lanes = write_rows(connection, judged.rows, now, keys)
        answers = merge(judged, simple, lanes, len(units))
    if keys and (lane_ids := admit(connection, keys)):
        done = next(index for index, answer in enumerate(answers) if answer.verdict is Verdict.DONE)
        answers[done] = msgspec.structs.replace(answers[done], lane_ids=tuple(lane_ids.union(answers[done].lane_ids)))
    if has_births(units):
        claim_born(connection, list_births(units, answers), now)
    return answers, known


def _commit_tasks(
    connection: apsw.Connection,
    units: Sequence[Unit],
    entrances: Sequence[bool],
    known: Mapping[Lane, int],
    now: int,
    keys: set[Key],
) -> tuple[list[Answer], Mapping[Lane, int]]:
    settling = Settling(connection, units, now)
    settling.settle()
    keys |= settling.keys
    answers = settling.answers
    wanted = [(index, task) for index, unit in enumerate(units) if unit.tasks and settling.applied[index] for task in unit.tasks]
    if not wanted:
        return answers, known
    missing = {task.lane for _, task in wanted} - known.keys()
    if missing:
        known = make_lanes(connection, missing)
    guarded = list_guarded(connection)
    if guarded:
        wanted = [(index, _with_key(task, guarded.get(known[task.lane]))) for index, task in wanted]
    lanes: dict[int, set[int]] = {}
    existing: dict[int, dict[str, str]] = {}
    limits: dict[Key, int] = {}
    entered: set[tuple[Guarded, Lane, bool]] = set()
    inserted = insert_tasks(connection, [task for _, task in wanted], known, now)
    for (index, task), (new, holder_id) in zip(wanted, inserted, strict=True):
        if new and task.limit_key is not None:
            keys.add((task.lane.namespace, task.limit_key))
            if task.limit is not None:
                limits[task.lane.namespace, task.limit_key] = task.limit
        elif new and task.delay <= 0 and not task.hold:
            lanes.setdefault(index, set(answers[index].lane_ids)).add(known[task.lane])
        elif holder_id is not None and task.unique_key is not None:
            existing.setdefault(index, {})[task.unique_key] = holder_id
        if new and guarded and entrances[index] and (lane := guarded.get(known[task.lane])) is not None:
            entered.add((lane, task.lane, task.delay <= 0))
    check_entrance(connection, entered)
    put_limits(connection, limits)
    for index in lanes.keys() | existing.keys():
        lane_ids = tuple(lanes.get(index, answers[index].lane_ids))
        answers[index] = msgspec.structs.replace(answers[index], existing=existing.get(index, {}), lane_ids=lane_ids)
    return answers, known


def _with_key(task: NewTask, lane: Guarded | None) -> NewTask:
    """The task with its lane's limit key, if it has none."""
    if lane is None or lane.limit_key is None or task.limit_key is not None:
        return task
    return msgspec.structs.replace(task, limit_key=lane.limit_key)
