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

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import asyncpg

from treadle.kernel.store.records import Await, ChangeRecord, PutMessage, PutRecord
from treadle.kernel.store.units import DONE, DOUBTFUL_MOVES, Answer, Finish, Keep, Park, Revive, Unit, Verdict
from treadle.model.errors import InvalidInput, StoreBusy
from treadle.model.names import Lane
from treadle.model.states import Hold, TaskState
from treadle.model.tasks import Claim, NewTask
from treadle.stores.postgres.commit.writes import (
    End,
    Limited,
    bury,
    find_holders,
    finish,
    insert_runs,
    open_rest,
    put_checkpoints,
    receiving_runs,
    settle,
    take_back_runs,
    write_records,
    write_rows,
)
from treadle.stores.postgres.connection.connect import Connection, confirm, plain, sparse, words
from treadle.stores.postgres.limits import Key, admit, check_entrance, lock_guarded, take_turns
from treadle.stores.postgres.retention import drop_uses
from treadle.stores.rules.units import (
    Decision,
    Deduped,
    GuardedTask,
    Preclaim,
    Settled,
    Snapshot,
    TaskKey,
    changed_records,
    decide,
    has_keys,
    has_preclaims,
    has_rows,
    is_checkpoint,
    is_entrance,
    is_plain,
    kept_answer,
    kinds_of,
    leave_out,
    list_preclaims,
    new_records,
    note_inserted,
    task_keys,
    values_of,
    wanted_keys,
    with_admitted,
    with_lane_key,
    with_lanes,
)
from treadle.stores.statements import COLUMN_SETS, LONG, load_statements

Lanes = Mapping[Lane, int]


async def commit(connection: Connection, lane_ids: Lanes, units: Sequence[Unit]) -> list[Answer]:
    """Apply the units; return the answers in their order. `lane_ids` has the lanes of all new tasks.

    Most commits are plain, and take one statement.
    """
    if all(map(is_plain, units)):
        return await _commit(connection, lane_ids, units)
    if has_preclaims(units):
        async with connection.transaction():
            answers = await _commit_keys(connection, lane_ids, units)
            await preclaim(connection, list_preclaims(units, answers))
            return answers
    return await _commit_keys(connection, lane_ids, units)


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


_GUARDS = load_statements(__package__, "guards.sql")


async def take_snapshot(connection: Connection, units: Sequence[Unit]) -> Snapshot:
    """Lock and return the tasks, runs and records that guard the units, and the runs that receive messages."""
    kinds = kinds_of(units)
    receiving = receiving_runs(units) if PutMessage in kinds else set()
    wanted = {unit.run.run_id for unit in units if unit.run is not None} | receiving
    if Await in kinds:
        wanted |= {row.run_id for unit in units for row in unit.rows if isinstance(row, Await)}
    known = await connection.fetch(_GUARDS["lock_runs"], plain(sorted(wanted))) if wanted else []
    runs, ended = {row[0]: row[1] for row in known}, {row[0] for row in known if row[2]}
    tasks = await _lock_tasks(connection, task_keys(units), receiving)
    if PutRecord not in kinds and ChangeRecord not in kinds:
        return Snapshot(tasks, runs, ended)
    new = new_records(units)
    record_ids = {change.record_id for change in changed_records(units)} | {record.id for record in new}
    records = {row[0]: row[1] for row in await connection.fetch(_GUARDS["lock_records"], sorted(record_ids))}
    return Snapshot(tasks, runs, ended, records=records, names=await find_holders(connection, new))


async def _lock_tasks(connection: Connection, keys: set[TaskKey], receiving: Set[str]) -> dict[TaskKey, GuardedTask]:
    """Lock the guarded tasks, and the own tasks of runs that receive messages, which may wake them."""
    found: dict[TaskKey, GuardedTask] = {}
    for finished, statement in ((False, "lock_tasks"), (True, "lock_finished")):
        task_ids = sorted(task_id for task_id, ended in keys if ended is finished)
        if receiving and not finished:
            rows = await connection.fetch(_GUARDS["lock_tasks_and_receivers"], plain(task_ids), plain(sorted(receiving)))
        else:
            rows = await connection.fetch(_GUARDS[statement], plain(task_ids)) if task_ids else []
        found |= {(row[0], finished): GuardedTask(*row) for row in rows}
    return found


async def list_settled(connection: Connection, asked: Sequence[Settled]) -> set[int]:
    """Return the indexes of the settlements that were committed before."""
    if not asked:
        return set()
    rows = await connection.fetch(
        _GUARDS["list_settled"],
        [each.claim.task_id for each in asked],
        [each.claim.version for each in asked],
        [each.claim.owner_id for each in asked],
        [each.actor for each in asked],
        [each.move for each in asked],
    )
    return {row[0] - 1 for row in rows}


_KEYS = load_statements(__package__, "keys.sql")


async def take_keys(connection: Connection, units: Sequence[Unit]) -> Deduped:
    """Let the keys identify the new tasks, or leave out tasks with keys that identify others."""
    wanted = wanted_keys(units)
    namespaces, keys = [key[0] for key, _ in wanted], [key[1] for key, _ in wanted]
    tasks = [task for _, task in wanted]
    lifetimes = [task.idempotency_for for task in tasks]
    await connection.execute(_KEYS["take_keys"], namespaces, keys, [task.id for task in tasks], lifetimes)
    holders = [row[0] for row in await connection.fetch(_KEYS["list_holders"], namespaces, keys)]
    if len(holders) != len(wanted):
        raise StoreBusy("An idempotency key was pruned at this very moment; try again.")
    return leave_out(units, dict(zip((key for key, _ in wanted), holders, strict=True)))


