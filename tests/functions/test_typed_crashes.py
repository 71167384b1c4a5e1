"""Every supported type arrives after abandoned claims in handlers, steps and functions; wrong values are refused with a path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engines import url_of
from tests.functions.driver import LIVE, Process, Scene, function_scene, until
from tests.limits import BOUND
from tests.properties.test_conversion import TYPES, WRONG
from tests.sizes import POSTGRES

from treadle import Engine
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import InvalidPayload, RunFailed, TreadleError
from treadle.model.names import FUNCTION, HANDLER
from treadle.model.outcomes import Failed, Succeeded
from treadle.model.tasks import Task
from treadle.workers.call import call
from treadle.workers.context import Context

KNOWN = [(annotation, value, path) for annotation, value, path in WRONG if annotation is not object]


class Program:
    """A task and a function for one type: both return their argument, or what `replace` holds."""

    def __init__(self, engine: Engine, number: object, annotation: Any) -> None:
        self.replace: dict[str, Any] = {}
        self.seen: list[Any] = []

        async def task(value: Any) -> Any:
            self.seen.append(value)
            return self.replace.get("task", value)

        async def step(value: Any) -> Any:
            return self.replace.get("step", value)

        task.__annotations__ = step.__annotations__ = {"value": annotation, "return": annotation}
        self.task: Any = engine.task(f"task{number}")(task)

        async def flow(value: Any, ctx: Any) -> Any:
            made = await ctx.step(step, value)
            self.seen += [value, made, await ctx.call(self.task, made)]
            return self.replace.get("flow", self.seen[-1])

        flow.__annotations__ = {"value": annotation, "return": annotation}
        self.flow: Any = engine.function(f"flow{number}")(flow)


async def crash(scene: Scene, *kinds: str) -> None:
    """A process claims everything and is never heard of again."""
    store = scene.engine.kernel.store
    queues = [queue_id for queue_id, queue in (await store.tasks.list_queues()).items() if queue.kind in kinds]
    assert await store.tasks.claim(queues, "lost", 1, 1000)
    scene.clock.advance(1)

    async def taken_over() -> bool:
        await store.tasks.wake(10_000)
        return not any(task.owner_id for task in await store.tasks.list_matching(TaskFilter(states=LIVE), 1000))

    await until(taken_over)


async def settle(process: Process, task: Task) -> None:
    handler = process.engine.kernel.registry.find(task.name)
    assert handler is not None
    outcome = await call(handler, Context(task, process.engine.kernel.clock.now, lambda _: None), process.executor)
    assert isinstance(outcome, Succeeded), outcome
    await process.settle(task, outcome.result)


async def round_trip(url: str, values: tuple[Any, ...]) -> None:
    async with function_scene(url) as scene:
        engine = scene.engine
        programs = [Program(engine, number, annotation) for number, (annotation, _) in enumerate(TYPES)]
        tasks = [await engine.enqueue(each.task, value) for each, value in zip(programs, values, strict=True)]
        runs = [await engine.start(each.flow, value) for each, value in zip(programs, values, strict=True)]
        await crash(scene, FUNCTION, HANDLER)
        first = scene.process()
        await first.turn()  # steps are recorded, tasks are enqueued
        first.die()
        await crash(scene, HANDLER)
        second = scene.process()
        for task in await second.claim(HANDLER):
            await settle(second, task)
        second.die()
        await scene.process().quiet()
        for each, value, enqueued, run in zip(programs, values, tasks, runs, strict=True):
            results = [await enqueued.result(timeout=BOUND), await run.result(timeout=BOUND)]
            assert len(each.seen) == 5, "by the task twice, by the function three times"
            for one in [*each.seen, *results]:
                assert one == value
                assert type(one) is type(value)


@pytest.mark.postgres
@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(values=st.tuples(*(strategy for _, strategy in TYPES)))
@pytest.mark.parametrize("kind", ["memory", POSTGRES])
def test_every_type_arrives_after_abandoned_claims(
    kind: str, values: tuple[Any, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """No value arrives with another type or content."""
    asyncio.run(round_trip(url_of(kind, request, tmp_path), values))


async def test_every_wrong_value_is_refused_with_its_path_wherever_it_appears() -> None:
    async with function_scene() as scene:
        engine, process = scene.engine, scene.process()
        for number, (annotation, wrong, path) in enumerate(KNOWN):
            program = Program(engine, number, annotation)
            for start, reference in ((engine.enqueue, program.task), (engine.start, program.flow)):
                with pytest.raises(TreadleError) as refused:
                    await start(reference, wrong)
                assert isinstance(refused.value, InvalidPayload)
                assert f"$.value{path[1:]}" in str(refused.value) or f" {path}: " in str(refused.value)
        assert await engine.kernel.reads.list_tasks(kind="handler") == []
        for place in ("step", "flow", "task"):
            await refused_as_result(scene, process, place)


async def refused_as_result(scene: Scene, process: Process, place: str) -> None:
    """Check what code returns: the failure names the field."""
    engine = scene.engine
    programs = []
    for number, (annotation, strategy) in enumerate(TYPES):
        cases = [(wrong, path) for known, wrong, path in KNOWN if known is annotation or known == annotation]
        for at, (wrong, path) in enumerate(cases):
            program = Program(engine, f"{place}{number}_{at}", annotation)
            program.replace[place] = wrong
            programs.append((program, strategy, path))
    assert len(programs) > 15
    for program, strategy, path in programs:
        value = _example(strategy)
        if place == "task":
            await engine.enqueue(program.task, value)
            [task] = await process.claim(HANDLER)
            handler = engine.kernel.registry.find(task.name)
            assert handler is not None
            outcome = await call(handler, Context(task, engine.kernel.clock.now, lambda _: None), process.executor)
            assert isinstance(outcome, Failed)
            assert outcome.problem.code == "invalid_result"
            assert path in outcome.problem.message
            await process.fail(task)
        else:
            run = await engine.start(program.flow, value)
            await process.turn()
            for task in await process.claim(HANDLER):
                await settle(process, task)
            await process.quiet()
            with pytest.raises(RunFailed) as failed:
                await run.result(timeout=BOUND)
            assert path in str(failed.value)


def _example(strategy: st.SearchStrategy[Any]) -> Any:
    found: list[Any] = []

    @settings(max_examples=1, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found[0]
