"""New tasks: many rows in one statement, and what became of those that were there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from treadle.kernel.store.units import Unit
from treadle.model.errors import InvalidInput, StoreBusy
from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.postgres.connect import PACKAGE, Connection, plain, sparse, words
from treadle.stores.postgres.limits import Key
from treadle.stores.postgres.lists import Guarded, check_entrance, lock_guarded
from treadle.stores.preclaimed import Birth
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "insert.sql")

_TRIES = 5


@dataclass(slots=True)
class Inserted:
    """`ids` are new; `holders` names, for the id of a task whose unique key was taken, the live task that has it."""

    ids: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    """The limit keys of new tasks, by id: these wait to be admitted."""
    limits: dict[Key, int] = field(default_factory=dict)
    """What was said about the limits of these keys."""
    shut: bool = False
    """Nothing was inserted, as one of the lanes is guarded: it has to be looked at first."""


async def enter(connection: Connection, lane_ids: Mapping[Lane, int], units: Sequence[Unit]) -> Inserted:
    """Insert the new tasks of units inside a transaction of the caller's, as guarded lanes say; `admit` has to follow."""
    tasks = [task for unit in units for task in unit.tasks]
    if not tasks:
        return Inserted()
    inserted = await insert_tasks(connection, lane_ids, tasks)
    if not inserted.shut:
        return inserted
    guarded = await lock_guarded(connection, {lane_ids[task.lane] for task in tasks})
    keyed = [_with_key(task, guarded.get(lane_ids[task.lane])) for task in tasks]
    inserted = await insert_tasks(connection, lane_ids, keyed, looked=True)
    new = [task for unit in units if unit.guard is None and unit.run is None for task in unit.tasks if task.id in inserted.ids]
    entered = [(guarded[lane_ids[task.lane]], task.lane, task.delay <= 0) for task in new if lane_ids[task.lane] in guarded]
    await check_entrance(connection, entered)
    return inserted


async def claim_born(connection: Connection, births: Sequence[Birth]) -> None:
    """Let tasks that were inserted by this transaction be held by those who made them."""
    task_ids, owner_ids, leases = zip(*births, strict=True) if births else ((), (), ())
    await connection.execute(_SQL["claim_born"], task_ids, owner_ids, leases)


def _with_key(task: NewTask, lane: Guarded | None) -> NewTask:
    """The task with its lane's limit key, if it has none."""
    if lane is None or lane.limit_key is None or task.limit_key is not None:
        return task
    return msgspec.structs.replace(task, limit_key=lane.limit_key)


async def insert_tasks(
    connection: Connection, lane_ids: Mapping[Lane, int], tasks: Sequence[NewTask], *, looked: bool = False
) -> Inserted:
    """Insert what is not there yet; of two with one key, the first. A second live task of a step is an error.

    Unless guarded lanes have been `looked` at, nothing is inserted if there is one. Tasks with a limit key wait to be admitted.
    """
    inserted = Inserted()
    look_at = [] if looked else list({lane_ids[task.lane] for task in tasks})
    # Keys in one order, so that two who insert the same never wait for one another.
    wanted = sorted(tasks, key=lambda task: (task.unique_key is None, task.lane.namespace, task.unique_key or ""))
    for _ in range(_TRIES):
        rows = await connection.fetch(_SQL["insert_tasks"], *_columns(wanted, lane_ids), look_at)
        inserted.ids.update([row[0] for row in rows])
        if None in inserted.ids:
            return Inserted(shut=True)
        refused = {task.id: task for task in wanted if (task.unique_key or task.step_id) and task.id not in inserted.ids}
        wanted = await _explain(connection, refused, inserted) if refused else []
        if not wanted:
            _note_keys(tasks, inserted)
            return inserted
    raise StoreBusy(f"The unique key or step of task {wanted[0].id} changed hands {_TRIES} times while it was inserted; try again.")


def _note_keys(tasks: Sequence[NewTask], inserted: Inserted) -> None:
    for task in tasks:
        if task.limit_key is not None and task.id in inserted.ids:
            key = (task.lane.namespace, task.limit_key)
            inserted.keys[task.id] = key
            if task.limit is not None:
                inserted.limits[key] = task.limit


async def _explain(connection: Connection, refused: Mapping[str, NewTask], inserted: Inserted) -> list[NewTask]:
    """Note who has the keys of the refused tasks; returns those that nobody stands in the way of any more."""
    rows = await connection.fetch(
        _SQL["explain_refusals"],
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


def _columns(tasks: Sequence[NewTask], lane_ids: Mapping[Lane, int]) -> tuple[str | Sequence[object], ...]:
    return (
        plain([task.id for task in tasks]),
        plain([lane_ids[task.lane] for task in tasks]),
        words([task.lane.namespace for task in tasks]),
        plain([task.priority for task in tasks]),
        plain([task.delay for task in tasks]),
        sparse([task.deadline_for for task in tasks]),
        sparse([task.timeout_for for task in tasks]),
        sparse([task.progress_for for task in tasks]),
        words([task.run_id for task in tasks]),
        words([task.step_id for task in tasks]),
        words([task.flow_id for task in tasks]),
        words([task.scope for task in tasks]),
        words([task.root_id for task in tasks]),
        words([task.trace_id for task in tasks]),
        words([task.limit_key for task in tasks]),
        words([task.unique_key for task in tasks]),
        sparse([task.policy for task in tasks]),
        [task.payload for task in tasks],
        plain([task.hold | (task.limit_key is not None) for task in tasks]),
    )