async def settle_keys(connection: Connection, deduped: Deduped, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
    """Update the keys after the commit; return the answers to the original units."""
    answered = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            await connection.execute(_KEYS[name], *map(list, zip(*keys, strict=True)))
    if deduped.orphans:
        await drop_uses(connection, deduped.orphans)
    return answered


_INSERTS = load_statements(__package__, "inserts.sql")

_TRIES = 5


@dataclass(slots=True)
class Inserted:
    """`ids` are new; `holders` maps the id of each task with a taken unique key to the live task that has the key."""

    tasks: Sequence[NewTask] = ()
    """The tasks to insert, with the limit keys of their lanes."""
    ids: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    shut: bool = False
    """Nothing was inserted, because one of the lanes is guarded and must be checked first."""

    @property
    def keys(self) -> set[Key]:
        """The limit keys of new tasks, which wait to be admitted."""
        return {(task.lane.namespace, task.limit_key) for task in self.tasks if task.limit_key and task.id in self.ids}

    @property
    def limits(self) -> dict[Key, int]:
        """The limits that callers gave for keys of new tasks."""
        return {
            (task.lane.namespace, task.limit_key): task.limit
            for task in self.tasks
            if task.limit_key and task.limit is not None and task.id in self.ids
        }


async def enter(connection: Connection, lane_ids: Mapping[Lane, int], units: Sequence[Unit]) -> Inserted:
    """Insert the new tasks of units inside the caller's transaction, if guarded lanes accept them; `admit` must follow."""
    tasks = [task for unit in units for task in unit.tasks]
    if not tasks:
        return Inserted()
    inserted = await insert_tasks(connection, lane_ids, tasks)
    if not inserted.shut:
        await _take_turns(connection, inserted)
        return inserted
    guarded = await lock_guarded(connection, {lane_ids[task.lane] for task in tasks})
    keyed = [with_lane_key(task, guarded.get(lane_ids[task.lane])) for task in tasks]
    inserted = await insert_tasks(connection, lane_ids, keyed, checked=True)
    await _take_turns(connection, inserted)
    new = [task for unit in units if is_entrance(unit) for task in unit.tasks if task.id in inserted.ids]
    entered = [(guarded[lane_ids[task.lane]], task.lane, task.delay <= 0) for task in new if lane_ids[task.lane] in guarded]
    await check_entrance(connection, entered)
    return inserted


async def _take_turns(connection: Connection, inserted: Inserted) -> None:
    await take_turns(connection, [task.id for task in inserted.tasks if task.fairness_key and task.id in inserted.ids])


async def preclaim(connection: Connection, preclaims: Sequence[Preclaim]) -> None:
    """Claim tasks that this transaction inserted for their owners."""
    if preclaims:
        await connection.execute(_INSERTS["preclaim"], *zip(*preclaims, strict=True))


async def insert_tasks(
    connection: Connection, lane_ids: Mapping[Lane, int], tasks: Sequence[NewTask], *, checked: bool = False
) -> Inserted:
    """Insert the tasks that do not exist; of two with one key, the first. A second live task of a step is an error.

    Unless guarded lanes have been `checked`, inserts nothing if there is one.
    """
    inserted = Inserted(tasks)
    to_check = [] if checked else list({lane_ids[task.lane] for task in tasks})
    # Keys in one order, so that two transactions that insert the same keys never wait for each other.
    wanted = sorted(tasks, key=lambda task: (task.unique_key is None, task.lane.namespace, task.unique_key or ""))
    for _ in range(_TRIES):
        if len(wanted) == 1:
            rows = await connection.fetch(_INSERTS["insert_task"], *values_of(wanted[0], lane_ids[wanted[0].lane]), to_check)
        else:
            rows = await connection.fetch(_INSERTS["insert_tasks"], *_columns(wanted, lane_ids), to_check)
        inserted.ids.update([row[0] for row in rows])
        if None in inserted.ids:
            return Inserted(shut=True)
        refused = {task.id: task for task in wanted if (task.unique_key or task.step_id) and task.id not in inserted.ids}
        wanted = await _explain(connection, refused, inserted) if refused else []
        if not wanted:
            return inserted
    raise StoreBusy(f"The unique key or step of task {wanted[0].id} changed hands {_TRIES} times while it was inserted; try again.")


async def _explain(connection: Connection, refused: Mapping[str, NewTask], inserted: Inserted) -> list[NewTask]:
    """Note the holders of the keys of refused tasks; return the tasks with a key that is free again."""
    rows = await connection.fetch(
        _INSERTS["explain_refusals"],
        list(refused),
        [task.lane.namespace for task in refused.values()],
        sparse([task.unique_key for task in refused.values()]),
        sparse([task.step_id for task in refused.values()]),
    )
    free = []
    for task_id, known, holder_id, rival_id in rows:
        if known:
            continue
        if holder_id is not None:
            inserted.holders[task_id] = holder_id
        elif rival_id is not None:
            raise InvalidInput(f"The step {refused[task_id].step_id} has a live task already, {rival_id}; there can be only one.")
        else:
            free.append(refused[task_id])
    return free


def _columns(tasks: Sequence[NewTask], lane_ids: Mapping[Lane, int]) -> list[object]:
    """Return the values of the tasks, one parameter for each column of the set `given`."""
    columns: list[object] = []
    rows = [values_of(task, lane_ids[task.lane]) for task in tasks]
    for column, values in zip(COLUMN_SETS["given"], zip(*rows, strict=True), strict=True):
        if column.name in LONG:
            columns.append(sparse(list(values)))
        elif column.type == "text" or None in values:
            columns.append(words(values))
        else:
            columns.append(plain(values))
    return columns
