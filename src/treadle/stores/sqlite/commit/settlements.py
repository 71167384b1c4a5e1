"""Settle the guarded tasks of units, one statement for each kind of settlement.

The guard is in the `where` of the statement, the written rows carry the seqs taken for this call, and later statements
refer to those. Only if fewer rows were written than asked for does the code look up which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.units import CLAIM_LOST, DONE, Amend, Answer, Finish, Keep, Park, Revive, Unit, Verdict
from treadle.model.tasks import Claim
from treadle.stores.rules.units import Change, Settled, Settlements, kept_answer
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.sqlite.limits import Key, take_turns
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "settlements.sql")
_decode = msgspec.json.Decoder().decode
_decode_counts = msgspec.json.Decoder(list[tuple[str, int]]).decode
_decode_holds = msgspec.json.Decoder(list[tuple[int, int]]).decode


def take_seqs(connection: apsw.Connection, count: int) -> int:
    """Take that many seqs for moves; return the first of them."""
    return int(read_value(connection, _SQL["take_seqs"], {"count": count})) - count + 1


def find_holds(connection: apsw.Connection, units: Sequence[Unit]) -> dict[int, int]:
    """Return the hold of the tasks of units that hold their claim, by position."""
    claims = [(unit.guard.task_id, unit.guard.version, unit.guard.owner_id) for unit in units if isinstance(unit.guard, Claim)]
    return dict(_decode_holds(read_value(connection, _SQL["list_staying"], {"rows": to_json(claims)})))


def list_settled(connection: apsw.Connection, asked: Sequence[Settled]) -> set[int]:
    """Return the indexes of the settlements that were committed before."""
    if not asked:
        return set()
    rows = [(each.claim.task_id, each.claim.version, each.claim.owner_id, each.move, each.actor) for each in asked]
    return set(_decode(read_value(connection, _SQL["list_settled"], {"rows": to_json(rows)})))


def doubt_effects(connection: apsw.Connection, guards: Sequence[tuple[Any, ...]], now: int) -> dict[str, int]:
    """Log the effects in progress of the held tasks (id, claim version, owner, version) as unknown; return their number by task."""
    found = _decode_counts(read_value(connection, _SQL["list_in_progress"], {"rows": to_json(guards)})) if guards else []
    if not found:
        return {}
    count = sum(effects for _, effects in found)
    values = {"rows": to_json(found), "ids": to_json([task_id for task_id, _ in found]), "now": now}
    values["first_seq"] = take_seqs(connection, count)
    for name in ("log_unknown", "count_unknown_moves", "mark_unknown"):
        connection.execute(_SQL[name], values)
    return dict(found)


class Settler:
    """Settles the units of one call, inside one transaction, and collects their answers."""

    def __init__(self, connection: apsw.Connection, units: Sequence[Unit], now: int) -> None:
        self._connection = connection
        self._units = units
        self._now = now
        self.answers: list[Answer] = [CLAIM_LOST if unit.guard else DONE for unit in units]
        self.applied = [unit.guard is None for unit in units]
        self.keys: set[Key] = set()
        """Limit keys of settled tasks: other tasks with these keys may be admitted."""

    def settle(self) -> None:
        """Settle the guarded tasks; if several units name one task, the first one with a matching guard settles it.

        Units that keep their claim are checked before those that settle: only settlements before them in the call matter.
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
            if later:  # before this call writes anything, which would make them look like repeats
                repeats = Settlements((index, self._units[index]) for index in later if self._units[index].settlement is not None)
                self._recognise_repeats(repeats.finishes)
                self._recognise_repeats(repeats.parks)
            if staying:
                self._stay(staying)
            self._settle(Settlements((index, self._units[index]) for index in distinct.values()))
            if not later:
                break
            changed.update(task_id for task_id, index in distinct.items() if self.applied[index])
            pending = later

    def _settle(self, kinds: Settlements) -> None:
        if moved := doubt_effects(self._connection, kinds.doubtful, self._now):
            kinds.follow(moved)
        finishes, parks, revivals, amends, keeps = kinds.finishes, kinds.parks, kinds.revivals, kinds.amends, kinds.keeps
        logged = len(finishes) + len(parks) + len(revivals) + len(amends)
        logs_keeps = any(change.what.move is not None for change in keeps)
        count = logged + len(keeps) if logs_keeps else logged
        seq = take_seqs(self._connection, count) if count else 0
        if finishes:
            self._finish(finishes, seq)
        if parks:
            self._park(parks, seq + len(finishes))
        if kinds.quiet_parks:
            self._park_quietly(kinds.quiet_parks)
        if revivals:
            self._revive(revivals, seq + len(finishes) + len(parks))
        if amends:
            self._amend(amends, seq + len(finishes) + len(parks) + len(revivals))
        if keeps:
            self._keep(keeps, seq + logged if logs_keeps else None)

    def _stay(self, indexes: Sequence[int]) -> None:
        for position, hold in find_holds(self._connection, [self._units[index] for index in indexes]).items():
            self.applied[indexes[position]] = True
            self.answers[indexes[position]] = kept_answer(hold)

    def _finish(self, changes: Sequence[Change[Finish]], first_seq: int) -> None:
        rows = [
            (
                c.task_id,
                c.claim_version,
                c.owner_id,
                c.version,
                c.actor,
                w.state,
                w.move,
                w.result,
                w.error,
                w.error_code,
                w.fingerprint,
            )
            for c in changes
            for w in (c.what,)
        ]
        values = self._values(rows, first_seq)
        self._connection.execute(_SQL["finish"], values)
        count = self._connection.changes()
        if count:
            if read_value(self._connection, _SQL["has_admitted"]):
                freed = _decode(read_value(self._connection, _SQL["list_freed"], values))
                self.keys.update((namespace, key) for namespace, key in freed)
            self._connection.execute(_SQL["drop_finished"], values)
        if count == len(changes):
            self._note_applied(change.position for change in changes)
        else:
            self._note_finished(changes, values)
            self._recognise_repeats(changes)

    def _park(self, changes: Sequence[Change[Park]], first_seq: int) -> None:
        values = self._values([_park_row(change) for change in changes], first_seq)
        self._connection.execute(_SQL["log_parks"], values)
        count = self._connection.changes()
        if count:
            self._connection.execute(_SQL["park"], values)
            self._note_parked(changes, values)
        if count < len(changes):
            self._recognise_repeats(changes)

    def _park_quietly(self, changes: Sequence[Change[Park]]) -> None:
        values = {"rows": to_json([_park_row(change) for change in changes]), "now": self._now}
        indexes = {change.task_id: change.position for change in changes}
        for task_id, lane_id, namespace, limit_key in self._connection.execute(_SQL["park_quietly"], values).fetchall():
            self._note_lane(indexes[str(task_id)], lane_id, namespace, limit_key)

    def _revive(self, changes: Sequence[Change[Revive]], first_seq: int) -> None:
        rows = [(*c.guard, w.move, w.payload, w.failures, w.delay) for c in changes for w in (c.what,)]
        values = self._values(rows, first_seq)
        self._connection.execute(_SQL["log_revivals"], values)
        if self._connection.changes():
            for name in ("log_ends", "revive", "drop_revived"):
                self._connection.execute(_SQL[name], values)
            take_turns(self._connection, [change.task_id for change in changes])
            self._note_parked(changes, values)

    def _amend(self, changes: Sequence[Change[Amend]], first_seq: int) -> None:
        values = self._values([(*c.guard, c.what.state, c.what.move) for c in changes], first_seq)
        self._connection.execute(_SQL["log_amended"], values)
        if self._connection.changes():
            self._connection.execute(_SQL["amend"], values)
            self._note_finished(changes, values)

    def _keep(self, changes: Sequence[Change[Keep]], first_seq: int | None) -> None:
        """Store checkpoints, and log the moves with seqs from `first_seq`, if there are any."""
        rows = [(*c.guard[:3], w.checkpoint, w.move, w.data) for c in changes for w in (c.what,)]
        if first_seq is not None:
            values = self._values(rows, first_seq)
            self._connection.execute(_SQL["log_keeps"], values)
            if self._connection.changes():
                self._connection.execute(_SQL["count_keeps"], values)
        kept: list[Any] = self._connection.execute(_SQL["keep"], {"rows": to_json(rows)}).fetchall()
        holds: dict[str, int] = dict(kept)
        for change in changes:
            if change.task_id in holds:
                self.applied[change.position] = True
                self.answers[change.position] = kept_answer(holds[change.task_id])

    def _values(self, rows: Sequence[tuple[Any, ...]], first_seq: int) -> dict[str, Any]:
        return {"rows": to_json(rows), "first_seq": first_seq, "count": len(rows), "now": self._now}

    def _note_applied(self, indexes: Iterable[int]) -> None:
        applied, answers = self.applied, self.answers
        for index in indexes:
            applied[index] = True
            answers[index] = DONE

    def _note_finished(self, changes: Sequence[Change[Finish]] | Sequence[Change[Amend]], values: dict[str, Any]) -> None:
        found = _decode(read_value(self._connection, _SQL["list_just_finished"], values))
        self._note_applied(changes[number].position for number in found)

    def _note_parked(self, changes: Sequence[Change[Park]] | Sequence[Change[Revive]], values: dict[str, Any]) -> None:
        for number, *ready in _decode(read_value(self._connection, _SQL["list_just_parked"], values)):
            self._note_lane(changes[number].position, *ready)

    def _note_lane(self, index: int, lane_id: Any, namespace: Any, limit_key: Any) -> None:
        if limit_key is not None:
            self.keys.add((namespace, limit_key))
        self.applied[index] = True
        self.answers[index] = DONE if lane_id is None else Answer(Verdict.DONE, lane_ids=(lane_id,))

    def _recognise_repeats(self, changes: Sequence[Change[Finish]] | Sequence[Change[Park]]) -> None:
        """Answer `done` if the same settlement of the same claim was committed before; it changes nothing now."""
        lost = [
            Settled(
                change.position, Claim(change.task_id, change.claim_version, change.owner_id), change.what.move, change.actor or ""
            )
            for change in changes
            if change.owner_id is not None and not self.applied[change.position]
        ]
        for number in list_settled(self._connection, lost):
            self.answers[lost[number].position] = DONE


def _park_row(change: Change[Park]) -> tuple[Any, ...]:
    w = change.what
    return (
        *change.guard,
        w.state,
        w.move,
        w.attempt,
        w.failures,
        w.takeovers,
        w.hold,
        w.delay,
        w.checkpoint,
        w.error,
        w.data,
        w.doing,
        w.stays,
    )
