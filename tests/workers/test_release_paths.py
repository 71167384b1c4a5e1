"""No claim of any kind repeats without a delay: work that nobody can do now is claimed a few times a second at most."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle import ApprovalRequest, AwaitingApproval, Context, Waiting
from treadle.dispatch import AgentCoordinator
from treadle.kernel.approvals.service import Approvals
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.runs.advancer import RunViews
from treadle.kernel.schedules.fire import Firer
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.telemetry.observer import TasksClaimed
from treadle.model.errors import StoreUnavailable
from treadle.model.names import FUNCTION, HANDLER, SCHEDULE
from treadle.model.outcomes import Released
from treadle.testing import StubExternalSpecialist
from treadle.testing.environment import Environment
from treadle.workers.functions.runner import FunctionRunner
from treadle.workers.specialists import Specialists

Path = Callable[[Environment, pytest.MonkeyPatch], Any]

SECONDS = 10
PER_SECOND = 10
SOON = 60.0
"""Seconds within which a worker that is not busy for ever has done its work."""

FLOW = """
namespace shop {
  event facet Pay(sum: Long) => (paid: Boolean)
  workflow Buy(sum: Long) => (paid: Boolean) andThen {
    p = Pay(sum = $.sum)
    yield Buy(paid = p.paid)
  }
}
"""


async def _unavailable(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("away")


def breaks(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The calls of that method fail as if the store did not answer."""
    patch.setattr(owner, name, _unavailable)


