"""The parts of the simulation: virtual time, processes that die instantly, clocks that differ, calls that interleave."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.simulation.faults import Fault, RandomFaults

from treadle.model.errors import StoreUnavailable
from treadle.model.names import HANDLER, QueueKey
from treadle.testing.simulation import Process, Simulation, VirtualLoop
from treadle.testing.simulation.simulation import NothingToDo


def test_hours_pass_immediately_and_timers_fire_in_order() -> None:
    loop, told = VirtualLoop(), []

    async def tell(after: float) -> None:
        await asyncio.sleep(after)
        told.append(loop.time())

    async def all_of_them() -> None:
        await asyncio.gather(tell(7200), tell(0.5), tell(3600))

    loop.run_until_complete(all_of_them())
    loop.close()
    assert told == [0.5, 3600, 7200]


@pytest.mark.parametrize("hook", ["_selector", "_process_events", "_write_to_self"])
def test_the_virtual_loop_uses_hooks_that_this_python_calls(hook: str) -> None:
    """They are not public: a Python that has renamed one is found here by its name, and not by simulations that hang."""
    used = {
        name for each in vars(asyncio.BaseEventLoop).values() if (code := getattr(each, "__code__", None)) for name in code.co_names
    }
    assert hook in used, (
        f"asyncio.BaseEventLoop of this Python does not use {hook}; treadle.testing.simulation.simulation needs another way"
    )


@pytest.mark.parametrize("after", [0.1, 0.3, 1 / 3, 86_399.999, 1e7 + 0.1])
def test_a_timer_fires_at_its_time_despite_float_rounding(after: float) -> None:
    loop, fired = VirtualLoop(), []

    async def run() -> None:
        await asyncio.sleep(0.7)
        due_at = loop.time() + after
        await asyncio.sleep(after)
        fired.append(abs(loop.time() - due_at))

    loop.run_until_complete(run())
    loop.close()
    assert len(fired) == 1
    assert fired[0] <= 1e-6


def test_waiting_for_an_event_that_cannot_happen_raises() -> None:
    loop = VirtualLoop()

    async def wait() -> None:
        await asyncio.Event().wait()

    waiting = loop.create_task(wait())
    with pytest.raises(NothingToDo):
        loop.run_until_complete(waiting)
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    loop.close()


def test_actions_of_a_crashed_process_have_no_effect() -> None:
    async def story(simulation: Simulation) -> int:
        process, outlived = simulation.start_process("server"), []
        engine = simulation.engine(process)

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                await engine.enqueue("late", {})
                outlived.append("it was heard")

        process.spawn(work())
        await asyncio.sleep(1)
        process.crash("is killed")
        await process.gone.wait()
        assert outlived == []
        return len(await simulation.store.tasks.list_depths())

    assert Simulation(1).run(story) == 0


def test_a_crash_ends_only_the_tasks_of_its_own_process() -> None:
    async def story(simulation: Simulation) -> list[str]:
        done: list[str] = []

        async def twig(name: str) -> None:
            await asyncio.sleep(5)
            done.append(name)

        async def branch(name: str) -> None:
            asyncio.get_running_loop().create_task(twig(name))

        processes = [simulation.start_process(name) for name in ("ann", "bob")]
        for process in processes:
            process.spawn(branch(process.name))
        await asyncio.sleep(1)
        processes[0].crash("is killed")
        await asyncio.sleep(10)
        return done

    assert Simulation(1).run(story) == ["bob"]


def test_a_suspended_process_sends_no_statement_until_it_continues() -> None:
    async def story(simulation: Simulation) -> tuple[float, float]:
        process = simulation.start_process("client")
        engine = simulation.engine(process)
        process.stall(20)
        await engine.enqueue("work", {})
        (task,) = await engine.kernel.reads.list_tasks(kind="handler")
        return task.created_at / 1000 - process.clock.now() / 1000 + simulation.loop.time(), simulation.loop.time()

    stored, heard = Simulation(1).run(story)
    assert 20 <= stored <= heard <= 20.1


def test_an_answer_that_is_lost_is_that_of_something_done() -> None:
    def losing(rng: random.Random, lease: float) -> RandomFaults:
        return RandomFaults(rng, lease, {Fault.LOST_ANSWER: 1.0})

    async def story(simulation: Simulation) -> int:
        engine = simulation.engine(simulation.start_process("client"))
        with pytest.raises(StoreUnavailable):
            await engine.kernel.store.tasks.queue_ids([QueueKey("default", HANDLER, "default", "work")])
        return len(await simulation.store.tasks.list_queues())

    assert Simulation(1, faults=losing).run(story) == 1


def test_leases_follow_the_clock_of_the_calling_process() -> None:
    async def story(simulation: Simulation) -> list[int]:
        clocks = []
        for offset in (-2000, 3000):
            process: Process = simulation.start_process("server")
            process.clock.offset = offset
            clocks.append(await simulation.engine(process).kernel.store.now())
        return clocks

    early, late = Simulation(1).run(story)
    assert 5000 <= late - early <= 5010


def test_a_seed_determines_the_history() -> None:
    def played(seed: int) -> str:
        simulation = Simulation(seed)

        async def story(simulation: Simulation) -> None:
            async def fill(process: Process) -> None:
                engine = simulation.engine(process)
                for number in range(20):
                    await engine.enqueue("work", {"n": number})

            for name in ("ann", "bob"):
                process = simulation.start_process(name)
                process.spawn(fill(process))
            await asyncio.sleep(60)

        simulation.run(story)
        return simulation.trace.digest

    assert played(5) == played(5)
    assert played(5) != played(6)
