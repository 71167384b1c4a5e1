"""Steps of runs: those in progress are visible, times are those of the work, and states follow the state machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engines import make_engine
from tests.functions.driver import LEASE_FOR, Process, Scene, function_scene, until
from tests.limits import BOUND

from treadle import RetryPolicy
from treadle.api.steps import Step
from treadle.engine.operations import Operations
from treadle.kernel.runs.display import RunWork, worked_for
from treadle.kernel.store.queries import StepTask
from treadle.model.access import OPEN
from treadle.model.errors import RunFailed
from treadle.model.runs import Run
from treadle.model.states import STEP, BlockReason, RunState, StepState
from treadle.model.tasks import Task
from treadle.workers.context import Context

SECOND = 1000


async def steps_of(scene: Scene, run_id: str, **which: Any) -> dict[str, Step]:
    page = await Operations(scene.engine, OPEN).steps.list(run_id, **which)
    return {step.path: step for step in page.steps}


class Holding:
    """An attempt at a function whose lease a renewer would renew."""

    def __init__(self, scene: Scene, process: Process) -> None:
        self._scene, self._process = scene, process
        self.context: Context | None = None
        self.running: asyncio.Task[Any] | None = None

    async def start(self) -> Task:
        (task,) = await self._process.claim("function")
        self.context = Context(task, self._scene.clock.now, lambda _: None)
        self.running = asyncio.ensure_future(self._process.runner.execute(task, self.context, lambda _: None))
        return task

    async def tick(self) -> None:
        """Renew the lease, as the renewer's thread does every second."""
        from treadle.kernel.store.queries import Renewal

        context = self.context
        assert context is not None
        assert context.before_renewal is not None
        context.before_renewal()
        renewal = Renewal(context.token, context.progressed, context.progress_text if context.progressed else None)
        context.progressed = False
        await self._scene.engine.kernel.store.tasks.extend([renewal], LEASE_FOR)


async def test_a_step_in_progress_is_shown_with_its_start_worker_and_attempt_also_within_a_gather() -> None:
    async with function_scene() as scene:
        gates = {name: asyncio.Event() for name in ("short", "long")}
        begun = {name: asyncio.Event() for name in gates}

        async def work(name: str) -> str:
            begun[name].set()
            await gates[name].wait()
            return name

        @scene.engine.function("works")
        async def works(payload: Any, ctx: Any) -> Any:
            ctx.progress(0.5, "half")
            return await ctx.gather(*(ctx.step(work, name, name=name) for name in gates))

        run = await scene.engine.start_function("works")
        process = scene.process()
        holding = Holding(scene, process)
        task = await holding.start()
        await asyncio.gather(*(event.wait() for event in begun.values()))
        began_at = scene.clock.now()
        await holding.tick()
        assert await steps_of(scene, run.id) == {}  # too short to be worth a write
        scene.clock.advance(25)
        await holding.tick()
        for order in ("program", "stored"):
            shown = await steps_of(scene, run.id, order=order)
            assert sorted(shown) == ["0[0].short", "0[1].long"]
            for step in shown.values():
                assert (step.state, step.began_at.ms, step.ended_at, step.took_for) == ("running", began_at, None, None)
                assert (step.worker, step.attempt, step.facet) == (process.owner_id, 1, "step")
        one = await Operations(scene.engine, OPEN).steps.get(run.id, "0[1].long")
        assert (one.id, one.state) == (shown["0[1].long"].id, "running")
        assert (await Operations(scene.engine, OPEN).tasks.get(task.id)).progress == {"fraction": 0.5, "message": "half"}
        in_steps = ", in the steps short for 25 s, long for 25 s, half"
        assert in_steps in (await scene.engine.kernel.run_reads.why(run.id)).text
        assert in_steps in (await scene.engine.why(task.id)).text
        gates["short"].set()
        await until(lambda: _recorded(scene, run.id, 1))
        scene.clock.advance(5)
        await holding.tick()
        shown = await steps_of(scene, run.id)
        assert (shown["0[0].short"].state, shown["0[0].short"].took_for) == ("completed", 25 * SECOND)
        assert shown["0[1].long"].state == "running"
        gates["long"].set()
        assert holding.running is not None
        await holding.running
        shown = await steps_of(scene, run.id)
        assert {path: step.took_for for path, step in shown.items()} == {"0[0].short": 25 * SECOND, "0[1].long": 30 * SECOND}
        assert {step.began_at.ms for step in shown.values()} == {began_at}


async def _recorded(scene: Scene, run_id: str, count: int) -> bool:
    return len(await scene.engine.kernel.functions.recorded(run_id)) == count