async def a_handler_releases(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("work")
    async def work(payload: Any) -> Any:
        return Released("not now")

    await env.engine.enqueue("work")
    return HANDLER


async def a_handler_waits_for_nothing(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("work")
    async def work(payload: Any) -> Any:
        return Waiting(0)

    await env.engine.enqueue("work")
    return HANDLER


async def a_handler_cancels_the_task_that_runs_it(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("work")
    async def work(payload: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    await env.engine.enqueue("work")
    return HANDLER


async def a_payload_cannot_be_read(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("work")
    async def work(payload: Any) -> None: ...

    await env.engine.enqueue("work", {"text": "x" * 100_000})
    breaks(patch, ValueStore, "unpack_text")
    return HANDLER


async def a_handler_is_gone(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("work")
    async def work(payload: Any) -> Any:
        env.engine.kernel.registry._handlers.clear()
        return Waiting(1)

    await env.engine.enqueue("work")
    await env.engine.enqueue("work")
    return HANDLER


async def an_approval_cannot_be_read(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("work")
    async def work(payload: Any, ctx: Context) -> Any:
        return AwaitingApproval(ApprovalRequest.of("Go?", remind_after=1))

    await env.engine.enqueue("work")
    await env.drain()
    breaks(patch, Approvals, "process_due")
    return HANDLER


async def a_run_cannot_be_read(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.function("trip")
    async def trip() -> None: ...

    await env.engine.start("trip")
    breaks(patch, FunctionRunner, "execute")
    return FUNCTION


async def a_schedule_cannot_fire(env: Environment, patch: pytest.MonkeyPatch) -> str:
    breaks(patch, Firer, "act")
    await env.engine.schedules.create("often", every=1, task="work")
    return SCHEDULE


async def a_run_cannot_advance(env: Environment, patch: pytest.MonkeyPatch) -> str:
    @env.engine.handler("shop.Pay")
    async def pay(payload: Any) -> dict[str, Any]:
        return {"paid": True}

    await env.engine.start_run([("shop.afl", FLOW)], "Buy", {"sum": 1})
    breaks(patch, RunViews, "get")
    return "afl.advance"


async def _external(env: Environment) -> None:
    env.engine.specialist("render", StubExternalSpecialist())
    await env.engine.enqueue("render")
    await env.drain()


async def a_job_cannot_be_read(env: Environment, patch: pytest.MonkeyPatch) -> str:
    await _external(env)
    breaks(patch, ExternalJobs, "open")
    return HANDLER


async def a_job_is_of_another_scope(env: Environment, patch: pytest.MonkeyPatch) -> str:
    """Claimed all the same, as an older worker does it."""
    env.engine.specialist("render", StubExternalSpecialist(), scope="acme")
    patch.setattr(Specialists, "scopes", None)
    await env.engine.enqueue("render", scope="umbrella")
    return HANDLER


async def a_job_has_a_plain_handler_only(env: Environment, patch: pytest.MonkeyPatch) -> str:
    await _external(env)
    env.engine.kernel.registry._handlers.clear()
    env.engine.kernel.registry.specialists.clear()

    @env.engine.handler("render")
    async def render(payload: Any) -> None: ...

    return HANDLER


PATHS: list[Path] = [
    a_handler_releases,
    a_handler_waits_for_nothing,
    a_handler_cancels_the_task_that_runs_it,
    a_payload_cannot_be_read,
    a_handler_is_gone,
    an_approval_cannot_be_read,
    a_run_cannot_be_read,
    a_schedule_cannot_fire,
    a_run_cannot_advance,
    a_job_cannot_be_read,
    a_job_is_of_another_scope,
    a_job_has_a_plain_handler_only,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_unserved_work_is_claimed_with_growing_delays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: Counter[str] = Counter()

    def observe(event: object) -> None:
        if isinstance(event, TasksClaimed):
            claims.update(task.kind for task in event.tasks)

    async with Environment() as env:
        kind = await path(env, monkeypatch)
        env.engine.kernel.telemetry.add(observe)
        async with asyncio.timeout(SOON):
            await env.drain()
            assert claims[kind] <= PER_SECOND
            for _ in range(SECONDS):
                env.clock.advance(1)
                await env.drain()
        assert claims[kind] <= PER_SECOND * (SECONDS + 1)


async def a_remote_worker_releases(env: Environment) -> bool:
    remote = env.engine.kernel.remote_workers
    worker = await remote.register("remote", handlers=["work"])
    for claimed in (tasks := await remote.claim(worker.id)):
        await remote.release(worker.id, claimed.task.id, claimed.task.claim_version)
    return bool(tasks)


async def a_remote_worker_leaves(env: Environment) -> bool:
    remote = env.engine.kernel.remote_workers
    worker = await remote.register("remote", handlers=["work"])
    tasks = await remote.claim(worker.id)
    await remote.leave(worker.id)
    return bool(tasks)


async def a_coordinator_gives_back(env: Environment) -> bool:
    async with AgentCoordinator(env.engine) as coordinator:
        await coordinator.submit(ISSUE, idempotency_key="the issue")
        if (job := await coordinator.dequeue("worker")) is not None:
            await coordinator.update_status(job.id, "pending")
        return job is not None


ISSUE = {
    "id": 1,
    "number": 1,
    "title": "It breaks",
    "body": "",
    "repository": {
        "id": 1,
        "name": "loom",
        "full_name": "ada/loom",
        "owner": {"login": "ada"},
        "clone_url": "https://example.org/loom.git",
        "default_branch": "main",
    },
}
HOLDERS: list[Callable[[Environment], Awaitable[bool]]] = [
    a_remote_worker_releases,
    a_remote_worker_leaves,
    a_coordinator_gives_back,
]


@pytest.mark.parametrize("returns", HOLDERS, ids=lambda holder: holder.__name__)
async def test_work_that_its_holder_returns_again_and_again_waits(returns: Callable[[Environment], Awaitable[bool]]) -> None:
    """The first time it can be claimed immediately."""
    async with Environment() as env:
        await env.engine.enqueue("work")
        assert [await returns(env) for _ in range(4)] == [True, True, False, False]
        env.clock.advance(1)
        assert [await returns(env) for _ in range(2)] == [True, False]


async def test_a_job_without_a_record_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_job(self: ExternalJobs, task: Any) -> None:
        return None

    async with Environment() as env:
        env.engine.specialist("render", StubExternalSpecialist())
        task = await env.engine.enqueue("render")
        await env.drain()
        assert (await env.engine.kernel.reads.get_task(task)).state == "awaiting_external"
        monkeypatch.setattr(ExternalJobs, "_find_job", no_job)
        async with asyncio.timeout(SOON):
            await env.advance(60)
        ended = await env.engine.kernel.reads.get_task(task)
        assert (ended.state, ended.error_code) == ("failed", "external_job_lost")
