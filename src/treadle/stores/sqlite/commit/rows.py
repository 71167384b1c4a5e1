"""Write the rows of units, inside the caller's transaction."""

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
    Answer,
    CancelRunTasks,
    ClearInbox,
    Dismiss,
    HoldRun,
    LimitTask,
    MoveRun,
    PutBlob,
    PutFlow,
    PutInbox,
    PutRun,
    PutSteps,
    PutTags,
    Row,
    Unit,
)
from treadle.model.errors import IllegalMove
from treadle.model.records import Message
from treadle.model.runs import Step, deadline_task_id
from treadle.model.tags import KEPT_LIMIT
from treadle.stores.rules.units import changed_records, has_rare_rows, kept_answer, new_records, new_runs
from treadle.stores.sqlite.commit.settlements import doubt_effects, find_holds, take_seqs
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.sqlite.limits import Key, list_run_keys
from treadle.stores.sqlite.traces import append_streams
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "rows.sql")
_decode = msgspec.json.Decoder().decode


def write_heads(connection: apsw.Connection, units: Iterable[Unit], now: int) -> None:
    """Write the new runs, the records, and the next version of the run of each unit."""
    bumps: dict[str, tuple[int, int]] = {}
    for unit in units:
        if has_rare_rows(unit):
            for put in new_runs(unit):
                connection.execute(_SQL["insert_run"], msgspec.structs.asdict(put.run) | {"now": now})
            write_records(connection, unit, now)
        if unit.run is not None:
            count, added = bumps.get(unit.run.run_id, (0, 0))
            added += sum([row.added for row in unit.rows if type(row) is PutSteps])
            bumps[unit.run.run_id] = count + 1, added
    if bumps:
        rows = [(run_id, count, added) for run_id, (count, added) in bumps.items()]
        connection.execute(_SQL["bump_runs"], {"rows": to_json(rows)})


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
                connection.execute(_SQL["put_inbox"], {"step_id": step_id, "inbox": inbox})
            case ClearInbox(step_ids):
                connection.execute(_SQL["clear_inbox"], {"ids": to_json(step_ids)})
            case PutFlow(flow, anew):
                connection.execute(_SQL["put_flow"], msgspec.structs.asdict(flow) | {"now": now, "anew": anew})
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
            case LimitTask(task_id, key):
                values = {"task_id": task_id, "key": key}
                for namespace, before in connection.execute(_SQL["find_limit_key"], values).fetchall():
                    keys.update((str(namespace), str(each)) for each in (before, key) if each is not None)
                connection.execute(_SQL["limit_task"], values)
            case Dismiss(run_id, None):
                connection.execute(_SQL["dismiss_run"], {"run_id": run_id})
            case Dismiss(_, task_ids):
                connection.execute(_SQL["dismiss_tasks"], {"ids": to_json(task_ids)})
            case PutTags(entity, owner_id, tags):
                connection.execute(_SQL["put_run_tags" if entity == "run" else "put_task_tags"], _tag_values(owner_id, tags))
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
    connection.execute(_SQL["put_steps"], {"rows": to_json(values), "now": now})


def _move_run(connection: apsw.Connection, row: MoveRun, now: int) -> None:
    values = {name: getattr(row, name) for name in row.__struct_fields__} | {"now": now}
    found = connection.execute(_SQL["move_run"], values).fetchall()
    if not found:
        raise IllegalMove("run", row.run_id, f"not {row.from_state}", row.move)
    values["version"], values["root_id"], values["trace_id"], deadline_at = found[0]
    if deadline_at is not None:
        connection.execute(_SQL["drop_timer"], {"id": deadline_task_id(row.run_id)})
    values["seq"] = take_seqs(connection, 1)
    connection.execute(_SQL["log_run"], values)


def _cancel_tasks(connection: apsw.Connection, row: CancelRunTasks, now: int) -> None:
    which = {"run_id": row.run_id, "inbox": row.inbox}
    count = read_value(connection, _SQL["count_run_tasks"], which)
    if count:
        task_ids = _decode(read_value(connection, _SQL["list_run_task_ids"], which))
        doubt_effects(connection, [(task_id, None, None, None) for task_id in task_ids], now)
        values = which | {"actor": row.actor, "error": row.error, "first_seq": take_seqs(connection, count), "now": now}
        connection.execute(_SQL["cancel_run_tasks"], values)
        if row.inbox is not None:
            connection.execute(_SQL["leave_in_inboxes"], which)
        connection.execute(_SQL["drop_run_tasks"], which)


def _tag_values(owner_id: str, tags: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return {"owner_id": owner_id, "rows": to_json(list(tags)), "kept": KEPT_LIMIT}


def _put_outcome(connection: apsw.Connection, row: PutOutcome, now: int) -> None:
    o = row.outcome
    start = (o.idempotency_key, o.tool_call_id, o.status, o.response_hash, o.response)
    rows = [(*start, o.root_id, o.task_id, o.details, row.doubted)]
    connection.execute(_SQL["put_outcomes"], {"rows": to_json(rows), "now": now})


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
