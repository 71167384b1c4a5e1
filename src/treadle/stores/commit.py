"""Commits: apply all units of a call in one transaction, with as few statements as their kinds allow.

The short paths are a single statement: all units finish a claimed task and do nothing else, all are new tasks without a step, or
all are checkpoints. That is atomic for new tasks too: the statement decides which of them are refused. If finished tasks have limit
keys, the next tasks of these are admitted in the same transaction. Otherwise, a transaction locks the guarded rows, `rules.units`
decides the units, and each kind of settlement and of row is one statement for all units. The short paths leave new tasks with a
limit key, and queues with settings, to that one: it ends by admitting the next tasks of the keys.

An acknowledgement of something that an earlier commit wrote waits for synchronous standbys as if it were written now
(`confirm`): the earlier commit may have been completed without them, by a restart of the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from operator import itemgetter

from treadle.kernel.store.records import Await, ChangeRecord, PutMessage, PutRecord
from treadle.kernel.store.units import DONE, DOUBTFUL_TRANSITIONS, Finish, Keep, Redrive, Requeue, Unit, UnitAnswer, Verdict
from treadle.model.errors import StoreBusy
from treadle.model.names import QueueKey
from treadle.model.states import BlockReason, TaskState
from treadle.model.tasks import Claim, NewTask
from treadle.stores.limits import Key, admit, check_entrance, lock_guarded, order_fairly
from treadle.stores.retention import drop_uses
from treadle.stores.rules.units import (
    CommitPlan,
    Deduped,
    End,
    GuardedTask,
    Inserted,
    SettledClaim,
    Snapshot,
    TaskKey,
    changed_records,
    decide,
    end_of,
    exclusive_keys,
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
    receiving_runs,
    released_tasks,
    task_keys,
    wanted_keys,
    with_admitted,
    with_queue_key,
    with_queues,
)
from treadle.stores.session import Session
from treadle.stores.writes import (
    Limited,
    find_holders,
    insert_runs,
    put_checkpoints,
    settle,
    take_back_runs,
    write_records,
    write_rows,
)

QueueIds = Mapping[QueueKey, int]


async def commit(session: Session, queue_ids: QueueIds, units: Sequence[Unit]) -> list[UnitAnswer]:
    """Apply the units; return the answers in their order. `queue_ids` has the queues of all new tasks.

    Most commits are plain, and take one statement.
    """
    if all(map(is_plain, units)):
        return await _commit(session, queue_ids, units)
    if has_preclaims(units):
        async with session.joined():
            answers = await _commit_keys(session, queue_ids, units)
            if preclaims := list_preclaims(units, answers):
                await session.execute("preclaim", rows=preclaims)
            return answers
    return await _commit_keys(session, queue_ids, units)


async def _commit_keys(session: Session, queue_ids: QueueIds, units: Sequence[Unit]) -> list[UnitAnswer]:
    if not has_keys(units):
        return await _commit(session, queue_ids, units)
    async with session.joined():
        deduped = await take_keys(session, units)
        answers = await _commit(session, queue_ids, deduped.units)
        return await settle_keys(session, deduped, units, answers)


async def _commit(session: Session, queue_ids: QueueIds, units: Sequence[Unit]) -> list[UnitAnswer]:
    if (ends := _plain_ends(units)) is not None:
        count, admitted = await _finish(session, ends, limited=any(map(_has_limit, units)))
        if count < len(ends):
            async with session.joined():
                return with_admitted(await _commit_guarded(session, queue_ids, units), admitted)
        return with_admitted([DONE] * count, admitted)
    elif all(map(is_checkpoint, units)):
        return await put_checkpoints(session, units)
    elif tasks := _plain_tasks(units):
        inserted = await session.insert_tasks(tasks, queue_ids)
        if not inserted.shut:
            if len(inserted.ids) < len(tasks):
                await session.coordinate("confirm")
            return [note_inserted(DONE, unit.tasks, inserted, queue_ids) for unit in units]
    async with session.joined():
        return await _commit_guarded(session, queue_ids, units)


def _plain_ends(units: Sequence[Unit]) -> list[End] | None:
    """Return the ends, if each unit ends another claimed task and does nothing else."""
    ends: list[End] = []
    for unit in units:
        guard, what = unit.guard, unit.settlement
        if (
            unit.tasks
            or type(guard) is not Claim
            or type(what) is not Finish
            or has_rows(unit)
            or what.transition in DOUBTFUL_TRANSITIONS
        ):
            return None
        ends.append(end_of(guard.task_id, guard.version, guard.owner_id, what.actor or guard.owner_id, what))
    return ends if len({end[0] for end in ends}) == len(ends) else None


def _has_limit(unit: Unit) -> bool:
    return type(unit.settlement) is Finish and unit.settlement.limited


async def _finish(session: Session, ends: Sequence[End], *, limited: bool) -> tuple[int, set[int]]:
    """Finish tasks whose claims hold, those with a key only if `limited`; return their number, and the queues of admitted tasks."""
    async with session.joined() if limited else nullcontext():
        rows = await session.fetch("finish", rows=sorted(ends, key=itemgetter(0)), limited=limited)
        keys = [(namespace, key) for namespace, key, _ in rows if key is not None]
        return sum(row[2] for row in rows), await admit(session, keys) if keys else set()


def _plain_tasks(units: Sequence[Unit]) -> list[NewTask]:
    """Return the new tasks, if the units contain nothing else, and no task has a step, a limit key or a fairness key."""
    tasks: list[NewTask] = []
    for unit in units:
        if unit.guard is not None or unit.settlement is not None or has_rows(unit) or any(map(_is_special, unit.tasks)):
            return []
        tasks += unit.tasks
    return tasks


def _is_special(task: NewTask) -> bool:
    return bool(task.step_id or task.limit_key or task.fairness_key)


async def _commit_guarded(session: Session, queue_ids: QueueIds, units: Sequence[Unit]) -> list[UnitAnswer]:
    """Lock the rows that the units name, decide the units, and apply them."""
    snapshot = await take_snapshot(session, units)
    inserted_runs: set[str] = set()
    while True:
        decision = decide(units, snapshot.copy())
        if not await insert_runs(session, snapshot, inserted_runs, decision.applied):
            continue
        if not (refused := await write_records(session, decision.applied)):
            break
        snapshot.refused |= refused
    await take_back_runs(session, inserted_runs, decision.applied.values())
    repeats = decision.repeats(units)
    decision.recognise(repeats, await list_settled(session, repeats))
    limited = await settle(session, decision.parts)
    if released := released_tasks(decision.applied.values()):
        await session.execute("release_keys", ids=sorted(released))
    inserted = await enter(session, queue_ids, list(decision.applied.values()))
    if any(unit.exclusive and inserted.holders.keys() & {task.id for task in unit.tasks} for unit in decision.applied.values()):
        raise StoreBusy("A unique key was taken at this very moment; try again.")
    if _is_repeated(decision, inserted):
        await session.coordinate("confirm")
    queues = await write_rows(session, decision.applied, limited.keys)
    skipped = decision.skipped(snapshot.tasks)
    keys = (
        limited.keys
        | inserted.keys
        | {(row.namespace, row.limit_key) for row in skipped if row.blocked_by and row.limit_key is not None}
    )
    admitted = await admit(session, keys, inserted.limits) if keys else set()
    admitted |= {row.queue_id for row in skipped if not row.blocked_by}
    return with_admitted(_answers(decision, queue_ids, limited, inserted, queues), admitted)


def _is_repeated(decision: CommitPlan, inserted: Inserted) -> bool:
    """Whether something that an earlier commit has written is acknowledged, and not written again."""
    recognised = any(
        answer.verdict is Verdict.DONE and position not in decision.applied for position, answer in enumerate(decision.answers)
    )
    return recognised or len(inserted.ids) < len(inserted.tasks)


def _answers(
    decision: CommitPlan, queue_ids: QueueIds, limited: Limited, inserted: Inserted, queues: Mapping[int, set[int]]
) -> list[UnitAnswer]:
    """Return the answers: done, the keys that were taken, and the queues in which tasks became ready."""
    answers = list(decision.answers)
    tasks = {task.id: task for task in inserted.tasks}
    for position, unit in decision.applied.items():
        answer = _settled_answer(unit, decision.rows.get(position), limited)
        if unit.tasks:
            answer = note_inserted(answer, [tasks[task.id] for task in unit.tasks], inserted, queue_ids)
        answers[position] = with_queues(answer, queues.get(position, set()))
    return answers


def _settled_answer(unit: Unit, row: GuardedTask | None, limited: Limited) -> UnitAnswer:
    match unit.settlement:
        case Requeue(blocked_by=0, delay=None, stays=False) | Redrive(delay=None) as transition if (
            row is not None and row.id not in limited.task_ids
        ):
            polled = (
                isinstance(transition, Requeue) and transition.state == TaskState.AWAITING_EXTERNAL
            )  # a paused run does not hold it
            pauses = BlockReason.RUN_PAUSED | (0 if transition.transition == "resume" else BlockReason.TASK_PAUSED)
            return DONE if row.blocked_by & pauses and not polled else UnitAnswer(Verdict.DONE, queue_ids=(row.queue_id,))
        case Keep() | None if row is not None and isinstance(unit.guard, Claim):
            return kept_answer(row.blocked_by)
        case _:
            return DONE


async def take_snapshot(session: Session, units: Sequence[Unit]) -> Snapshot:
    """Lock and return the tasks, runs and records that guard the units, and the runs that receive messages."""
    kinds = kinds_of(units)
    receiving = receiving_runs(units) if PutMessage in kinds else set()
    wanted = {unit.run.run_id for unit in units if unit.run is not None} | receiving
    if Await in kinds:
        wanted |= {row.run_id for unit in units for row in unit.rows if isinstance(row, Await)}
    rows = await session.fetch("lock_runs", ids=sorted(wanted)) if wanted else []
    runs, ended = {row[0]: row[1] for row in rows}, {row[0] for row in rows if row[2]}
    tasks = await _lock_tasks(session, task_keys(units), receiving)
    unique: dict[Key, str] = {}
    if keys := exclusive_keys(units):
        unique = {(row[0], row[1]): row[2] for row in await session.fetch("find_unique_keys", rows=sorted(keys))}
    if PutRecord not in kinds and ChangeRecord not in kinds:
        return Snapshot(tasks, runs, ended, unique_keys=unique)
    new = new_records(units)
    record_ids = {change.record_id for change in changed_records(units)} | {record.id for record in new}
    records = {row[0]: row[1] for row in await session.fetch("lock_records", ids=sorted(record_ids))}
    return Snapshot(tasks, runs, ended, records=records, names=await find_holders(session, new), unique_keys=unique)


async def _lock_tasks(session: Session, keys: set[TaskKey], receiving: Set[str]) -> dict[TaskKey, GuardedTask]:
    """Lock the guarded tasks, and the own tasks of runs that receive messages, which may wake them."""
    tasks: dict[TaskKey, GuardedTask] = {}
    for finished, statement in ((False, "lock_tasks"), (True, "lock_finished")):
        ids = sorted(task_id for task_id, ended in keys if ended is finished)
        if receiving and not finished:
            rows = await session.fetch("lock_tasks_and_receivers", ids=ids, run_ids=sorted(receiving))
        else:
            rows = await session.fetch(statement, ids=ids) if ids else []
        tasks |= {(row[0], finished): GuardedTask(*row) for row in rows}
    return tasks


async def list_settled(session: Session, asked: Sequence[SettledClaim]) -> set[int]:
    """Return the indexes of the settlements that were committed before."""
    if not asked:
        return set()
    claims = [(a.claim.task_id, a.claim.version, a.claim.owner_id, a.actor, a.transition) for a in asked]
    return {row[0] for row in await session.fetch("list_settled", rows=claims)}


async def take_keys(session: Session, units: Sequence[Unit]) -> Deduped:
    """Let the keys identify the new tasks, or leave out tasks with keys that identify others."""
    wanted = wanted_keys(units)
    if not wanted:
        return leave_out(units, {})
    await session.execute("take_keys", rows=[(*key, task.id, task.idempotency_for) for key, task in wanted])
    holders = [row[0] for row in await session.fetch("list_holders", rows=[key for key, _ in wanted])]
    if len(holders) != len(wanted):
        raise StoreBusy("An idempotency key was pruned at this very moment; try again.")
    return leave_out(units, dict(zip((key for key, _ in wanted), holders, strict=True)))


async def settle_keys(session: Session, deduped: Deduped, asked: Sequence[Unit], answers: Sequence[UnitAnswer]) -> list[UnitAnswer]:
    """Update the keys after the commit; return the answers to the original units."""
    answered = deduped.answer(asked, answers)
    for name, keys in (("give_back", deduped.lost), ("hand_over", deduped.moved)):
        if keys:
            await session.execute(name, rows=keys)
    if deduped.orphans:
        await drop_uses(session, deduped.orphans)
    return answered


async def enter(session: Session, queue_ids: QueueIds, units: Sequence[Unit]) -> Inserted:
    """Insert the new tasks of units inside the caller's transaction, if guarded queues accept them; `admit` must follow."""
    tasks = [task for unit in units for task in unit.tasks]
    if not tasks:
        return Inserted()
    inserted = await session.insert_tasks(tasks, queue_ids)
    if not inserted.shut:
        await _order_fairly(session, inserted)
        return inserted
    guarded = await lock_guarded(session, {queue_ids[task.queue] for task in tasks})
    keyed = [with_queue_key(task, guarded.get(queue_ids[task.queue])) for task in tasks]
    inserted = await session.insert_tasks(keyed, queue_ids, checked=True)
    await _order_fairly(session, inserted)
    new = [task for unit in units if is_entrance(unit) for task in unit.tasks if task.id in inserted.ids]
    entered = [(guarded[queue_ids[task.queue]], task.queue, task.delay <= 0) for task in new if queue_ids[task.queue] in guarded]
    await check_entrance(session, entered)
    return inserted


async def _order_fairly(session: Session, inserted: Inserted) -> None:
    await order_fairly(session, [task.id for task in inserted.tasks if task.fairness_key and task.id in inserted.ids])
