"""Commits: apply all units of a call in one transaction, each completely or not at all.

Settlements come first, so that a unit's new tasks may use keys and slots that it freed. At the end, `admit` lets the next
tasks run of the limit keys that the commit touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw
import msgspec

from treadle.kernel.store.units import DONE, Answer, Unit
from treadle.model.names import Lane
from treadle.stores.rules.guards import Decision, decide, has_rows, only_sees, with_admitted, with_lanes
from treadle.stores.rules.inserts import (
    Entered,
    has_preclaims,
    is_entrance,
    list_preclaims,
    note_inserted,
    with_lane_key,
)
from treadle.stores.rules.settlements import list_checkpoints
from treadle.stores.sqlite.commit.guards import take_snapshot
from treadle.stores.sqlite.commit.inserts import insert_tasks, preclaim
from treadle.stores.sqlite.commit.rows import put_checkpoints, write_heads, write_rows
from treadle.stores.sqlite.commit.settlements import Settler, list_settled
from treadle.stores.sqlite.lanes import check_entrance, list_guarded, make_lanes
from treadle.stores.sqlite.limits import Key, admit, put_limits
from treadle.stores.sqlite.turns import take_turns

Lanes = Mapping[Lane, int]


def commit(connection: apsw.Connection, units: Sequence[Unit], known: Lanes, now: int) -> tuple[list[Answer], Lanes]:
    """Apply the units inside the caller's transaction; return their answers, and the lanes that exist afterwards."""
    short = list_checkpoints(units)
    if not short:
        return _commit(connection, units, known, now)
    answers = dict(zip(short, put_checkpoints(connection, [units[index] for index in short], now), strict=True))
    rest = [index for index in range(len(units)) if index not in answers]
    if rest:
        others, known = _commit(connection, [units[index] for index in rest], known, now)
        answers |= dict(zip(rest, others, strict=True))
    return [answers[index] for index in range(len(units))], known


def _commit(connection: apsw.Connection, units: Sequence[Unit], known: Lanes, now: int) -> tuple[list[Answer], Lanes]:
    keys: set[Key] = set()
    if not any(map(has_rows, units)):
        answers, known = _commit_tasks(connection, units, [is_entrance(unit) for unit in units], known, now, keys)
    else:
        answers, known = _commit_rows(connection, units, known, now, keys)
    if keys:
        answers = with_admitted(answers, admit(connection, keys, now))
    if has_preclaims(units):
        preclaim(connection, list_preclaims(units, answers), now)
    return answers, known


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
