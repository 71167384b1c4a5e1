"""Units that advance runs: their guards are judged one after the other, then their rows are written.

A unit that may happen is taken apart into the settlements of its tasks, which go the way of all settlements, and its
rows. All of it happens inside a transaction of the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import apsw
import msgspec

from treadle.kernel.store.records import Await, ChangeRecord, PutItems, PutMessage, PutOutcome, PutRecord, TakeMessages
from treadle.kernel.store.units import (
    CLAIM_LOST,
    DEFERRED,
    DONE,
    Amend,
    Answer,
    CancelRunTasks,
    ClearInbox,
    Finish,
    HoldRun,
    MoveRun,
    Park,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    Revive,
    Row,
    Unit,
    Verdict,
)
from treadle.model.errors import IllegalMove
from treadle.model.records import Message
from treadle.model.runs import Run, Step
from treadle.model.tasks import Claim
from treadle.stores.sqlite.connection import find_value, read_value
from treadle.stores.sqlite.limits import Key, list_run_keys
from treadle.stores.sqlite.mail import await_mail, put_mail, take_mail
from treadle.stores.sqlite.outcomes import put_outcomes
from treadle.stores.sqlite.records import put_items, refuse_records, write_records
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "rows.sql")
_COMMIT = load_statements(__package__, "commit.sql")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def has_rows(unit: Unit) -> bool:
    """Whether it is about more than tasks."""
    return bool(unit.rows or unit.also) or unit.run is not None


@dataclass(slots=True)
class Judged:
    """The simple units that the call comes to, whose each is, the answers that are known already, and the rows to write."""

    units: list[Unit] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    rows: list[tuple[int, Row]] = field(default_factory=list)

    def add(self, index: int, unit: Unit) -> None:
        self.units.append(unit)
        self.owners.append(index)


def judge(connection: apsw.Connection, units: Sequence[Unit], now: int) -> Judged:
    """Decide which units may happen; runs and records of those that may have their new version from now on."""
    judged = Judged()
    settled: set[str] = set()
    named = {guard[0] for unit in units if has_rows(unit) for guard in _guards(unit)}
    for index, unit in enumerate(units):
        if not has_rows(unit) and (unit.guard is None or unit.guard.task_id not in named):
            judged.add(index, unit)
            continue
        refusal = _refusal(connection, unit, settled)
        if refusal is not None:
            judged.answers[index] = refusal
            continue
        for run in _new_runs(unit):
            connection.execute(_SQL["insert_run"], msgspec.structs.asdict(run) | {"now": now})
        write_records(connection, unit.rows, now)
        if unit.guard is not None and unit.settlement is not None:
            settled.add(unit.guard.task_id)
        settled.update(claim.task_id for claim, _ in unit.also)
        added = sum(row.added for row in unit.rows if isinstance(row, PutSteps))
        if unit.run is not None:
            connection.execute(_SQL["bump_run"], {"id": unit.run.run_id, "added": added})
        judged.add(index, msgspec.structs.replace(unit, also=(), run=None, rows=()))
        for claim, finish in unit.also:
            judged.add(index, Unit(claim, finish))
        judged.rows += [(index, row) for row in unit.rows]
    return judged


def _refusal(connection: apsw.Connection, unit: Unit, settled: set[str]) -> Answer | None:
    """The answer to a unit that must not happen, or None."""
    if unit.run is not None:
        version = find_value(connection, _SQL["find_run_version"], {"id": unit.run.run_id})
        if version is None or (unit.run.version is not None and version != unit.run.version):
            return DONE if _was_committed(connection, unit) else DEFERRED
    if lost := _lost(connection, unit, settled):
        return DONE if _was_committed(connection, unit) else Answer(Verdict.CLAIM_LOST, lost=lost)
    for run in _new_runs(unit):
        if (answer := _refuse_run(connection, run)) is not None:
            return answer
    return refuse_records(connection, unit)


def _new_runs(unit: Unit) -> list[Run]:
    return [row.run for row in unit.rows if isinstance(row, PutRun)]


def _guards(unit: Unit) -> list[tuple[str, int, str | None, int | None]]:
    guards: list[tuple[str, int, str | None, int | None]] = []
    if isinstance(unit.guard, Claim):
        guards.append((unit.guard.task_id, unit.guard.version, unit.guard.owner_id, None))
    elif unit.guard is not None:
        guards.append((unit.guard.task_id, unit.guard.claim_version, None, unit.guard.version))
    return guards + [(claim.task_id, claim.version, claim.owner_id, None) for claim, _ in unit.also]


def _lost(connection: apsw.Connection, unit: Unit, settled: set[str]) -> tuple[str, ...]:
    guards = _guards(unit)
    if not guards:
        return ()
    statement = "list_ended" if isinstance(unit.settlement, Revive | Amend) else "list_held"
    held = set(_decode(read_value(connection, _SQL[statement], {"rows": _encode(guards).decode()})))
    return tuple(guard[0] for key, guard in enumerate(guards) if key not in held or guard[0] in settled)


def _was_committed(connection: apsw.Connection, unit: Unit) -> bool:
    """Whether all claims of the unit have been settled in just this way: then it was committed before."""
    claims = [*([(unit.guard, unit.settlement)] if isinstance(unit.guard, Claim) else []), *unit.also]
    asked = [
        (claim.task_id, claim.version, claim.owner_id, what.move, what.actor or claim.owner_id)
        for claim, what in claims
        if isinstance(what, Finish | Park)
    ]
    if not asked:
        return False
    return len(_decode(read_value(connection, _COMMIT["list_settled"], {"rows": _encode(asked).decode()}))) == len(asked)


def _refuse_run(connection: apsw.Connection, run: Run) -> Answer | None:
    if find_value(connection, _SQL["find_run_version"], {"id": run.id}) is not None:
        return DONE
    if run.idempotency_key is not None:
        values = {"namespace": run.namespace, "key": run.idempotency_key}
        holder = find_value(connection, _SQL["find_run_by_key"], values)
        if holder is not None:
            return Answer(Verdict.DONE, existing={run.idempotency_key: holder})
    return None


def write_rows(connection: apsw.Connection, rows: Sequence[tuple[int, Row]], now: int, keys: set[Key]) -> dict[int, set[int]]:
    """Write the rows of units that happen; lanes in which that made tasks ready, by unit. Limit keys are added to `keys`.

    Message goes last: a run that ends or begins to wait in the same call has done so when it is told.
    """
    lanes: dict[int, set[int]] = {}
    told: list[tuple[int, Message]] = []
    for index, row in rows:
        match row:
            case PutRun() | PutRecord() | ChangeRecord():
                pass  # written when it was judged
            case MoveRun():
                _move_run(connection, row, now)
            case PutSteps(steps=steps):
                put_steps(connection, steps, now)
            case PutInbox(step_id, inbox):
                connection.execute(_SQL["put_inbox"], {"step_id": step_id, "inbox": inbox})
            case ClearInbox(step_ids):
                connection.execute(_SQL["clear_inbox"], {"ids": _encode(step_ids).decode()})
            case PutFlow(flow):
                connection.execute(_SQL["put_flow"], msgspec.structs.asdict(flow) | {"now": now})
            case PutBlob(digest, value, root_id):
                connection.execute(_SQL["put_blob"], {"digest": digest, "value": value})
                connection.execute(_SQL["use_blob"], {"digest": digest, "root_id": root_id})
            case HoldRun(run_id, held):
                keys.update(list_run_keys(connection, run_id))
                connection.execute(_SQL["hold_run" if held else "free_run"], {"run_id": run_id})
                lanes.setdefault(index, set()).update(_decode(read_value(connection, _SQL["list_ready_lanes"], {"run_id": run_id})))
            case CancelRunTasks():
                keys.update(list_run_keys(connection, row.run_id))
                _cancel_tasks(connection, row, now)
            case PutItems():
                put_items(connection, row)
            case PutMessage(mail):
                told.append((index, mail))
            case TakeMessages():
                take_mail(connection, row)
            case Await():
                await_mail(connection, row)
            case PutOutcome(outcome):
                put_outcomes(connection, [outcome], now)
            case _:
                assert_never(row)
    if told:
        put_mail(connection, told, now, keys, lanes)
    return lanes


def put_steps(connection: apsw.Connection, steps: Sequence[Step], now: int) -> None:
    """Insert steps, or replace them but for their inbox."""
    values = [(s.id, s.run_id, s.parent_id, s.ordinal, s.kind, s.name, s.facet, s.state, s.body) for s in steps]
    connection.execute(_SQL["put_steps"], {"rows": _encode(values).decode(), "now": now})


def _move_run(connection: apsw.Connection, row: MoveRun, now: int) -> None:
    values = {name: getattr(row, name) for name in row.__slots__} | {"now": now}
    found = connection.execute(_SQL["move_run"], values).fetchall()
    if not found:
        raise IllegalMove("run", row.run_id, f"not {row.from_state}", row.move)
    values["version"], values["root_id"], values["trace_id"] = found[0]
    values["seq"] = read_value(connection, _COMMIT["take_seqs"], {"count": 1})
    connection.execute(_SQL["log_run"], values)


def _cancel_tasks(connection: apsw.Connection, row: CancelRunTasks, now: int) -> None:
    count = read_value(connection, _SQL["count_run_tasks"], {"run_id": row.run_id})
    if count:
        first = read_value(connection, _COMMIT["take_seqs"], {"count": count}) - count + 1
        values = {"run_id": row.run_id, "actor": row.actor, "error": row.error, "first_seq": first, "now": now}
        connection.execute(_SQL["cancel_run_tasks"], values)
        connection.execute(_SQL["drop_run_tasks"], {"run_id": row.run_id})


def merge(judged: Judged, simple: Sequence[Answer], lanes: dict[int, set[int]], count: int) -> list[Answer]:
    """The answers of the units as they were given, from those of the simple ones."""
    answers: dict[int, Answer] = dict(judged.answers)
    for owner, answer in zip(judged.owners, simple, strict=True):
        before = answers.get(owner)
        if before is None:
            answers[owner] = answer
        elif answer is not DONE:
            existing, lane_ids = before.existing | answer.existing, (*before.lane_ids, *answer.lane_ids)
            answers[owner] = msgspec.structs.replace(before, verdict=answer.verdict, existing=existing, lane_ids=lane_ids)
    for owner, more in lanes.items():
        answers[owner] = msgspec.structs.replace(answers[owner], lane_ids=tuple(more.union(answers[owner].lane_ids)))
    return [answers.get(index, CLAIM_LOST) for index in range(count)]
