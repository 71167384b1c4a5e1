"""Several engines, short leases, and handlers that behave badly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.scene import until
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.limits import BOUND
from tests.workers import isolated

from treadle import Context, Engine, TaskCanceled, TaskSpec
from treadle.kernel.telemetry.events import LeaseLost, LeasesExpired, ShortLease
from treadle.kernel.telemetry.observer import StoreCalled
from treadle.model.errors import StoreError, StoreUnavailable
from treadle.model.tasks import Claim
from treadle.settings import Settings
from treadle.workers.lease_renewer import LeaseRenewer


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.mark.postgres
async def test_many_engines_on_one_store_run_each_task_once(shared_url: str) -> None:
    ran: Counter[str] = Counter()
    engines = [make_engine(shared_url) for _ in range(4)]
    for engine in engines:

        @engine.handler("count")
        async def count(payload: Any, ctx: Context) -> None:
            ran[ctx.task_id] += 1

    async with engines[0], engines[1], engines[2], engines[3]:
        tasks = await engines[0].enqueue_many([TaskSpec(name="count") for _ in range(400)])
        async with engines[1].worker(concurrency=20), engines[2].worker(concurrency=20), engines[3].worker(concurrency=20):
            async with asyncio.timeout(BOUND):
                await asyncio.gather(*(engines[0].result(task) for task in tasks))
        report = await engines[0].kernel.verify()
    assert ran == Counter({task.id: 1 for task in tasks})
    assert (report.holds, report.checked) == (True, 402)  # and the two tasks of the engine itself


async def test_a_task_put_by_one_engine_is_soon_started_by_another(shared_url: str) -> None:
    """Without the worker's own poll, which comes too late for this test."""
    async with make_engine(shared_url) as here, make_engine(shared_url, poll_interval=3600) as there:

        @there.handler("echo")
        async def echo(payload: Any) -> Any:
            return payload

        async with there.worker():
            for _ in range(3):
                await here.result(await here.enqueue("echo"), timeout=BOUND)