async def test_progress_of_a_lost_claim_is_not_shown() -> None:
    async with function_scene() as scene:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        @scene.engine.function("works")
        async def works(payload: Any, ctx: Any) -> Any:
            await ctx.step(work)

        run = await scene.engine.start_function("works")
        holding = Holding(scene, scene.process())
        await holding.start()
        await begun.wait()
        scene.clock.advance(2)
        await holding.tick()
        assert list(await steps_of(scene, run.id)) == ["work"]
        assert ", in the step work for 2 s" in (await scene.engine.kernel.run_reads.why(run.id)).text
        scene.clock.advance(LEASE_FOR / 1000)
        await scene.engine.kernel.store.tasks.wake(10)
        assert await steps_of(scene, run.id) == {}
        await scene.process().claim("function")
        assert await steps_of(scene, run.id) == {}
        assert holding.running is not None
        holding.running.cancel()
        await asyncio.gather(holding.running, return_exceptions=True)


async def test_a_call_in_a_gather_took_as_long_as_its_own_work() -> None:
    async with function_scene() as scene:

        @scene.engine.function("calls")
        async def calls(payload: Any, ctx: Any) -> Any:
            return await ctx.gather(ctx.call("fast", {}), ctx.call("slow", {}), ctx.sleep(2))

        run = await scene.engine.start_function("calls")
        process = scene.process()
        await process.turn()
        tasks = {task.name: task for task in await process.claim("handler")}
        scene.clock.advance(0.5)
        await process.settle(tasks["fast"])
        scene.clock.advance(3.5)
        await process.settle(tasks["slow"])
        scene.clock.advance(60)
        await process.quiet()
        took = {path: step.took_for for path, step in (await steps_of(scene, run.id)).items()}
        assert took == {"0[0].fast": 500, "0[1].slow": 4 * SECOND, "0[2].sleep": 2 * SECOND}


async def test_a_function_step_is_pending_during_backoff_paused_with_its_run_and_canceled_with_it() -> None:
    async with function_scene() as scene:

        async def broken() -> None:
            raise ValueError("it broke")

        @scene.engine.function("retries")
        async def retries(payload: Any, ctx: Any) -> Any:
            await ctx.gather(ctx.step(broken, retry=RetryPolicy(retries=3)), ctx.wait_for("go"), ctx.call("nobody", {}))

        run = await scene.engine.start_function("retries")
        await scene.process().quiet()

        async def states() -> list[str]:
            return [step.state for _, step in sorted((await steps_of(scene, run.id)).items())]

        assert await states() == ["pending", "running", "pending"]
        assert sorted(await steps_of(scene, run.id, state=["pending"])) == ["0[0].broken", "0[2].nobody"]
        await scene.engine.runs.pause(run.id)
        assert await states() == ["paused"] * 3
        await scene.engine.runs.resume(run.id)
        assert await states() == ["pending", "running", "pending"]
        await scene.engine.runs.cancel(run.id)
        assert await states() == ["canceled"] * 3
        assert list(await steps_of(scene, run.id, state=["running", "pending", "paused"])) == []


FLOW = """
namespace shop {
    event facet Pay(order: Long) => (receipt: String)
    workflow Checkout(order: Long) => (receipt: String) andThen {
        pay = Pay(order = $.order)
        yield Checkout(receipt = pay.receipt)
    }
}
"""


async def test_took_counts_the_work_of_a_workflow_not_the_days_before_a_retry() -> None:
    async with function_scene() as scene:
        run = await scene.engine.start_run([("shop.afl", FLOW)], "shop.Checkout", {"order": 1})
        process = scene.process()
        pay, root = "Checkout.pay", "Checkout"
        assert (await steps_of(scene, run.id, blocks=False))[pay].state == "pending"
        scene.clock.advance(7)
        (task,) = await process.claim("handler")
        running = (await steps_of(scene, run.id, blocks=False))[pay]
        assert (running.state, running.worker, running.attempt) == ("running", process.owner_id, 1)
        assert running.began_at.ms == scene.clock.now()
        scene.clock.advance(2)
        await process.fail(task)
        assert (await steps_of(scene, run.id, blocks=False))[pay].took_for == 2 * SECOND
        scene.clock.advance(3 * 24 * 3600)
        await scene.engine.runs.retry(run.id)
        (task,) = await process.claim("handler")
        scene.clock.advance(1)
        await process.settle(task, {"receipt": "r"})
        steps = await steps_of(scene, run.id, blocks=False)
        assert (steps[pay].took_for, steps[root].took_for) == (1 * SECOND, 10 * SECOND)
        assert (await Operations(scene.engine, OPEN).runs.get(run.id)).took_for == 10 * SECOND


