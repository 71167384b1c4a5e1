"""Engines with a topology, and ways to play the roles of the goal pipeline one by one, or to wait for workers that do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.engines import make_engine
from tests.limits import BOUND

from treadle import Engine, Task
from treadle.api.objectives import Objective
from treadle.goals.reads import ObjectiveTrail
from treadle.kernel.store.units import Finish, Unit, UnitAnswer, Verdict
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask
from treadle.model.values import Json, encode

TOPOLOGY = """
name: tests
types:
  TICKET:
    handler: do
    budget: 30s
    gates: [{use: regex, name: says-ok, pattern: ok}]
"""

READINESS, SCHEDULE, RUN, GATE = "goal.readiness", "goal.schedule", "goal.run", "goal.gate"
OK = {"gates": [{"gate": "says-ok", "result": "PASS", "reason": "fine"}]}
NOT_OK = {"gates": [{"gate": "says-ok", "result": "FAIL", "reason": "it says no"}]}


def use_topology(engine: Engine, folder: Path, text: str = TOPOLOGY, roles: list[str] | None = None) -> None:
    place = folder / "topology.yaml"
    place.write_text(text)
    engine.goals.use_topology(place, roles=roles)


@asynccontextmanager
async def opened(url: str, folder: Path, text: str = TOPOLOGY) -> AsyncIterator[Engine]:
    """An open engine that plays all roles, without a worker."""
    engine = make_engine(url)
    use_topology(engine, folder, text)
    async with engine:
        yield engine
        report = await engine.kernel.verify()
        assert report.problems == ()


async def approved(engine: Engine, title: str = "Do it", **fields: Any) -> Objective:
    made = await engine.goals.objectives.add(title, actor="ada", **fields)
    return await engine.goals.objectives.approve(made.objective_id, actor="ada")


# --- one role at a time ---


async def take(engine: Engine, kind: str, owner: str | None = None, lease_for: int = 60_000) -> Task | None:
    """Claim the next task of the kind, as a worker would."""
    queues = [queue_id for queue_id, queue in (await engine.kernel.store.tasks.list_queues()).items() if queue.kind == kind]
    found = await engine.kernel.store.tasks.claim(queues, owner or engine.kernel.ids.new_id(), lease_for, 1) if queues else []
    return found[0] if found else None


async def settle(engine: Engine, task: Task, result: Json = None, error: Json = None) -> UnitAnswer:
    """Settle a claimed task as its role does, for what its handler came to."""
    if error is None:
        finish = Finish("succeed", TaskState.COMPLETED, result=encode(result or {}))
    else:
        finish = Finish("fail", TaskState.FAILED, error=encode(error), error_code=error["code"])
    return await engine.goals.settler.settle(task, task.claim, finish)


async def play(engine: Engine, kind: str, result: Json = None, error: Json = None) -> Task:
    """Claim the next task of the kind and settle it."""
    task = await take(engine, kind)
    assert task is not None, f"nothing of {kind} is ready"
    answer = await settle(engine, task, result, error)
    assert answer.verdict is Verdict.DONE
    return task


async def play_all(engine: Engine, kind: str) -> int:
    """Play all that is ready of a role that does nothing outside."""
    count = 0
    while (task := await take(engine, kind)) is not None:
        assert (await settle(engine, task)).verdict is Verdict.DONE
        count += 1
    return count


async def again(engine: Engine, task: Task) -> Task:
    """Another task about the same, as if it had never been done."""
    made = NewTask(id=engine.kernel.ids.new_id(), queue=task.queue, payload=task.payload, root_id=task.root_id)
    (answer,) = await engine.kernel.store.commit([Unit(tasks=(made,))])
    assert answer.verdict is Verdict.DONE
    found = await engine.kernel.store.tasks.find(made.id)
    assert found is not None
    return found


async def image(engine: Engine) -> list[tuple[Any, ...]]:
    """All records as they are stored, versions too: what a no-op leaves as it was."""
    from treadle.kernel.store.records import RecordFilter
    from treadle.model.states import GOAL_MACHINES

    pages = [await engine.kernel.store.records.list_matching(RecordFilter(machine.entity), 1000) for machine in GOAL_MACHINES]
    return sorted(
        (each.entity, each.id, each.state, each.version, each.transitions, each.document) for page in pages for each in page
    )


async def count(engine: Engine, entity: str) -> int:
    return sum((await engine.kernel.store.records.count("default", entity)).values())


# --- with workers ---


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND):
        while not await holds():  # noqa: ASYNC110 - it is the store that changes
            await asyncio.sleep(0.01)


async def ended(engine: Engine, *objectives: Objective) -> list[ObjectiveTrail]:
    """The objectives, once each is DONE or BLOCKED."""

    async def all_ended() -> bool:
        found = [await engine.goals.objectives.get(each.objective_id) for each in objectives]
        return all(each.status in ("DONE", "BLOCKED") for each in found)

    await until(all_ended)
    return [await engine.goals.objectives.show(each.objective_id) for each in objectives]
