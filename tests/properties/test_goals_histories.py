"""Random histories of the goal pipeline: people and roles act in any order, roles lose their claims, tasks are doubled.

After every act nothing is forgotten (D2): whatever can go on has a live task that will see to it; and in the end each objective is
DONE or BLOCKED, each workorder judged once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.goals.scene import GATE, NOT_OK, OK, READINESS, RUN, SCHEDULE, again, opened, settle, take

from treadle import Engine
from treadle.goals.records import event_id_of
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Verdict
from treadle.model.errors import IllegalTransition, InvalidInput
from treadle.model.values import decode

KINDS = (READINESS, SCHEDULE, RUN, GATE)
PEOPLE = ("add", "approve", "block", "block_on", "unblock", "edit")


class History:
    """One engine and what happens on it."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.rng = engine, random.Random(seed)
        self.ids: list[str] = []

    async def act(self) -> None:
        """One act of somebody; most acts are those of roles."""
        if self.rng.random() < 0.25 or not self.ids:
            await self.person(self.rng.choice(PEOPLE) if self.ids else "add")
        else:
            await self.role(self.rng.choice(KINDS))

    async def person(self, what: str) -> None:
        objectives, some = self.engine.goals.objectives, self.rng.choice(self.ids) if self.ids else ""
        try:
            match what:
                case "add":
                    blockers = [self.rng.choice(self.ids)] if self.ids and self.rng.random() < 0.6 else []
                    blockers += ["a reason"] if self.rng.random() < 0.1 else []
                    self.ids.append((await objectives.add("Do it", actor="ada", blocked_by=blockers)).objective_id)
                case "approve":
                    await objectives.approve(some, actor="ada")
                case "block":
                    await objectives.block(some, actor="ada", reason="wait")
                case "block_on":
                    await objectives.block(some, actor="ada", on=self.rng.choice(self.ids))
                case "unblock":
                    await objectives.unblock(some, actor="ada")
                case _:
                    await objectives.edit(some, actor="ada", urgency=self.rng.randrange(5))
        except (IllegalTransition, InvalidInput):
            pass  # not now, or a circle: nothing has changed

    async def role(self, kind: str, passing: float = 0.8) -> bool:
        """One task of the role: settled, doubled, lost, or all of that; whether there was one."""
        task = await take(self.engine, kind, lease_for=1 if (lost := self.rng.random() < 0.1) else 60_000)
        if task is None:
            return False
        if self.rng.random() < 0.1:
            await again(self.engine, task)
        result = {RUN: {"content": "ok"}, GATE: OK if self.rng.random() < passing else NOT_OK}.get(kind)
        if lost:
            while not (await self.engine.kernel.store.tasks.wake(10)).expired:
                pass
            assert (await settle(self.engine, task, result)).verdict is Verdict.CLAIM_LOST
        else:
            assert (await settle(self.engine, task, result)).verdict is Verdict.DONE
        return True

    async def check(self) -> None:
        """Every record that can advance has a live task that advances it."""
        live = await self.engine.kernel.store.tasks.list_matching(TaskFilter(states=("pending",)), 1000)
        about = {(task.kind, str(value)) for task in live for value in decode(task.payload).values()}
        objectives = {each: await self.engine.goals.objectives.get(each) for each in self.ids}
        ended = {each for each, objective in objectives.items() if objective.status == "DONE"}
        for objective_id, objective in objectives.items():
            looked_at = (READINESS, objective_id) in about
            for blocker in objective.open_blockers:
                if blocker.objective_id in ended:  # it is gone, and the objective does not know of it yet: somebody will tell
                    assert looked_at or (READINESS, blocker.objective_id) in about, objective
            if objective.executable:
                event_id = event_id_of(objective_id, objective.status_version)
                assert looked_at or (SCHEDULE, event_id) in about, objective
            if objective.status == "IN_PROGRESS":
                order_id = str(objective.work_order_id)
                assert (RUN, order_id) in about or (GATE, order_id) in about, objective

    async def finish(self) -> None:
        """Approve everything that waits for people, and run all roles until no work is left."""
        for _ in range(50):
            for each in self.ids:
                await self.engine.goals.objectives.approve(each, actor="ada")
                if any(blocker.kind == "TEXT" for blocker in (await self.engine.goals.objectives.get(each)).open_blockers):
                    await self.engine.goals.objectives.unblock(each, actor="ada")
            worked = False
            for kind in KINDS:
                while await self.role(kind, passing=1.0):
                    worked = True
                await self.check()
            if not worked:
                return
        raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("seed", range(6))
async def test_random_histories_complete_every_objective(tmp_path: Path, seed: int) -> None:
    async with opened("memory://", tmp_path) as engine:
        history = History(engine, seed)
        for _ in range(120):
            await history.act()
            await history.check()
        await history.finish()
        orders = 0
        for each in history.ids:
            trail = await engine.goals.objectives.show(each)
            assert trail.objective.status == "DONE"
            assert all(event.processed for event in trail.events)
            for order in trail.workorders:
                orders += 1
                assert (order.workorder.status, order.bundle is None, order.run_record is None) == ("EXECUTED", False, False)
                assert order.pause_state is not None
        for entity in ("workorder", "run_record", "pause_state", "output_bundle"):
            assert sum((await engine.kernel.store.records.count("default", entity)).values()) == orders
