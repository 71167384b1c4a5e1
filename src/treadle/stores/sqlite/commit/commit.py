"""Commits: apply all units of a call in one transaction, each completely or not at all.

Settlements come first, so that a unit's new tasks may use keys and slots that it freed. At the end, `admit` lets the next
tasks run of the limit keys that the commit touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from treadle.kernel.store.units import DONE, Answer, Unit
from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.rules.units import (
    Decision,
    Deduped,
    Entered,
    GuardedLane,
    GuardedTask,
    Preclaim,
    Snapshot,
    TaskKey,
    capped_lanes,
    changed_records,
    check_backlog,
    decide,
    has_keys,
    has_rows,
    is_entrance,
    is_plain,
    leave_out,
    list_checkpoints,
    list_preclaims,
    name_of,
    new_records,
    new_runs,
    note_inserted,
    only_sees,
    task_keys,
    values_of,
    wanted_keys,
    with_admitted,
    with_lane_key,
    with_lanes,
)
from treadle.stores.sqlite.commit.writes import Settler, list_settled, put_checkpoints, write_heads, write_rows
from treadle.stores.sqlite.connection.connect import read_value, to_json
from treadle.stores.sqlite.limits import Key, admit, charge, make_lanes, put_limits, take_turns
from treadle.stores.sqlite.retention import drop_uses
from treadle.stores.statements import load_statements

Lanes = Mapping[Lane, int]


def commit(connection: apsw.Connection, units: Sequence[Unit], lanes: Lanes, now: int) -> tuple[list[Answer], Lanes]:
    """Apply the units inside the caller's transaction; return their answers, and the lanes that exist afterwards.

    Most commits are plain, and take the short path.
    """
    if all(map(is_plain, units)):
        tasks = [task for unit in units for task in unit.tasks]
        if not tasks or (all(task.lane in lanes for task in tasks) and not list_guarded(connection)):
            return _commit_plain(connection, units, lanes, now), lanes
    return _commit_special(connection, units, lanes, now)


def _commit_plain(connection: apsw.Connection, units: Sequence[Unit], lanes: Lanes, now: int) -> list[Answer]:
    """Settle tasks, and insert tasks that nothing but their unique keys can refuse, into existing lanes."""
    settler = Settler(connection, units, now)
    settler.settle()
    answers = settler.answers
    entering = [index for index, unit in enumerate(units) if unit.tasks and settler.applied[index]]
    if entering:
        tasks = [task for index in entering for task in units[index].tasks]
        inserted = insert_tasks(connection, tasks, lanes, now)
        for index in entering:
            answers[index] = note_inserted(answers[index], units[index].tasks, inserted, lanes)
    if settler.keys:
        answers = with_admitted(answers, admit(connection, settler.keys, now))
    return answers


def _commit_special(connection: apsw.Connection, units: Sequence[Unit], lanes: Lanes, now: int) -> tuple[list[Answer], Lanes]:
    """Apply any units: idempotency keys first, then checkpoints, and all others."""
    if not has_keys(units):
        return _commit_checkpoints(connection, units, lanes, now)
    deduped = take_keys(connection, units, now)
    answers, lanes = _commit_checkpoints(connection, deduped.units, lanes, now)
    return settle_keys(connection, deduped, units, answers), lanes


def _commit_checkpoints(connection: apsw.Connection, units: Sequence[Unit], lanes: Lanes, now: int) -> tuple[list[Answer], Lanes]:
    short = list_checkpoints(units)
    if not short:
        return _commit_others(connection, units, lanes, now)
    answers = dict(zip(short, put_checkpoints(connection, [units[index] for index in short], now), strict=True))
    rest = [index for index in range(len(units)) if index not in answers]
    if rest:
        others, lanes = _commit_others(connection, [units[index] for index in rest], lanes, now)
        answers |= dict(zip(rest, others, strict=True))
    return [answers[index] for index in range(len(units))], lanes


def _commit_others(connection: apsw.Connection, units: Sequence[Unit], lanes: Lanes, now: int) -> tuple[list[Answer], Lanes]:
    keys: set[Key] = set()
    if not any(map(has_rows, units)):
        answers, lanes = _commit_tasks(connection, units, [is_entrance(unit) for unit in units], lanes, now, keys)
    else:
        answers, lanes = _commit_rows(connection, units, lanes, now, keys)
    if keys:
        answers = with_admitted(answers, admit(connection, keys, now))
    preclaim(connection, list_preclaims(units, answers), now)
    return answers, lanes


def _commit_rows(
    connection: apsw.Connection, units: Sequence[Unit], known: Lanes, now: int, keys: set[Key]
) -> tuple[list[Answer], Lanes]:
    """Apply units of which some write more than tasks: decide them first, then settle their parts and write their rows."""
    decision = decide(units, take_snapshot(connection, units))
    asked = decision.repeats(units)
    decision.recognise(asked, list_settled(connection, asked))
    write_heads(connection, decision.applied.values(), now)
    parts = [
        msgspec.structs.replace(part.unit, guard=None if only_sees(part.unit) else part.unit.guard, also=(), run=None, rows=())
        for part in decision.parts
    ]
    entrances = [is_entrance(units[part.position]) for part in decision.parts]
    settled, known = _commit_tasks(connection, parts, entrances, known, now, keys)
    rows = [(position, row) for position, unit in decision.applied.items() for row in unit.rows]
    lanes = write_rows(connection, rows, now, keys)
    return _merge(decision, settled, lanes), known


def _merge(decision: Decision, settled: Sequence[Answer], lanes: Mapping[int, set[int]]) -> list[Answer]:
    """Return the answers of the units, from those of their parts."""
    answers = list(decision.answers)
    merged: set[int] = set()
    for part, answer in zip(decision.parts, settled, strict=True):
        before = answers[part.position]
        if part.position not in merged:
            merged.add(part.position)
            answers[part.position] = answer
        elif answer is not DONE:
            existing, lane_ids = before.existing | answer.existing, (*before.lane_ids, *answer.lane_ids)
            answers[part.position] = msgspec.structs.replace(before, verdict=answer.verdict, existing=existing, lane_ids=lane_ids)
    for position, more in lanes.items():
        answers[position] = with_lanes(answers[position], more)
    return answers


def _commit_tasks(
    connection: apsw.Connection, units: Sequence[Unit], entrances: Sequence[bool], known: Lanes, now: int, keys: set[Key]
) -> tuple[list[Answer], Lanes]:
    """Settle the tasks of the units, and insert the new tasks of units with a matching guard."""
    settler = Settler(connection, units, now)
    settler.settle()
    keys |= settler.keys
    answers = settler.answers
    wanted = {index: unit.tasks for index, unit in enumerate(units) if unit.tasks and settler.applied[index]}
    if not wanted:
        return answers, known
    missing = {task.lane for tasks in wanted.values() for task in tasks} - known.keys()
    if missing:
        known = make_lanes(connection, missing)
    guarded = list_guarded(connection)
    if guarded:
        wanted = {
            index: tuple(with_lane_key(task, guarded.get(known[task.lane])) for task in tasks) for index, tasks in wanted.items()
        }
    inserted = insert_tasks(connection, [task for tasks in wanted.values() for task in tasks], known, now)
    fair = [task.id for tasks in wanted.values() for task in tasks if task.fairness_key and task.id in inserted.ids]
    take_turns(connection, fair)
    limits: dict[Key, int] = {}
    entered: set[Entered] = set()
    for index, tasks in wanted.items():
        answers[index] = note_inserted(answers[index], tasks, inserted, known)
        for task in tasks:
            if task.id not in inserted.ids:
                continue
            if task.limit_key is not None:
                keys.add((task.lane.namespace, task.limit_key))
                if task.limit is not None:
                    limits[task.lane.namespace, task.limit_key] = task.limit
            if guarded and entrances[index] and (lane := guarded.get(known[task.lane])) is not None:
                entered.add((lane, task.lane, task.delay <= 0))
    check_entrance(connection, entered)
    put_limits(connection, limits, now)
    return answers, known


_GUARDS = load_statements(__package__, "guards.sql")


def take_snapshot(connection: apsw.Connection, units: Sequence[Unit]) -> Snapshot:
    """Return the tasks, runs and records that the units are guarded by or create."""
    runs = [put.run for unit in units for put in new_runs(unit)]
    records = new_records(units)
    run_ids = {unit.run.run_id for unit in units if unit.run is not None} | {run.id for run in runs}
    record_ids = {change.record_id for change in changed_records(units)} | {record.id for record in records}
    run_keys = [(run.namespace, run.idempotency_key) for run in runs if run.idempotency_key is not None]
    names = [name_of(record) for record in records if record.name is not None]
    known = _find(connection, "find_runs", "ids", run_ids)
    return Snapshot(
        tasks=_find_tasks(connection, task_keys(units)),
        runs={row[0]: row[1] for row in known},
        ended={row[0] for row in known if row[2]},
        run_keys={(row[0], row[1]): row[2] for row in _find(connection, "find_runs_by_key", "rows", run_keys)},
        records={row[0]: row[1] for row in _find(connection, "find_records", "ids", record_ids)},
        names={(row[0], row[1], row[2]): row[3] for row in _find(connection, "find_holders", "rows", names)},
    )


def _find_tasks(connection: apsw.Connection, keys: set[TaskKey]) -> dict[TaskKey, GuardedTask]:
    found: dict[TaskKey, GuardedTask] = {}
    for finished, name in ((False, "find_tasks"), (True, "find_finished")):
        task_ids = [task_id for task_id, ended in keys if ended is finished]
        found |= {(row[0], finished): GuardedTask(*row) for row in _find(connection, name, "ids", task_ids)}
    return found


def _find(connection: apsw.Connection, name: str, parameter: str, wanted: Iterable[Any]) -> list[Any]:
    values = list(wanted)
    return connection.execute(_GUARDS[name], {parameter: to_json(values)}).fetchall() if values else []


_KEYS = load_statements(__package__, "keys.sql")
_decode = msgspec.json.Decoder().decode


def take_keys(connection: apsw.Connection, units: Sequence[Unit], now: int) -> Deduped:
    """Let the keys identify the new tasks, or leave out tasks with keys that identify others."""
    wanted = wanted_keys(units)
    rows = to_json([(*key, task.id, task.idempotency_for) for key, task in wanted])
    connection.execute(_KEYS["take_keys"], {"rows": rows, "now": now})
    holders = _decode(read_value(connection, _KEYS["list_holders"], {"rows": rows}))
    return leave_out(units, dict(zip((key for key, _ in wanted), holders, strict=True)))


def settle_keys(connection: apsw.Connection, deduped: Deduped, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
    """Update the keys after the commit; return the answers to the original units."""
    answered = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            connection.execute(_KEYS[name], {"rows": to_json(keys)})
    if deduped.orphans:
        drop_uses(connection, deduped.orphans)
    return answered


_INSERTS = load_statements(__package__, "inserts.sql")
_LANES = load_statements("treadle.stores.sqlite", "lanes.sql")
_LAST = 2**63 - 1


class Inserted(NamedTuple):
    """The ids of inserted tasks; `holders` maps each task with a taken unique key to the live task that has the key."""

    ids: set[str]
    holders: dict[str, str]


def preclaim(connection: apsw.Connection, preclaims: Sequence[Preclaim], now: int) -> None:
    """Claim tasks that this transaction inserted for their owners."""
    if not preclaims:
        return
    found: list[Any] = connection.execute(_INSERTS["preclaim"], {"rows": to_json(preclaims), "now": now}).fetchall()
    charge(connection, [(namespace, key) for namespace, key in found if key is not None], now)


def insert_tasks(connection: apsw.Connection, tasks: Sequence[NewTask], lane_ids: Mapping[Lane, int], now: int) -> Inserted:
    """Insert the tasks with a new id and a free unique key, inside the caller's transaction."""
    values = [values_of(task, lane_ids[task.lane]) for task in tasks]
    rows = to_json(values)
    connection.execute(_INSERTS["insert_tasks"], {"rows": rows, "now": now})
    count = connection.changes()
    if count == len(tasks):
        return Inserted({task.id for task in tasks}, {})
    # SQLite numbers new rows after the greatest rowid, so these are the rows inserted just now.
    last_before = connection.last_insert_rowid() - count if count else _LAST
    explained = msgspec.json.decode(read_value(connection, _INSERTS["explain_inserts"], {"rows": rows, "last_before": last_before}))
    inserted = Inserted(set(), {})
    for task, (new, holder_id) in zip(tasks, explained, strict=True):
        if new:
            inserted.ids.add(task.id)
        elif holder_id is not None:
            inserted.holders[task.id] = holder_id
    return inserted


def list_guarded(connection: apsw.Connection) -> dict[int, GuardedLane]:
    """Return the lanes with settings that an insert must obey."""
    return {
        lane_id: GuardedLane(lane_id, bool(accepting), backlog_limit, limit_key)
        for lane_id, accepting, backlog_limit, limit_key in connection.execute(_LANES["list_guarded"])
    }


def check_entrance(connection: apsw.Connection, entered: Iterable[Entered]) -> None:
    """Raise `ListDraining` or `BacklogFull` if a lane refuses the tasks that were just inserted into it."""
    for lane_id, cap, lane in capped_lanes(entered):
        check_backlog(lane, cap, read_value(connection, _LANES["count_backlog"], {"lane_id": lane_id, "most": cap + 1}))
