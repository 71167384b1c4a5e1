"""New tasks: many rows in one statement, and what became of those that were there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.model.errors import StoreBusy, StoreError
from treadle.model.names import Lane
from treadle.model.tasks import NewTask
from treadle.stores.postgres.connect import PACKAGE, Connection, sparse
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "insert.sql")

_TRIES = 5


@dataclass(slots=True)
class Inserted:
    """`ids` are new; `holders` names, for the id of a task whose unique key was taken, the live task that has it."""

    ids: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)


async def insert_tasks(connection: Connection, lane_ids: Mapping[Lane, int], tasks: Sequence[NewTask]) -> Inserted:
    """Insert what is not there yet; of two with one key, the first. A second live task of a step is an error."""
    inserted = Inserted()
    # Keys in one order, so that two who insert the same never wait for one another.
    wanted = sorted(tasks, key=lambda task: (task.unique_key is None, task.lane.namespace, task.unique_key or ""))
    for _ in range(_TRIES):
        inserted.ids.update([row[0] for row in await connection.fetch(_SQL["insert_tasks"], *_columns(wanted, lane_ids))])
        refused = {task.id: task for task in wanted if (task.unique_key or task.step_id) and task.id not in inserted.ids}
        wanted = await _explain(connection, refused, inserted) if refused else []
        if not wanted:
            return inserted
    raise StoreBusy(f"The unique key or step of task {wanted[0].id} changed hands {_TRIES} times while it was inserted; try again.")


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
            raise StoreError(f"The step {refused[task_id].step_id} has a live task already, {rival_id}; there can be only one.")
        else:
            free.append(refused[task_id])
    return free


def _columns(tasks: Sequence[NewTask], lane_ids: Mapping[Lane, int]) -> tuple[Sequence[object], ...]:
    return (
        [task.id for task in tasks],
        [lane_ids[task.lane] for task in tasks],
        [task.lane.namespace for task in tasks],
        [task.priority for task in tasks],
        [task.wait_for for task in tasks],
        sparse([task.deadline_for for task in tasks]),
        sparse([task.timeout_for for task in tasks]),
        sparse([task.progress_for for task in tasks]),
        sparse([task.run_id for task in tasks]),
        sparse([task.step_id for task in tasks]),
        sparse([task.flow_id for task in tasks]),
        sparse([task.scope for task in tasks]),
        sparse([task.root_id for task in tasks]),
        sparse([task.trace_id for task in tasks]),
        sparse([task.limit_key for task in tasks]),
        sparse([task.unique_key for task in tasks]),
        sparse([task.policy for task in tasks]),
        [task.payload for task in tasks],
        [task.hold for task in tasks],
    )
