"""The writes of a commit, inside the caller's transaction: settlements of tasks, and the rows of units.

The guard is in the `where` of each statement. Settlements of one kind are one statement; only if fewer rows were written than asked
for does the code look up which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

import apsw
import msgspec

from treadle.kernel.store.records import (
    AppendStream,
    Await,
    ChangeRecord,
    PutItems,
    PutMessage,
    PutOutcome,
    PutRecord,
    TakeMessages,
)
from treadle.kernel.store.units import (
    CLAIM_LOST,
    DONE,
    Amend,
    Answer,
    CancelRunTasks,
    ClearInbox,
    Dismiss,
    Finish,
    HoldRun,
    Keep,
    LimitTask,
    MoveRun,
    Park,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    PutTags,
    Revive,
    Row,
    Unit,
    Verdict,
)
from treadle.model.errors import IllegalMove
from treadle.model.records import Message
from treadle.model.runs import Step, deadline_task_id
from treadle.model.tags import KEPT_LIMIT
from treadle.model.tasks import Claim
from treadle.stores.rules.units import (
    Change,
    Settled,
    Settlements,
    changed_records,
    has_rare_rows,
    kept_answer,
    new_records,
    new_runs,
)
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.sqlite.limits import Key, list_run_keys, take_turns
from treadle.stores.sqlite.streams import append_streams
from treadle.stores.statements import load_statements

_SETTLEMENTS = load_statements(__package__, "settlements.sql")
_decode = msgspec.json.Decoder().decode
_decode_counts = msgspec.json.Decoder(list[tuple[str, int]]).decode
_decode_holds = msgspec.json.Decoder(list[tuple[int, int]]).decode


def take_seqs(connection: apsw.Connection, count: int) -> int:
    """Take that many seqs for moves; return the first of them."""
    return int(read_value(connection, _SETTLEMENTS["take_seqs"], {"count": count})) - count + 1


def find_holds(connection: apsw.Connection, units: Sequence[Unit]) -> dict[int, int]:
    """Return the hold of the tasks of units that hold their claim, by position."""
    claims = [(unit.guard.task_id, unit.guard.version, unit.guard.owner_id) for unit in units if isinstance(unit.guard, Claim)]
    return dict(_decode_holds(read_value(connection, _SETTLEMENTS["list_staying"], {"rows": to_json(claims)})))


def list_settled(connection: apsw.Connection, asked: Sequence[Settled]) -> set[int]:
    """Return the indexes of the settlements that were committed before."""
    if not asked:
        return set()
    rows = [(each.claim.task_id, each.claim.version, each.claim.owner_id, each.move, each.actor) for each in asked]
    return set(_decode(read_value(connection, _SETTLEMENTS["list_settled"], {"rows": to_json(rows)})))


def doubt_effects(connection: apsw.Connection, guards: Sequence[tuple[Any, ...]], now: int) -> dict[str, int]:
    """Log the effects in progress of the held tasks (id, claim version, owner, version) as unknown; return their number by task."""
    found = _decode_counts(read_value(connection, _SETTLEMENTS["list_in_progress"], {"rows": to_json(guards)})) if guards else []
    if not found:
        return {}
    count = sum(effects for _, effects in found)
    values = {"rows": to_json(found), "ids": to_json([task_id for task_id, _ in found]), "now": now}
    values["first_seq"] = take_seqs(connection, count)
    for name in ("log_unknown", "count_unknown_moves", "mark_unknown"):
        connection.execute(_SETTLEMENTS[name], values)
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
        self._connection.execute(_SETTLEMENTS["finish"], values)
        count = self._connection.changes()
        if count:
            if read_value(self._connection, _SETTLEMENTS["has_admitted"]):
                freed = _decode(read_value(self._connection, _SETTLEMENTS["list_freed"], values))
                self.keys.update((namespace, key) for namespace, key in freed)
            self._connection.execute(_SETTLEMENTS["drop_finished"], values)
        if count == len(changes):
            self._note_applied(change.position for change in changes)
        else:
            self._note_finished(changes, values)
            self._recognise_repeats(changes)

    def _park(self, changes: Sequence[Change[Park]], first_seq: int) -> None:
        values = self._values([_park_row(change) for change in changes], first_seq)
        self._connection.execute(_SETTLEMENTS["log_parks"], values)
        count = self._connection.changes()
        if count:
            self._connection.execute(_SETTLEMENTS["park"], values)
            self._note_parked(changes, values)
        if count < len(changes):
            self._recognise_repeats(changes)

    def _park_quietly(self, changes: Sequence[Change[Park]]) -> None:
        values = {"rows": to_json([_park_row(change) for change in changes]), "now": self._now}
        indexes = {change.task_id: change.position for change in changes}
        for task_id, lane_id, namespace, limit_key in self._connection.execute(_SETTLEMENTS["park_quietly"], values).fetchall():
            self._note_lane(indexes[str(task_id)], lane_id, namespace, limit_key)

    def _revive(self, changes: Sequence[Change[Revive]], first_seq: int) -> None:
        rows = [(*c.guard, w.move, w.payload, w.failures, w.delay) for c in changes for w in (c.what,)]
        values = self._values(rows, first_seq)
        self._connection.execute(_SETTLEMENTS["log_revivals"], values)
        if self._connection.changes():
            for name in ("log_ends", "revive", "drop_revived"):
                self._connection.execute(_SETTLEMENTS[name], values)
            take_turns(self._connection, [change.task_id for change in changes])
            self._note_parked(changes, values)

    def _amend(self, changes: Sequence[Change[Amend]], first_seq: int) -> None:
        values = self._values([(*c.guard, c.what.state, c.what.move) for c in changes], first_seq)
        self._connection.execute(_SETTLEMENTS["log_amended"], values)
        if self._connection.changes():
            self._connection.execute(_SETTLEMENTS["amend"], values)
            self._note_finished(changes, values)

    def _keep(self, changes: Sequence[Change[Keep]], first_seq: int | None) -> None:
        """Store checkpoints, and log the moves with seqs from `first_seq`, if there are any."""
        rows = [(*c.guard[:3], w.checkpoint, w.move, w.data) for c in changes for w in (c.what,)]
        if first_seq is not None:
            values = self._values(rows, first_seq)
            self._connection.execute(_SETTLEMENTS["log_keeps"], values)
            if self._connection.changes():
                self._connection.execute(_SETTLEMENTS["count_keeps"], values)
        kept: list[Any] = self._connection.execute(_SETTLEMENTS["keep"], {"rows": to_json(rows)}).fetchall()
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
        found = _decode(read_value(self._connection, _SETTLEMENTS["list_just_finished"], values))
        self._note_applied(changes[number].position for number in found)

    def _note_parked(self, changes: Sequence[Change[Park]] | Sequence[Change[Revive]], values: dict[str, Any]) -> None:
        for number, *ready in _decode(read_value(self._connection, _SETTLEMENTS["list_just_parked"], values)):
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


_ROWS = load_statements(__package__, "rows.sql")


def write_heads(connection: apsw.Connection, units: Iterable[Unit], now: int) -> None:
    """Write the new runs, the records, and the next version of the run of each unit."""
    bumps: dict[str, tuple[int, int]] = {}
    for unit in units:
        if has_rare_rows(unit):
            for put in new_runs(unit):
                connection.execute(_ROWS["insert_run"], msgspec.structs.asdict(put.run) | {"now": now})
            write_records(connection, unit, now)
        if unit.run is not None:
            count, added = bumps.get(unit.run.run_id, (0, 0))
            added += sum([row.added for row in unit.rows if type(row) is PutSteps])
            bumps[unit.run.run_id] = count + 1, added
    if bumps:
        rows = [(run_id, count, added) for run_id, (count, added) in bumps.items()]
        connection.execute(_ROWS["bump_runs"], {"rows": to_json(rows)})


def write_rows(connection: apsw.Connection, rows: Sequence[tuple[int, Row]], now: int, keys: set[Key]) -> dict[int, set[int]]:
    """Write the other rows of units, each with the index of its unit; return the lanes in which tasks became ready, by unit.

    Adds the limit keys of affected tasks to `keys`. Messages go last: a run that ends or begins to wait in the same call
    has done so before its messages arrive.
    """
    lanes: dict[int, set[int]] = {}
    sent: list[tuple[int, Message]] = []
    appended: list[AppendStream] = []
    if steps := {step.id: step for _, row in rows if type(row) is PutSteps for step in row.steps}:
        put_steps(connection, list(steps.values()), now)
    for index, row in rows:
        match row:
            case PutRun() | PutRecord() | ChangeRecord():
                pass  # `write_heads` wrote it
            case MoveRun():
                _move_run(connection, row, now)
            case PutSteps():
                pass  # written above, with those of all units
            case PutInbox(step_id, inbox):
                connection.execute(_ROWS["put_inbox"], {"step_id": step_id, "inbox": inbox})
            case ClearInbox(step_ids):
                connection.execute(_ROWS["clear_inbox"], {"ids": to_json(step_ids)})
            case PutFlow(flow, anew):
                connection.execute(_ROWS["put_flow"], msgspec.structs.asdict(flow) | {"now": now, "anew": anew})
            case PutBlob(digest, value, root_id):
                connection.execute(_ROWS["put_blob"], {"digest": digest, "value": value})
                connection.execute(_ROWS["use_blob"], {"digest": digest, "root_id": root_id})
            case HoldRun(run_id, held):
                keys.update(list_run_keys(connection, run_id))
                connection.execute(_ROWS["hold_run" if held else "free_run"], {"run_id": run_id})
                lanes.setdefault(index, set()).update(
                    _decode(read_value(connection, _ROWS["list_ready_lanes"], {"run_id": run_id}))
                )
            case CancelRunTasks():
                keys.update(list_run_keys(connection, row.run_id))
                _cancel_tasks(connection, row, now)
            case LimitTask(task_id, key):
                values = {"task_id": task_id, "key": key}
                for namespace, before in connection.execute(_ROWS["find_limit_key"], values).fetchall():
                    keys.update((str(namespace), str(each)) for each in (before, key) if each is not None)
                connection.execute(_ROWS["limit_task"], values)
            case Dismiss(run_id, None):
                connection.execute(_ROWS["dismiss_run"], {"run_id": run_id})
            case Dismiss(_, task_ids):
                connection.execute(_ROWS["dismiss_tasks"], {"ids": to_json(task_ids)})
            case PutTags(entity, owner_id, tags):
                connection.execute(_ROWS["put_run_tags" if entity == "run" else "put_task_tags"], _tag_values(owner_id, tags))
            case PutItems():
                put_items(connection, row)
            case PutMessage(message):
                sent.append((index, message))
            case TakeMessages():
                take_messages(connection, row)
            case Await():
                await_messages(connection, row)
            case PutOutcome():
                _put_outcome(connection, row, now)
            case AppendStream():
                appended.append(row)
            case _:
                assert_never(row)
    if appended:
        append_streams(connection, appended, now)
    if sent:
        put_messages(connection, sent, now, keys, lanes)
    return lanes


def put_checkpoints(connection: apsw.Connection, units: Sequence[Unit], now: int) -> list[Answer]:
    """Apply units that are checkpoints: one read for all claims, and one statement for all steps."""
    holds = find_holds(connection, units)
    puts = [row for position, unit in enumerate(units) if position in holds for row in unit.rows if isinstance(row, PutSteps)]
    put_steps(connection, [step for row in puts for step in row.steps], now)
    return [kept_answer(holds[position]) if position in holds else CLAIM_LOST for position in range(len(units))]


def put_steps(connection: apsw.Connection, steps: Sequence[Step], now: int) -> None:
    """Insert or replace steps; a replaced step keeps its inbox."""
    values = [(s.id, s.run_id, s.parent_id, s.ordinal, s.kind, s.name, s.facet, s.state, s.body) for s in steps]
    connection.execute(_ROWS["put_steps"], {"rows": to_json(values), "now": now})


def _move_run(connection: apsw.Connection, row: MoveRun, now: int) -> None:
    values = {name: getattr(row, name) for name in row.__struct_fields__} | {"now": now}
    found = connection.execute(_ROWS["move_run"], values).fetchall()
    if not found:
        raise IllegalMove("run", row.run_id, f"not {row.from_state}", row.move)
    values["version"], values["root_id"], values["trace_id"], deadline_at = found[0]
    if deadline_at is not None:
        connection.execute(_ROWS["drop_timer"], {"id": deadline_task_id(row.run_id)})
    values["seq"] = take_seqs(connection, 1)
    connection.execute(_ROWS["log_run"], values)


def _cancel_tasks(connection: apsw.Connection, row: CancelRunTasks, now: int) -> None:
    which = {"run_id": row.run_id, "inbox": row.inbox}
    count = read_value(connection, _ROWS["count_run_tasks"], which)
    if count:
        task_ids = _decode(read_value(connection, _ROWS["list_run_task_ids"], which))
        doubt_effects(connection, [(task_id, None, None, None) for task_id in task_ids], now)
        values = which | {"actor": row.actor, "error": row.error, "first_seq": take_seqs(connection, count), "now": now}
        connection.execute(_ROWS["cancel_run_tasks"], values)
        if row.inbox is not None:
            connection.execute(_ROWS["leave_in_inboxes"], which)
        connection.execute(_ROWS["drop_run_tasks"], which)


def _tag_values(owner_id: str, tags: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {"owner_id": owner_id, "rows": to_json(list(tags)), "kept": KEPT_LIMIT}


def _put_outcome(connection: apsw.Connection, row: PutOutcome, now: int) -> None:
    o = row.outcome
    start = (o.idempotency_key, o.tool_call_id, o.status, o.response_hash, o.response)
    rows = [(*start, o.root_id, o.task_id, o.details, row.doubted)]
    connection.execute(_ROWS["put_outcomes"], {"rows": to_json(rows), "now": now})


_RECORDS = load_statements(__package__, "records.sql")


def write_records(connection: apsw.Connection, unit: Unit, now: int) -> None:
    """Change existing records first, which may free names; then insert new ones, and change these."""
    new, changes = new_records([unit]), changed_records([unit])
    created = {record.id for record in new}
    for change in changes:
        if change.record_id not in created:
            _change_record(connection, change, now)
    for record in new:
        connection.execute(_RECORDS["insert_record"], msgspec.structs.asdict(record) | {"now": now})
    for change in changes:
        if change.record_id in created:
            _change_record(connection, change, now)


def _change_record(connection: apsw.Connection, row: ChangeRecord, now: int) -> None:
    values = {name: getattr(row, name) for name in row.__struct_fields__} | {"now": now}
    found = connection.execute(_RECORDS["change_record"], values).fetchall()
    if not found:
        raise IllegalMove("record", row.record_id, f"not {row.from_state}", row.move or "change")
    if row.move is not None:
        values["entity"], values["moves"], values["run_id"], values["root_id"], values["trace_id"] = found[0]
        values["seq"] = take_seqs(connection, 1)
        connection.execute(_RECORDS["log_record"], values)


def put_items(connection: apsw.Connection, row: PutItems) -> None:
    """Store or remove values of a record; of a key that is given twice, the last one."""
    values = {"record_id": row.record_id, "rows": to_json(list(dict(row.items).items()))}
    if any(value is None for _, value in row.items):
        connection.execute(_RECORDS["remove_items"], values)
    connection.execute(_RECORDS["put_items"], values)


_MESSAGES = load_statements(__package__, "messages.sql")


def put_messages(
    connection: apsw.Connection, sent: Sequence[tuple[int, Message]], now: int, keys: set[Key], lanes: dict[int, set[int]]
) -> None:
    """Deliver messages, each with the index of its unit, and wake the runs that await no more of them.

    Adds the lanes of woken tasks to `lanes`, by unit, and limit keys to `keys`.
    """
    rows = [(message.id, message.run_id, message.step_id, message.name, message.body) for _, message in sent]
    inserted = connection.execute(_MESSAGES["insert_messages"], {"rows": to_json(rows), "now": now}).fetchall()
    if not inserted:
        return
    counts = Counter(str(run_id) for (run_id,) in inserted)
    bumped = connection.execute(_MESSAGES["count_messages"], {"rows": to_json(list(counts.items()))}).fetchall()
    if not (due := [run_id for run_id, awaiting in bumped if awaiting == 0]):
        return
    for run_id, lane_id, hold, namespace, limit_key in connection.execute(_MESSAGES["wake_runs"], {"ids": to_json(due)}):
        if limit_key is not None and hold:
            keys.add((namespace, limit_key))
        if not hold:
            for unit in {unit for unit, message in sent if message.run_id == run_id}:
                lanes.setdefault(unit, set()).add(lane_id)


def take_messages(connection: apsw.Connection, row: TakeMessages) -> None:
    """Delete messages that the run consumed."""
    connection.execute(_MESSAGES["take_messages"], {"run_id": row.run_id, "ids": to_json(row.message_ids)})


def await_messages(connection: apsw.Connection, row: Await) -> None:
    """Set the number of messages that the run awaits."""
    connection.execute(_MESSAGES["await_messages"], {"run_id": row.run_id, "count": row.count, "added": row.added})