MANY = """
namespace shop {
    event facet Pay(order: Long) => (receipt: String)
    workflow Checkout(orders: [Long]) andThen foreach order in $.orders {
        pay = Pay(order = $.order)
    }
}
"""


async def test_a_page_of_steps_loads_the_tasks_of_its_own_steps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with function_scene() as scene:
        run = await scene.engine.start_run([("shop.afl", MANY)], "shop.Checkout", {"orders": list(range(20))})
        store: Any = scene.engine.kernel.store
        asked: list[int] = []

        async def list_step_tasks(step_ids: Any) -> Any:
            asked.append(len(step_ids))
            return await inner(step_ids)

        inner = store.runs.list_step_tasks
        monkeypatch.setattr(store.runs, "list_step_tasks", list_step_tasks, raising=False)
        monkeypatch.setattr(store.tasks, "list_matching", None)
        claimed = {task.step_id for task in await scene.process().claim("handler", limit=3)}
        steps, found = Operations(scene.engine, OPEN).steps, []
        page = await steps.list(run.id, order="stored", limit=5)
        found += page.steps
        while page.next_after is not None:
            page = await steps.list(run.id, order="stored", limit=5, after=page.next_after)
            found += page.steps
        assert {step.id for step in found if step.worker} == claimed
        assert max(asked) <= 5
        asked.clear()
        assert (await steps.get(run.id, found[-1].id)).id == found[-1].id
        assert asked == [1]
        graph = await scene.engine.kernel.run_services.reads.count_by_statement(await store.runs.find(run.id))
        assert {"pending": 17, "running": 3} in [node.states for node in graph.values()]
        assert len((await steps.timeline(run.id)).steps) >= 20


def test_the_time_between_an_end_and_its_retry_is_not_counted_as_work() -> None:
    gaps = ((10, 20), (30, 35))
    spans = [(0, 10), (0, 40), (15, 32), (12, 18), (20, 30), (36, 50)]
    assert [worked_for(began, ended, gaps) for began, ended in spans] == [10, 25, 10, 0, 10, 14]


RUN = {"id": "r", "flow_id": "f", "workflow": "w", "root_id": "r"}


def step_task(state: str = "pending", blocked_by: int = 0, owner_id: str | None = None) -> StepTask:
    return StepTask("s", state, blocked_by, owner_id, claimed_at=None, attempt=1)


TASKS: dict[str, StepTask | None] = {
    "none": None,
    "waiting": step_task(),
    "claimed": step_task(owner_id="server"),
    "asked": step_task("awaiting_approval"),
    "paused": step_task(blocked_by=BlockReason.TASK_PAUSED),
    "over its limit": step_task(blocked_by=BlockReason.OVER_LIMIT),
}


@pytest.mark.parametrize(
    ("run_state", "status", "task", "shown"),
    [
        ("running", "running", "none", "running"),
        ("running", "running", "waiting", "pending"),
        ("running", "pending", "none", "pending"),
        ("running", "running", "claimed", "running"),
        ("running", "running", "asked", "running"),
        ("running", "running", "paused", "paused"),
        ("running", "running", "over its limit", "pending"),
        ("paused", "running", "none", "paused"),
        ("paused", "running", "waiting", "paused"),
        ("paused", "pending", "none", "paused"),
        ("paused", "running", "claimed", "running"),
        ("canceled", "running", "none", "canceled"),
        ("canceled", "pending", "none", "canceled"),
        ("failed", "running", "none", "canceled"),
        ("completed", "running", "none", "canceled"),
        *((run, end, "none", end) for run in RunState for end in ("completed", "failed")),
    ],
)
def test_the_state_of_a_step_follows_from_its_run_and_task(run_state: str, status: str, task: str, shown: str) -> None:
    tasks = [each] if (each := TASKS[task]) is not None else []
    work = RunWork.of(Run(**RUN, state=run_state), None, ()).at(tasks)  # type: ignore[arg-type]
    assert work.state_of("s", StepState(status)) == shown


def test_all_states_of_steps_are_in_the_state_machine() -> None:
    assert set(STEP.states) == {str(state) for state in StepState}


async def test_a_failed_run_shows_its_open_steps_as_canceled() -> None:
    async with make_engine("memory://") as engine:

        async def broken() -> None:
            raise ValueError("it broke")

        @engine.function("fails")
        async def fails(payload: Any, ctx: Any) -> Any:
            await ctx.step(broken)

        async with engine.worker():
            run = await engine.start_function("fails")
            with pytest.raises(RunFailed):
                await engine.run_result(run, timeout=BOUND)
        (step,) = (await Operations(engine, OPEN).steps.list(run.id)).steps
        assert (step.state, step.took_for is not None) == ("failed", True)
