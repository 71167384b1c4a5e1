"""Problems that an operator must know of: each planted fault is named everywhere with its remedy, and gone with its cause."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.docs.test_named_commands import check_command
from tests.engines import url_of
from tests.functions.driver import Scene, function_scene
from tests.mcp.transports import in_request_context
from tests.web.conftest import visiting

from treadle import EffectUnknown
from treadle.api.system import StatusProblem
from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope

Cure = Callable[[], Awaitable[Any]]


async def nobody_serves_it(scene: Scene, folder: Path) -> Cure:
    task = await scene.engine.enqueue("fax", {})
    return lambda: scene.engine.cancel(task.id)


async def list_with_work_is_paused(scene: Scene, folder: Path) -> Cure:
    await scene.engine.enqueue("fax", {}, task_list="slow", delay=3600)
    await scene.engine.kernel.lists.pause("slow")
    return lambda: scene.engine.kernel.lists.resume("slow")


async def list_is_draining(scene: Scene, folder: Path) -> Cure:
    await scene.engine.enqueue("fax", {}, task_list="closing", delay=3600)
    await scene.engine.kernel.lists.drain("closing")
    return lambda: scene.engine.kernel.lists.resume("closing")


async def rate_holds_work(scene: Scene, folder: Path) -> Cure:
    await scene.engine.enqueue("mail", {})
    await scene.engine.kernel.lists.limit_rate("default", "mail", 0.01)
    for _ in range(2):
        await scene.engine.enqueue("mail", {})
    return lambda: scene.engine.kernel.lists.limit_rate("default", "mail", None)


async def watcher_fails(scene: Scene, folder: Path) -> Cure:
    await scene.engine.watchers.create("incoming", directory=str(folder / "missing"), task="fax")
    return lambda: scene.engine.watchers.remove("incoming")


async def watcher_is_paused(scene: Scene, folder: Path) -> Cure:
    await scene.engine.watchers.create("incoming", directory=str(folder), task="fax", paused=True)
    return lambda: scene.engine.watchers.resume("incoming")


async def schedule_is_paused(scene: Scene, folder: Path) -> Cure:
    await scene.engine.schedules.create("nightly", cron="0 3 * * *", task="fax", paused=True)
    return lambda: scene.engine.schedules.resume("nightly")


async def function_is_stuck(scene: Scene, folder: Path) -> Cure:
    code = {"name": "one"}

    async def done() -> None:
        return None

    @scene.engine.function("changed")
    async def changed(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.step(done, name=code["name"])
        await ctx.wait_for("go")

    run = await scene.engine.start_function("changed")
    process = scene.process(warm=0)
    await process.quiet()
    code["name"] = "other"  # it stays, however often the function is retried while other faults are planted
    await scene.engine.signal(run.id, "go")
    await process.quiet()

    async def roll_back() -> None:
        code["name"] = "one"
        scene.clock.advance(3600)
        await process.quiet()

    return roll_back


async def task_is_paused(scene: Scene, folder: Path) -> Cure:
    task = await scene.engine.enqueue("fax", {}, delay=3600)
    await scene.engine.pause(task.id)
    return lambda: scene.engine.resume(task.id)


async def run_is_paused(scene: Scene, folder: Path) -> Cure:
    @scene.engine.function("long")
    async def long(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.sleep(3600)

    run = await scene.engine.start_function("long")
    await scene.engine.runs.pause(run.id)
    return lambda: scene.engine.runs.resume(run.id)


async def task_failed(scene: Scene, folder: Path) -> Cure:
    failing = await scene.engine.enqueue("fails", {}, priority=-1)
    process = scene.process()
    (task,) = [task for task in await process.claim("handler") if task.id == failing.id]
    await process.fail(task)
    return lambda: scene.engine.kernel.dead_letters.discard(everything=True)


async def objective_is_blocked(scene: Scene, folder: Path) -> Cure:
    objectives = scene.engine.goals.objectives
    added = await objectives.add("greet must name the person", actor="ann")
    await objectives.approve(added.objective_id, actor="ann")
    await objectives.block(added.objective_id, actor="ann", reason="waiting for legal")
    return lambda: objectives.unblock(added.objective_id, actor="ann")


async def effect_is_unknown(scene: Scene, folder: Path) -> Cure:
    @scene.engine.function("charges")
    async def charges(payload: dict[str, Any], ctx: Any) -> None:
        def charge() -> None:
            raise ConnectionError("gone")

        with suppress(EffectUnknown):
            await ctx.effect("charge", charge, on_unknown="fail")

    await scene.engine.start_function("charges")
    await scene.process().quiet()

    async def wait() -> None:
        scene.clock.advance(3601)

    return wait


FAULTS = {
    "dead_letters": task_failed,  # first: it claims every task of handlers
    "no_worker": nobody_serves_it,
    "list_paused": list_with_work_is_paused,
    "list_draining": list_is_draining,
    "rate": rate_holds_work,
    "watcher_failing": watcher_fails,
    "watcher_paused": watcher_is_paused,
    "schedule_paused": schedule_is_paused,
    "function_stuck": function_is_stuck,
    "tasks_paused": task_is_paused,
    "runs_paused": run_is_paused,
    "objectives_blocked": objective_is_blocked,
    "effects_unknown": effect_is_unknown,
}


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with function_scene(url_of(getattr(request, "param", "sqlite"), request, tmp_path)) as scene:
        yield scene


async def problems_of(scene: Scene) -> dict[str, StatusProblem]:
    status = await Operations(scene.engine, Access("ann", frozenset(Scope))).system.status()
    assert status.reasons == [each.line for each in status.problems]
    assert status.health == ("degraded" if status.problems else "ok")
    return {each.code: each for each in status.problems}


@pytest.mark.parametrize("code", FAULTS)
async def test_a_fault_is_reported_with_its_remedy_until_it_is_fixed(scene: Scene, tmp_path: Path, code: str):
    assert await problems_of(scene) == {}
    cure = await FAULTS[code](scene, tmp_path)
    found = (await problems_of(scene))[code]
    assert found.remedy
    if code == "dead_letters":
        assert re.findall("dlq [a-z]+", found.remedy) == ["dlq show", "dlq retry", "dlq discard"]
    for command in re.findall(r"`treadle ([^`]+)`", found.remedy):
        check_command(command)  # it works as written
    await cure()
    assert code not in await problems_of(scene)


@pytest.mark.parametrize("scene", ["postgres"], indirect=True)
async def test_all_faults_are_named_together_and_everywhere(scene: Scene, tmp_path: Path):
    cures = [await plant(scene, tmp_path) for code, plant in FAULTS.items() if not code.startswith("watcher")]
    cures.append(await FAULTS["watcher_failing"](scene, tmp_path))
    wanted = await problems_of(scene)
    assert wanted.keys() >= FAULTS.keys() - {"watcher_paused"}
    lines = [each.line for each in wanted.values()]
    async with visiting(scene.engine) as visit:
        page = await visit.page("/")
        told = (await visit.browser.get("/v1/status")).json()
        for each in wanted.values():
            assert each.text in page
            assert f'<li data-problem="{each.code}">' in page
    async with in_request_context(scene.engine) as client:
        answer = await client.call_tool("system_status", {})
    shown = Treadle(tmp_path, store=scene.engine.kernel.store.url).json("status")
    for found in (told, answer.structured_content, shown):
        assert {each["code"] for each in found["problems"]} >= {*wanted}
    for found in (told, shown):
        assert {*found["reasons"]} >= {*lines}
    assert not [each for each in answer.structured_content["reasons"] if "`treadle " in each]  # models have tools instead
