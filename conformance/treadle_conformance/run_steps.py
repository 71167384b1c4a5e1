"""Common steps of the tests of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, PutRun, PutSteps, Row, RunGuard, RunTransition, Unit, UnitAnswer
from treadle.model.ids import derived_id
from treadle.model.runs import Run, Step
from treadle.model.tasks import Claim, NewTask, Task
from treadle_conformance.task_steps import WORK, claim, ids, new_task


def new_run(**fields: Any) -> Run:
    run_id = ids.new_id()
    return Run(**{"id": run_id, "flow_id": "f" * 64, "workflow": "shop.Checkout", "root_id": run_id, "trace_id": run_id} | fields)


def new_step(run: Run, place: str, **fields: Any) -> Step:
    parent, _, name = place.rpartition("/")
    values: dict[str, Any] = {
        "id": derived_id(run.id, place),
        "run_id": run.id,
        "parent_id": derived_id(run.id, parent) if parent else None,
        "ordinal": 0,
        "kind": "item" if name.startswith("foreach-") else "block" if name.startswith("block-") else "step",
        "name": name,
        "facet": None,
        "state": "state.EventTransmit",
        "document": f'{{"place":"{place}"}}',
    }
    return Step(**values | fields)


def step_task(step: Step, **fields: Any) -> NewTask:
    return new_task(**{"run_id": step.run_id, "step_id": step.id, "root_id": step.run_id} | fields)


async def begin(store: Store, *places: str, tasks: Sequence[str] = (), **fields: Any) -> Run:
    """A running run with those steps, and a task for each of `tasks` among them."""
    run = new_run(**fields)
    steps = tuple(new_step(run, place) for place in places)
    rows = (PutRun(run), RunTransition(run.id, "start", "pending", "running"), PutSteps(run.id, steps, len(steps)))
    made = tuple(step_task(step) for place, step in zip(places, steps, strict=True) if place in tasks)
    (answer,) = await store.commit([Unit(tasks=made, rows=rows)])
    assert answer.verdict == "done"
    return await get_run(store, run.id)


async def get_run(store: Store, run_id: str) -> Run:
    run = await store.runs.find(run_id)
    assert run is not None
    return run


async def live_of(store: Store, run: Run) -> list[Task]:
    states = ("pending", "running", "paused", "awaiting_external", "awaiting_approval")
    return await store.tasks.list_matching(TaskFilter(states=states, run_id=run.id), 1000)


async def claim_steps(store: Store) -> dict[str, Task]:
    """Take everything; by step."""
    return {task.step_id or "": task for task in await claim(store, WORK)}


async def advance(
    store: Store,
    run: Run,
    *ends: tuple[Claim, Finish],
    version: int | None = None,
    tasks: tuple[NewTask, ...] = (),
    rows: tuple[Row, ...] = (),
) -> UnitAnswer:
    (answer,) = await store.commit([unit_of(run, *ends, version=version, tasks=tasks, rows=rows)])
    return answer


def unit_of(
    run: Run,
    *ends: tuple[Claim, Finish],
    version: int | None = None,
    tasks: tuple[NewTask, ...] = (),
    rows: tuple[Row, ...] = (),
) -> Unit:
    first = ends[0] if ends else (None, None)
    return Unit(first[0], first[1], tasks, ends[1:], RunGuard(run.id, run.version if version is None else version), rows)


async def all_of(store: Store, run: Run) -> list[Any]:
    """Return all that the store has about a run, to show that a commit changed nothing."""
    return [
        await store.runs.find(run.id),
        await store.runs.list_steps(run.id, None, 1000),
        await store.tasks.list_matching(TaskFilter(run_id=run.id), 1000),
        await store.log.list_transitions(run.id),
        await store.log.list_histories(None, 1000),
    ]
