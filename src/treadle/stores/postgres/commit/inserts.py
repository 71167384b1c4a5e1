"""New tasks: one statement for all tasks of a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.kernel.store.units import Unit
from treadle.model.errors import InvalidInput, StoreBusy
from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.postgres.connection.connect import Connection, plain, sparse, words
from treadle.stores.postgres.lanes import check_entrance, lock_guarded
from treadle.stores.postgres.limits import Key
from treadle.stores.postgres.turns import take_turns
from treadle.stores.rules.inserts import Preclaim, is_entrance, values_of, with_lane_key
from treadle.stores.statements import COLUMN_SETS, LONG, load_statements

_SQL = load_statements(__package__, "inserts.sql")

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
        await connection.execute(_SQL["preclaim"], *zip(*preclaims, strict=True))


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
            rows = await connection.fetch(_SQL["insert_task"], *values_of(wanted[0], lane_ids[wanted[0].lane]), to_check)
        else:
            rows = await connection.fetch(_SQL["insert_tasks"], *_columns(wanted, lane_ids), to_check)
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
