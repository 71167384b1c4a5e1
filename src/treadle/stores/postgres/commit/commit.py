"""Commits: apply all units of a call in one transaction, with as few round trips as their kinds allow.

The hot paths are a single statement: all units finish a claimed task and do nothing else, all are new tasks without a
step, or all are checkpoints. That is atomic for new tasks too: the statement decides which of them are refused.
Otherwise, a transaction locks the guarded rows, `rules.guards` decides the units, and each kind of settlement and of row
is one statement for all units. The hot statements leave tasks with a limit key, and lanes with settings, to that path: it
ends by admitting the next tasks of the keys.

An acknowledgement of something that an earlier commit wrote waits for synchronous standbys as if it were written now
(`confirm`): the earlier commit may have been completed without them, by a restart of the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import asyncpg

from treadle.kernel.store.units import DONE, DOUBTFUL_MOVES, Answer, Finish, Keep, Park, Revive, Unit, Verdict
from treadle.model.names import Lane
from treadle.model.states import Hold, TaskState
from treadle.model.tasks import Claim, NewTask
from treadle.stores.postgres.commit.guards import list_settled, take_snapshot
from treadle.stores.postgres.commit.inserts import Inserted, enter, insert_tasks, preclaim
from treadle.stores.postgres.commit.keys import settle_keys, take_keys
from treadle.stores.postgres.commit.records import write_records
from treadle.stores.postgres.commit.rows import insert_runs, put_checkpoints, take_back_runs, write_rows
from treadle.stores.postgres.commit.settlements import End, Limited, bury, finish, open_rest, settle
from treadle.stores.postgres.connection.connect import Connection, confirm
from treadle.stores.postgres.limits import admit
from treadle.stores.rules.guards import Decision, GuardedTask, decide, has_rows, with_admitted, with_lanes
from treadle.stores.rules.inserts import has_preclaims, list_preclaims, note_inserted
from treadle.stores.rules.keys import has_keys
from treadle.stores.rules.settlements import is_checkpoint, kept_answer

Lanes = Mapping[Lane, int]


async def commit(connection: Connection, lane_ids: Lanes, units: Sequence[Unit]) -> list[Answer]:
    """Apply the units; return the answers in their order. `lane_ids` has the lanes of all new tasks."""
    if not has_preclaims(units):
        return await _commit_keys(connection, lane_ids, units)
    async with connection.transaction():
        answers = await _commit_keys(connection, lane_ids, units)
        await preclaim(connection, list_preclaims(units, answers))
    return answers


async def _commit_keys(connection: Connection, lane_ids: Lanes, units: Sequence[Unit]) -> list[Answer]:
    if not has_keys(units):
        return await _commit(connection, lane_ids, units)
    async with connection.transaction():
        deduped = await take_keys(connection, units)
        answers = await _commit(connection, lane_ids, deduped.units)
        return await settle_keys(connection, deduped, units, answers)


async def _commit(connection: Connection, lane_ids: Lanes, units: Sequence[Unit]) -> list[Answer]:
    if (ends := _plain_ends(units)) is not None:
        if await finish(connection, ends, limited=False) == len(ends):
            return [DONE] * len(ends)
    elif all(map(is_checkpoint, units)):
        return await put_checkpoints(connection, units)
    elif tasks := _plain_tasks(units):
        inserted = await insert_tasks(connection, lane_ids, tasks)
        if not inserted.shut:
            if len(inserted.ids) < len(tasks):
                await confirm(connection)
            return [note_inserted(DONE, unit.tasks, inserted, lane_ids) for unit in units]
    async with connection.transaction():
        return await _commit_guarded(connection, lane_ids, units)


def _plain_ends(units: Sequence[Unit]) -> list[End] | None:
    """Return the ends, if each unit ends another claimed task and does nothing else."""
    ends: list[End] = []
    for unit in units:
        guard, end = unit.guard, unit.settlement
        if unit.tasks or type(guard) is not Claim or type(end) is not Finish or has_rows(unit) or end.move in DOUBTFUL_MOVES:
            return None
        ends.append((guard.task_id, guard.version, guard.owner_id, end.actor or guard.owner_id, end))
    return ends if len({end[0] for end in ends}) == len(ends) else None


def _plain_tasks(units: Sequence[Unit]) -> list[NewTask]:
    """Return the new tasks, if the units contain nothing else, and no task has a step, a limit key or a fairness key."""
    tasks: list[NewTask] = []
    for unit in units:
        if unit.guard is not None or has_rows(unit) or any(map(_is_special, unit.tasks)):
            return []
        tasks += unit.tasks
    return tasks


def _is_special(task: NewTask) -> bool:
    return bool(task.step_id or task.limit_key or task.fairness_key)


async def _commit_guarded(connection: Connection, lane_ids: Lanes, units: Sequence[Unit]) -> list[Answer]:
    """Lock the rows that the units name, decide the units, and apply them."""
    snapshot = await take_snapshot(connection, units)
    inserted_runs: set[str] = set()
    while True:
        decision = decide(units, snapshot.copy())
        if not await insert_runs(connection, snapshot, inserted_runs, decision.applied):
            continue
        if not (refused := await write_records(connection, decision.applied)):
            break
        snapshot.refused |= refused
    await take_back_runs(connection, inserted_runs, decision.applied.values())
    asked = decision.repeats(units)
    decision.recognise(asked, await list_settled(connection, asked))
    limited = await settle(connection, decision.parts)
    inserted = await enter(connection, lane_ids, list(decision.applied.values()))
    if _is_repeated(decision, inserted):
        await confirm(connection)
    lanes = await write_rows(connection, decision.applied, limited.keys)
    skipped = decision.skipped(snapshot.tasks)
    keys = (
        limited.keys | inserted.keys | {(row.namespace, row.limit_key) for row in skipped if row.hold and row.limit_key is not None}
    )
    admitted = await admit(connection, keys, inserted.limits) if keys else set()
    admitted |= {row.lane_id for row in skipped if not row.hold}
    return with_admitted(_answers(decision, lane_ids, limited, inserted, lanes), admitted)


def _is_repeated(decision: Decision, inserted: Inserted) -> bool:
    """Whether something that an earlier commit has written is acknowledged, and not written again."""
    recognised = any(
        answer.verdict is Verdict.DONE and position not in decision.applied for position, answer in enumerate(decision.answers)
    )
    return recognised or len(inserted.ids) < len(inserted.tasks)


def _answers(
    decision: Decision, lane_ids: Lanes, limited: Limited, inserted: Inserted, lanes: Mapping[int, set[int]]
) -> list[Answer]:
    """Return the answers: done, the keys that were taken, and the lanes in which tasks became ready."""
    answers = list(decision.answers)
    tasks = {task.id: task for task in inserted.tasks}
    for position, unit in decision.applied.items():
        answer = _settled_answer(unit, decision.rows.get(position), limited)
        if unit.tasks:
            answer = note_inserted(answer, [tasks[task.id] for task in unit.tasks], inserted, lane_ids)
        answers[position] = with_lanes(answer, lanes.get(position, set()))
    return answers


def _settled_answer(unit: Unit, row: GuardedTask | None, limited: Limited) -> Answer:
    match unit.settlement:
        case Park(hold=0, delay=None) | Revive(delay=None) as move if row is not None and row.id not in limited.task_ids:
            polled = isinstance(move, Park) and move.state == TaskState.AWAITING_EXTERNAL  # a paused run does not hold it
            return DONE if row.hold & Hold.RUN_PAUSED and not polled else Answer(Verdict.DONE, lane_ids=(row.lane_id,))
        case Keep() | None if row is not None and isinstance(unit.guard, Claim):
            return kept_answer(row.hold)
        case _:
            return DONE


async def make_way(connection: Connection, units: Sequence[Unit], error: asyncpg.PostgresError) -> None:
    """Remove what made a commit of the units fail although it should not exist: rows, or the bounds of an unfinished split."""
    if isinstance(error, asyncpg.CheckViolationError):
        await open_rest(connection)
    if isinstance(error, asyncpg.UniqueViolationError) and (error.table_name or "").startswith("finished_"):
        await bury(connection, [unit.guard.task_id for unit in units if unit.guard is not None])
