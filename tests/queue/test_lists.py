"""Limits, rates, caps and task lists through `Engine`, with workers, on every store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Engine, TaskSpec
from treadle.agents.locks import Locks
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Seen, Unit
from treadle.kernel.telemetry.events import Operated, TelemetryEvent
from treadle.model.errors import BacklogFull, InvalidInput, InvalidName, InvalidPolicy, ListDraining, TaskIgnored
from treadle.model.names import UPKEEP
from treadle.model.states import TaskState
from treadle.settings import Settings


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


class Gate:
    """A handler whose calls wait until they are let through, and that knows how many it has."""

    def __init__(self, name: str, *engines: Engine) -> None:
        self.inside = self.most = self.ended = 0
        self._let = asyncio.Semaphore(0)
        self._changed = asyncio.Condition()
        for engine in engines:
            engine.handler(name)(self._handle)

    async def _handle(self, payload: Any) -> None:
        await self._note(1)
        await self._let.acquire()
        self.ended += 1
        await self._note(-1)

    async def _note(self, change: int) -> None:
        async with self._changed:
            self.inside += change
            self.most = max(self.most, self.inside)
            self._changed.notify_all()

    async def until(self, inside: int) -> None:
        """Return when so many are inside."""
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(lambda: self.inside == inside)

    def let(self, count: int) -> None:
        for _ in range(count):
            self._let.release()


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with make_engine(url) as made:
        yield made


# --- limits ---


@pytest.mark.postgres
async def test_concurrent_tasks_of_a_key_stay_within_its_limit(engine: Engine) -> None:
    gate = Gate("work", engine)
    spec = TaskSpec(name="work", limit_key="customer:42", limit=3)
    tasks = await engine.enqueue_many([spec] * 10)
    async with engine.worker():
        await gate.until(3)
        gate.let(100)
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*[engine.result(task) for task in tasks])
    assert (gate.most, gate.ended) == (3, 10)


async def test_a_handlers_limit_holds_in_all_engines_together(shared_url: str) -> None:
    async with make_engine(shared_url) as here, make_engine(shared_url) as there:
        gate = Gate("work", here, there)
        await here.kernel.lists.limit_handler("work", 2)
        tasks = await here.enqueue_many([TaskSpec(name="work")] * 12)
        async with here.worker(), there.worker():
            await gate.until(2)
            gate.let(100)
            async with asyncio.timeout(BOUND):
                await asyncio.gather(*[here.result(task) for task in tasks])
    assert (gate.most, gate.ended) == (2, 12)


async def test_why_names_the_tasks_that_hold_the_limit(engine: Engine) -> None:
    first, second = await engine.enqueue_many([TaskSpec(name="work", limit_key="k", limit=1)] * 2)
    reason = await engine.why(second)
    assert reason.code == "over_limit"
    assert reason.text == f"the limit of 1 on k is held by {first.id}; `treadle lists limit --key k --max N` raises it"
    assert (await engine.why(first)).code == "no_worker"


async def test_why_of_a_delayed_task_with_a_limit_is_delayed(engine: Engine) -> None:
    task = await engine.enqueue("work", limit_key="k", limit=1, delay=60)
    assert (await engine.why(task)).code == "delayed"
    assert (await engine.kernel.reads.get_task(task)).shown_state == "pending"
    (depth,) = await engine.kernel.reads.list_depths()
    assert (depth.ready, depth.waiting, depth.blocked) == (0, 1, 0)


# --- rates ---


async def test_a_worker_takes_tasks_as_their_tokens_come(engine: Engine) -> None:
    gate = Gate("work", engine)
    gate.let(100)
    await engine.kernel.lists.limit_rate("default", "work", 50, 1)
    tasks = await engine.enqueue_many([TaskSpec(name="work")] * 10)
    started = await engine.kernel.store.now()
    async with engine.worker():
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*[engine.result(task) for task in tasks])
    assert await engine.kernel.store.now() - started >= 9 * 20
    assert gate.ended == 10


async def test_why_names_the_time_of_the_next_token(engine: Engine) -> None:
    gate = Gate("work", engine)
    await engine.kernel.lists.limit_rate("default", "work", 0.01, 1)
    await engine.enqueue("work")
    async with engine.worker():
        await gate.until(1)
        task = await engine.enqueue("work")
        reason = await engine.why(task)
        gate.let(1)
    assert reason.code == "rate"
    assert reason.text.startswith("rate until 20")


# --- caps and lists ---


async def test_a_full_backlog_refuses_only_its_own_callers(engine: Engine) -> None:
    await engine.kernel.lists.limit_backlog("default", "work", 5)
    wishes = [engine.enqueue("work") for _ in range(9)] + [engine.enqueue("other") for _ in range(9)]
    answers = await asyncio.gather(*wishes, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(refused) == 4
    assert all(isinstance(error, BacklogFull) and error.code == "backlog_full" for error in refused)
    assert len(await engine.kernel.reads.list_tasks(kind="handler", name="other")) == 9


async def test_a_paused_list_continues_on_resume(engine: Engine) -> None:
    gate = Gate("work", engine)
    gate.let(10)
    await engine.kernel.lists.pause("default", actor="ann")
    task = await engine.enqueue("work")
    async with engine.worker():
        assert (await engine.why(task)).code == "list_paused"
        await engine.kernel.lists.resume("default", actor="ann")
        await engine.result(task, timeout=BOUND)


async def test_a_worker_starts_while_the_engines_own_list_drains(engine: Engine) -> None:
    async with engine.worker():
        pass
    own = await engine.kernel.store.tasks.list_matching(TaskFilter(states=("pending",), task_list="engine"), 10)
    assert {task.kind for task in own} == UPKEEP
    for task in own:
        await engine.kernel.committer.commit(Unit(Seen.of(task), Finish("cancel", TaskState.CANCELED)), 1)
    await engine.kernel.lists.drain("engine")
    async with engine.worker():
        assert [server.state for server in await engine.kernel.store.servers.list_all()] == ["running", "stopped"]


async def test_locks_can_be_taken_while_the_default_list_drains(engine: Engine) -> None:
    await engine.kernel.lists.drain("default")
    assert await Locks(engine.kernel.store, engine.kernel.committer, engine.kernel.ids).acquire("k", 1000) is not None


async def test_a_draining_list_refuses_new_work_with_a_code(engine: Engine) -> None:
    await engine.kernel.lists.drain("default")
    with pytest.raises(ListDraining) as caught:
        await engine.enqueue("work")
    assert caught.value.code == "list_draining"
    await engine.kernel.lists.resume("default")
    assert (await engine.enqueue("work")).created


async def test_unserved_tasks_wait_or_are_ignored_by_the_policy_of_their_list(engine: Engine) -> None:
    Gate("work", engine)
    await engine.kernel.lists.set_policy("default", "ignore")
    waits = await engine.enqueue("unknown", task_list="patient")
    task = await engine.enqueue("unknown")
    assert "ignores" in (await engine.why(task)).text
    async with engine.worker():
        with pytest.raises(TaskIgnored):
            await engine.result(task, timeout=BOUND)
    ended = await engine.kernel.reads.get_task(task)
    assert (ended.state, ended.transition, ended.error_code) == ("ignored", "ignore", "no_handler")
    assert not (await engine.kernel.reads.get_task(waits)).finished
    assert (await engine.kernel.verify()).holds
    await engine.retry(task)
    assert (await engine.kernel.reads.get_task(task)).state == "pending"


async def test_an_unserved_step_fails_where_its_list_ignores_such_tasks(engine: Engine) -> None:
    await engine.kernel.lists.set_policy("default", "ignore")
    source = """
    namespace n {
      event facet Ask(q: String) => (a: String)
      workflow Main() => (a: String) andThen {
        asked = Ask(q = "?")
        yield Main(a = asked.a)
      }
    }
    """
    run = await engine.start_run([("main.afl", source)], "n.Main")
    async with engine.worker():
        with pytest.raises(Exception, match="handler"):
            await engine.run_result(run, timeout=BOUND)
    assert (await engine.kernel.runs.get_run(run.id)).state == "failed"


async def test_a_task_that_another_live_server_serves_is_not_ignored(shared_url: str) -> None:
    async with make_engine(shared_url) as here, make_engine(shared_url) as there:
        Gate("mine", here)
        gate = Gate("yours", there)
        await here.kernel.lists.set_policy("default", "ignore")
        async with there.worker(concurrency=1):
            tasks = await here.enqueue_many([TaskSpec(name="yours")] * 2)
            await gate.until(1)
            ignored = await here.enqueue("nobodys")
            async with here.worker():
                with pytest.raises(TaskIgnored):
                    await here.result(ignored, timeout=BOUND)
                gate.let(2)
                assert [await here.result(task, timeout=BOUND) for task in tasks] == [{}, {}]


async def test_lists_are_shown_with_their_queues_and_limits(engine: Engine) -> None:
    await engine.enqueue("work")
    await engine.enqueue("slow", task_list="night", limit_key="k", limit=2)
    await engine.kernel.lists.limit_backlog("night", "slow", 7)
    await engine.kernel.lists.limit_handler("work", 4)
    default, night = (await engine.kernel.lists.list()).lists
    assert (default.task_list, night.task_list) == ("default", "night")
    assert [(queue.name, queue.limit_key, queue.ready) for queue in default.queues] == [("work", "handler:work", 1)]
    assert [queue.backlog_limit for queue in night.queues] == [7]
    assert [(limit.key, limit.max_running, limit.by_operator) for limit in (await engine.kernel.lists.limits()).limits] == [
        ("handler:work", 4, True),
        ("k", 2, False),
    ]


async def test_operator_actions_are_emitted_with_their_actor(url: str) -> None:
    told: list[TelemetryEvent] = []
    async with Engine(url, settings=Settings(), emit=told.append) as engine:
        await engine.kernel.lists.pause("default", actor="ann")
        await engine.kernel.lists.limit_key("k", 3, actor="bob")
    assert [event for event in told if isinstance(event, Operated)] == [
        Operated("task list default paused", "ann"),
        Operated("limit of k: 3", "bob"),
    ]


# --- bad input ---


async def test_invalid_limits_are_rejected_without_a_change(engine: Engine) -> None:
    await engine.enqueue("work")
    lists = engine.kernel.lists
    before = await _everything(engine)
    for bad in (0, -1, True, 1.5, 10**12):
        with pytest.raises(InvalidPolicy):
            await lists.limit_key("k", bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidPolicy):
            await lists.limit_handler("work", bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidPolicy):
            await lists.limit_backlog("default", "work", bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidPolicy):
            await lists.limit_rate("default", "work", 1.0, bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidPolicy):
            await engine.enqueue("work", limit_key="k", limit=bad)  # type: ignore[arg-type]
    for rate in (0, -1.0, math.nan, math.inf, 1e-9, True, "fast"):
        with pytest.raises(InvalidPolicy):
            await lists.limit_rate("default", "work", rate)  # type: ignore[arg-type]
    with pytest.raises(InvalidPolicy):
        await lists.limit_rate("default", "work", None, 3)
    with pytest.raises(InvalidPolicy):
        await lists.set_policy("default", "explode")
    with pytest.raises(InvalidInput):
        await engine.enqueue("work", limit=3)
    with pytest.raises(InvalidInput):
        await lists.limit_key("", 3)
    with pytest.raises(InvalidName):
        await lists.limit_handler("no good", 3)
    for act in (lists.pause, lists.resume, lists.drain, lists.get):
        with raises_code("list_not_found", match="the existing ones are: default") as caught:
            await act("nosuch")
        assert caught.value.code == "list_not_found"
    with raises_code("list_not_found"):
        await lists.limit_rate("nosuch", "work", 1.0)
    with raises_code("list_not_found"):
        await lists.limit_backlog("nosuch", "work", 1)
    assert await _everything(engine) == before


async def _everything(engine: Engine) -> list[Any]:
    store = engine.kernel.store
    return [
        await store.tasks.list_matching(TaskFilter(), 100),
        await store.operators.list_queue_rules(),
        await store.operators.list_lists(),
        await store.operators.list_limits("default"),
    ]
