"""Jobs of several scopes, with one worker for each, as one worker per engagement."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.databases import Database, StoreClock
from tests.contract.external import open_stage
from tests.engines import SHARED, url_of
from tests.limits import BOUND

from treadle import Engine, ExternalProductionHandle, Production, Specialist
from treadle.kernel.external.decide import GRACE_FOR
from treadle.kernel.telemetry.observer import StoreCalled, TasksClaimed
from treadle.settings import Settings
from treadle.testing import StubExternalSpecialist

SCOPES = ("acme", "umbrella")


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


class Service(Specialist):
    """Ends each job with its first poll, or with none."""

    def __init__(self, interval: float = 0.05, polls: bool = True) -> None:
        self.started: list[str] = []
        self.interval, self.polls = interval, polls

    async def start(self, payload: dict[str, Any], ctx: Any) -> Any:
        self.started.append(ctx.task.scope)
        return ExternalProductionHandle(f"job-{payload['number']}", self.interval)

    async def poll(self, external_job_id: str, ctx: Any) -> Any:
        return Production({"id": external_job_id}) if self.polls else ExternalProductionHandle(external_job_id, self.interval)


def engine_of(url: str, scope: str | None, service: Specialist, claims: Counter[str]) -> Engine:
    engine = Engine(url, settings=Settings())
    engine.specialist("render", service, scope=scope)

    def observe(event: object) -> None:
        if isinstance(event, TasksClaimed):
            claims.update(task.id for task in event.tasks)

    engine.kernel.telemetry.add(observe)
    return engine


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_each_worker_claims_the_jobs_of_its_own_scope_only(url: str) -> None:
    claims: dict[str, Counter[str]] = {scope: Counter() for scope in SCOPES}
    services = {scope: Service() for scope in SCOPES}
    first, second = (engine_of(url, scope, services[scope], claims[scope]) for scope in SCOPES)
    async with first, second, first.worker(), second.worker():
        tasks = [await first.enqueue("render", {"number": number}, scope=SCOPES[number % 2]) for number in range(8)]
        await asyncio.gather(*[first.result(task, timeout=BOUND) for task in tasks])
    for number, scope in enumerate(SCOPES):
        assert services[scope].started == [scope] * 4
        assert set(claims[scope]) == {task.id for task in tasks[number::2]}


async def test_a_due_poll_waits_for_a_worker_of_its_scope(url: str) -> None:
    claims: Counter[str] = Counter()
    gone, other = engine_of(url, "acme", Service(polls=False), Counter()), engine_of(url, "umbrella", Service(), claims)
    async with gone, other:
        async with gone.worker():
            task = await gone.enqueue("render", {"number": 1}, scope="acme")
            pending = await gone.enqueue("render", {"number": 2}, scope="nobody")
            async with asyncio.timeout(BOUND):
                while (await gone.kernel.reads.get_task(task)).state != "awaiting_external":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with other.worker():
            done = await other.enqueue("render", {"number": 3}, scope="umbrella")
            await other.result(done, timeout=BOUND)
            await until(lambda: claims[done.id] >= 2)
            assert set(claims) == {done.id}
            reason = await other.why(task)
            assert (reason.code, "in the scope acme" in reason.text) == ("no_worker", True)
            reason = await other.why(pending)
            assert reason.code == "no_worker"
            assert "no live worker serves render in the scope nobody in list default" in reason.text
        again = engine_of(url, "acme", Service(), claims)
        async with again, again.worker():
            assert await again.result(task, timeout=BOUND) == {"id": "job-1"}


async def test_a_rate_limit_causes_no_repeated_claims_for_tasks_of_other_scopes(url: str) -> None:
    calls: Counter[str] = Counter()
    engine = engine_of(url, "acme", Service(), Counter())
    engine.kernel.telemetry.add(lambda event: calls.update([event.operation] if isinstance(event, StoreCalled) else ()))
    async with engine, engine.worker():
        await engine.enqueue("render", {"number": 1}, scope="umbrella")
        await engine.kernel.lists.limit_rate("default", "render", 100)
        mine = await engine.enqueue("render", {"number": 2}, scope="acme")
        await engine.result(mine, timeout=BOUND)
        calls.clear()
        await asyncio.sleep(1)  # claims within a second are counted
        assert calls["claim"] <= 40  # ten for each group of queues


async def test_a_specialist_of_all_scopes_serves_scopes_without_their_own(url: str) -> None:
    own, general = Service(), Service()
    engine = engine_of(url, "acme", own, Counter())
    engine.specialist("render", general)
    async with engine, engine.worker():
        tasks = [await engine.enqueue("render", {"number": 1}, scope=scope) for scope in ("acme", "umbrella", None)]
        await asyncio.gather(*[engine.result(task, timeout=BOUND) for task in tasks])
    assert (own.started, sorted(map(str, general.started))) == (["acme"], ["None", "umbrella"])


async def test_a_job_of_an_unserved_scope_fails(database: Database, clock: StoreClock) -> None:
    async with open_stage(database, clock) as stage:
        stage.engine.specialist("render", StubExternalSpecialist(), scope="acme")
        task_id = await stage.dispatch(scope="acme")
        stage.engine.kernel.registry._handlers.clear()
        stage.engine.kernel.registry.specialists.clear()
        stage.engine.specialist("render", StubExternalSpecialist(), scope="umbrella")
        await stage.tick(GRACE_FOR / 1000 + 60)
        task = await stage.task(task_id)
        assert (task.state, task.error_code) == ("failed", "specialist_unregistered")