async def test_a_cancel_elsewhere_stops_a_handler_within_seconds(shared_url: str) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()
    async with make_engine(shared_url) as here, make_engine(shared_url) as there:

        @there.handler("long")
        async def long(payload: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with there.worker(lease=3600):  # renewals are far apart: it is looked for cancels in between
            task = await here.enqueue("long")
            await asyncio.wait_for(started.wait(), BOUND)
            await here.cancel(task)
            with pytest.raises(TaskCanceled):
                await here.result(task)
            await asyncio.wait_for(stopped.wait(), BOUND)


async def test_a_cancel_elsewhere_kills_the_process_of_an_isolated_handler(shared_url: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def pid() -> int | None:
        return int(text) if file.exists() and (text := file.read_text()) else None

    def is_running() -> bool:
        try:
            return Path(f"/proc/{pid()}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False

    async with make_engine(shared_url) as here, make_engine(shared_url) as there:
        there.handler("long", isolation="process")(isolated.hang_with_a_child)
        async with there.worker(lease=3600):  # renewals are far apart: it is looked for cancels in between
            task = await here.enqueue("long", {"file": str(file)})
            await until(lambda: pid() is not None)
            assert is_running()
            await here.cancel(task)
            await until(lambda: not is_running())
        assert (await here.kernel.reads.get_task(task)).state == "canceled"


async def test_a_handler_that_blocks_the_event_loop_loses_no_lease(url: str) -> None:
    """The lease renewer has a thread and a connection of its own."""
    events: list[Any] = []
    engine = Engine(url, settings=Settings(), emit=events.append)
    engine.kernel.telemetry.add(events.append)

    @engine.handler("rude")
    async def rude(payload: Any, ctx: Context) -> dict[str, Any]:
        while not any(isinstance(event, StoreCalled) and event.operation == "renew" and event.count for event in events[:]):
            time.sleep(0.01)  # noqa: ASYNC251 - just what must not be done
        return {"token": ctx.fencing_token}

    async with engine, engine.worker(lease=9):
        task = await engine.enqueue("rude")
        assert await engine.result(task, timeout=BOUND) == {"token": 1}
    assert [event for event in events if isinstance(event, LeaseLost | LeasesExpired)] == []
    assert any(isinstance(event, ShortLease) for event in events)


async def test_work_that_does_not_stop_in_time_is_released_for_others(shared_url: str) -> None:
    started = asyncio.Event()
    async with make_engine(shared_url) as first, make_engine(shared_url) as second:

        @first.handler("work")
        async def slow(payload: Any) -> None:
            started.set()
            await asyncio.Event().wait()

        @second.handler("work")
        async def fast(payload: Any, ctx: Context) -> dict[str, Any]:
            return {"attempt": ctx.attempt}

        task = await first.enqueue("work")
        async with first.worker(grace=0):
            await asyncio.wait_for(started.wait(), BOUND)
        async with second.worker():
            assert await second.result(task, timeout=BOUND) == {"attempt": 2}
        assert [transition.transition for transition in await first.kernel.reads.list_transitions(task.id)] == [
            "release",
            "succeed",
        ]


async def test_a_sync_handler_gets_a_stop_flag_and_its_late_result_is_dropped(url: str) -> None:
    engine = make_engine(url)
    saw, started = threading.Event(), threading.Event()

    @engine.handler("stubborn")
    def stubborn(payload: Any, ctx: Context) -> dict[str, Any]:
        started.set()
        if ctx.wait_cancelled(BOUND):
            saw.set()
        return {"late": True}

    async with engine:
        async with engine.worker():
            task = await engine.enqueue("stubborn")
            assert await asyncio.to_thread(started.wait, BOUND)
            await engine.cancel(task)
            assert await asyncio.to_thread(saw.wait, BOUND)
        ended = await engine.kernel.reads.get_task(task)
        assert (ended.state, ended.result) == ("canceled", None)
        assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task.id)] == ["cancel"]


async def test_a_handler_may_enqueue_and_wait_for_more_work(url: str) -> None:
    engine = make_engine(url)

    @engine.handler("leaf")
    async def leaf(payload: Any) -> Any:
        return {"n": payload["n"] + 1}

    @engine.handler("root")
    async def root(payload: Any) -> Any:
        leaves = await engine.enqueue_many([TaskSpec(name="leaf", payload={"n": n}) for n in range(5)])
        results = await asyncio.gather(*(engine.result(each) for each in leaves))
        return {"sum": sum(result["n"] for result in results)}

    async with engine, engine.worker():
        assert await engine.result(await engine.enqueue("root"), timeout=BOUND) == {"sum": 15}


async def test_a_worker_that_cannot_register_leaves_no_threads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with make_engine(url) as engine:
        before = threading.active_count()

        async def away(heard: Callable[[tuple[int, ...]], None]) -> Any:
            raise StoreUnavailable("away")

        monkeypatch.setattr(engine.kernel.store, "subscribe", away)
        with pytest.raises(StoreError):
            async with engine.worker():
                raise AssertionError("must not start")
        assert not [thread for thread in threading.enumerate() if thread.name == "treadle-lease-renewer"]
        assert threading.active_count() <= before + 1  # a thread of the loop's pool may stay
        assert engine.kernel.committer.on_ready == []


async def test_an_engine_can_be_opened_again(shared_url: str) -> None:
    engine = make_engine(shared_url)

    @engine.handler("echo")
    async def echo(payload: Any) -> Any:
        return payload

    async with engine:
        task = await engine.enqueue("echo", {"n": 1})
    async with engine, engine.worker():
        assert await engine.result(task, timeout=BOUND) == {"n": 1}
    await engine.close()


@pytest.mark.parametrize(("option", "expected"), [({}, 0.25), ({"poll_interval": 2}, 2.0)])
async def test_the_poll_interval_is_a_setting_and_an_option_of_the_worker(option: dict[str, Any], expected: float) -> None:
    engine = Engine("memory://", settings=Settings(poll_interval=0.25))
    async with engine, engine.worker(**option) as host:
        assert host._options.poll_every == expected


async def test_a_lease_lost_before_the_handler_starts_is_released_without_a_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, refused = LeaseRenewer.start, []

    def start(renewer: LeaseRenewer, claim: Claim) -> bool:
        if refused:
            return real(renewer, claim)
        refused.append(claim)
        return False

    monkeypatch.setattr(LeaseRenewer, "start", start)
    engine = Engine("memory://")
    engine.handler("once")(lambda payload: {"n": 1})
    async with engine, engine.worker():
        task = await engine.enqueue("once")
        assert await engine.result(task, timeout=BOUND) == {"n": 1}
        assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task.id)] == [
            "release",
            "succeed",
        ]
        assert (await engine.kernel.reads.get_task(task)).takeovers == 0
