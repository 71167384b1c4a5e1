"""The goal pipeline and real processes: whoever plays whatever role dies between any two writes, and nothing is lost or doubled.

What a role writes is one unit, so that the moments between two writes are those before and after each role's commit.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from tests.crash.scene import Child, Scene, until
from tests.limits import BOUND
from tests.sizes import sampled

from treadle import Engine
from treadle.api.objectives import Objective
from treadle.goals.reads import ObjectiveTrail
from treadle.goals.schemas import check_document
from treadle.kernel.store.records import RecordFilter
from treadle.model.errors import StoreError
from treadle.model.values import decode

KILLED = -signal.SIGKILL
ROLES = ("readiness", "scheduler", "runner", "gate")
COMMIT_POINTS = ("settle.before_commit", "settle.after_commit")
OTHER_POINTS = ("claim.after", "handler.before", "handler.after")
TOPOLOGY = """
name: crash
types:
  TICKET:
    handler: pursue
    gates: [{use: regex, pattern: ok}]
"""


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    place = tmp_path / "topology.yaml"
    place.write_text(TOPOLOGY)
    return place


async def approved(engine: Engine, title: str = "Do it", **fields: object) -> Objective:
    made = await engine.goals.objectives.add(title, actor="ada", **fields)  # type: ignore[arg-type]
    return await engine.goals.objectives.approve(made.objective_id, actor="ada")


def start_roles(scene: Scene, topology: Path, roles: tuple[str, ...], *options: object) -> Child:
    chosen = [word for role in roles for word in ("--role", role)]
    return scene.start("worker", "--topology", topology, *chosen, *options)


async def ended(scene: Scene, *objectives: Objective, bound: float = BOUND) -> list[ObjectiveTrail]:
    async def all_ended() -> bool:
        try:
            found = [await scene.engine.goals.objectives.get(each.objective_id) for each in objectives]
        except StoreError:
            return False
        return all(each.status in ("DONE", "BLOCKED") for each in found)

    await until(all_ended, *scene._children, bound=bound)
    return [await scene.engine.goals.objectives.show(each.objective_id) for each in objectives]


async def check(scene: Scene, trails: list[ObjectiveTrail]) -> None:
    """D44, and the log explains every row."""
    for trail in trails:
        assert trail.objective.status in ("DONE", "BLOCKED")
        assert all(event.processed for event in trail.events)
        assert len(trail.workorders) == len(trail.events)
        for order in trail.workorders:
            assert order.workorder.status == "EXECUTED"
            assert order.snapshot is not None
            assert order.bundle is not None
            assert order.run_record is not None
            assert order.pause_state is not None
            assert order.pause_state.terminal
    orders = sum(len(trail.workorders) for trail in trails)
    for entity in ("workorder", "context_snapshot", "output_bundle", "run_record", "pause_state"):
        found = await scene.engine.kernel.store.records.list_matching(RecordFilter(entity), 5000)
        of = Counter(decode(record.document).get("work_order_id", record.id) for record in found)
        assert (len(found), max(of.values(), default=1)) == (orders, 1), entity
    assert (await scene.engine.kernel.verify()).problems == ()


async def die_and_go_on(scene: Scene, topology: Path, role: str, point: str) -> None:
    """One dies in a role, another plays it, a third plays all other roles meanwhile: the objective is done by one workorder."""
    made = await approved(scene.engine)
    first = start_roles(scene, topology, (role,), "--crash-at", f"{point}:1")
    helper = start_roles(scene, topology, tuple(each for each in ROLES if each != role))
    await scene.died(first)
    start_roles(scene, topology, (role,))
    trails = await ended(scene, made)
    assert helper.exit_code is None
    await check(scene, trails)
    (trail,) = trails
    assert (trail.objective.status, len(trail.workorders)) == ("DONE", 1)
    # At least once: only a runner that died after its handler's end and before its commit has run it twice.
    twice = role == "runner" and point in ("handler.after", "settle.before_commit")
    assert len(scene.effects("pursue")) == 1 + twice


@pytest.mark.postgres
@pytest.mark.parametrize(("role", "point"), sampled([*product(ROLES, COMMIT_POINTS)]))
async def test_a_role_that_dies_before_or_after_its_write_is_taken_over(
    scene: Scene, topology: Path, role: str, point: str
) -> None:
    """`die_and_go_on` asserts that nothing is lost, repeated or left."""
    await die_and_go_on(scene, topology, role, point)


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("role", "point"), sampled([*product(ROLES, OTHER_POINTS)]))
async def test_a_role_that_dies_on_its_way_to_its_write_is_taken_over(scene: Scene, topology: Path, role: str, point: str) -> None:
    """No write lies between these points, so that one store shows them all."""
    await die_and_go_on(scene, topology, role, point)


@pytest.mark.parametrize(("point", "number"), sampled([*product(["operate.before_commit", "operate.after_commit"], [1, 2])]))
async def test_an_objective_resubmitted_after_a_crash_is_created_once(
    scene: Scene, topology: Path, point: str, number: int
) -> None:
    first = scene.start("asker", "--crash-at", f"{point}:{number}")
    assert await first.ended() == KILLED
    again = scene.start("asker")
    assert await again.ended() == 0
    (made,) = await scene.engine.goals.objectives.list()
    start_roles(scene, topology, ROLES)
    trails = await ended(scene, made)
    assert [transition.transition for transition in trails[0].transitions] == ["approve", "schedule", "pass"]
    await check(scene, trails)


async def pursue(scene: Scene, topology: Path, count: int, kills: int, seed: int, bound: float = BOUND) -> None:
    """Two of each role in processes of their own, killed at random while there is work."""
    rng = random.Random(seed)
    objectives = []
    for number in range(count):
        blocked_by = [objectives[-1].objective_id] if number % 10 == 9 else []
        failing = {3: 1, 6: 5}.get(number % 10, 0)  # one passes at its second try, one never does
        objectives.append(await approved(scene.engine, f"number {number}", metadata={"failing": failing}, blocked_by=blocked_by))
    places = [(role,) for role in ROLES for _ in range(2)]
    children = [start_roles(scene, topology, roles) for roles in places]
    await asyncio.gather(*(child.told("ready") for child in children))
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.05, 0.5))  # the kill hits the roles at a random moment
        for claim in await scene.engine.goals.objectives.claims():
            check_document("claim_record", claim.as_json())
        victim = rng.randrange(len(children))
        children[victim].send(signal.SIGKILL)
        await scene.died(children[victim])
        children[victim] = start_roles(scene, topology, places[victim])
    trails = await ended(scene, *objectives, bound=bound)
    await check(scene, trails)
    assert Counter(trail.objective.status for trail in trails) == {"BLOCKED": count // 10, "DONE": count - count // 10}
    assert Counter(len(trail.workorders) for trail in trails if trail.objective.metadata["failing"] == 0) == {1: count * 8 // 10}


@pytest.mark.soak
async def test_fifty_objectives_and_two_of_each_role_killed_at_random(scene: Scene, topology: Path) -> None:
    """`pursue` asserts that no objective is lost, judged twice or left."""
    await pursue(scene, topology, 50, 12, seed=20261115)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_five_hundred_objectives_and_two_of_each_role_killed_at_random(scene: Scene, topology: Path) -> None:
    """`pursue` asserts that no objective is lost, judged twice or left."""
    await pursue(scene, topology, 500, 60, seed=7, bound=1200)
