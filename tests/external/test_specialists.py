"""External services with real workers: used by workflows and functions that do not know it, paused, canceled, hanging."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.child import load_example
from tests.engines import ALL, Refusing, make_engine, url_of
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import (
    Engine,
    ExternalPollingLoop,
    ExternalProductionFailure,
    ExternalProductionHandle,
    RenderEvent,
    RunFailed,
    Specialist,
    TaskFailed,
)
from treadle.api.external_jobs import ExternalJobsRebuilt
from treadle.engine.codecs import Zlib
from treadle.kernel.store.queries import TaskFilter
from treadle.model.names import EXTERNAL_CANCEL
from treadle.settings import Settings
from treadle.testing import StubExternalSpecialist

SOON = 0.05
FLOW = """
namespace film {
    event facet Render(scene: String) => (url: String)
    workflow Film(scene: String) => (url: String) andThen {
        rendered = Render(scene = $.scene)
        yield Film(url = rendered.url)
    }
}
"""
STILL = ExternalProductionHandle("job-1", SOON, "on it")


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    made = make_engine(url_of(request.param, request, tmp_path))
    async with made:
        yield made
        assert (await made.kernel.verify()).problems == ()


class Gate(Specialist):
    """A service whose jobs are done when a test says so."""

    def __init__(self) -> None:
        self.done = False
        self.polls = 0
        self.canceled: list[str] = []

    async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
        return STILL

    async def poll(self, external_job_id: str) -> Any:
        self.polls += 1
        return RenderEvent({"url": "done.png"}) if self.done else STILL

    async def cancel(self, external_job_id: str) -> None:
        self.canceled.append(external_job_id)


async def until(holds: Any) -> None:
    async with asyncio.timeout(BOUND):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def polled(gate: Gate, count: int) -> None:
    async def holds() -> bool:
        return gate.polls >= count

    await until(holds)


@pytest.mark.postgres
async def test_a_workflow_uses_a_specialist_without_knowing_it(engine: Engine) -> None:
    stub = StubExternalSpecialist([STILL, RenderEvent({"url": "a.png"})], initial_polling_interval_seconds=SOON)
    engine.specialist("film.Render", stub)
    async with engine.worker():
        run = await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": "dawn"})
        assert await engine.run_result(run, timeout=BOUND) == {"url": "a.png"}
    assert [payload for payload, _ in stub.started] == [{"scene": "dawn"}]
    (job,) = (await engine.kernel.external_jobs.list(every=True)).jobs
    assert (job.run_id, job.state) == (run.id, "completed")


async def test_a_failure_of_an_external_service_fails_its_workflow(engine: Engine) -> None:
    outcomes = [ExternalProductionFailure("the lamp broke", "lamp")]
    engine.specialist("film.Render", StubExternalSpecialist(outcomes, initial_polling_interval_seconds=SOON))
    async with engine.worker():
        run = await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": "dawn"})
        with pytest.raises(RunFailed, match="the lamp broke"):
            await engine.run_result(run, timeout=BOUND)


async def test_a_function_awaits_an_external_job(engine: Engine) -> None:
    engine.specialist("render", StubExternalSpecialist([RenderEvent({"url": "f.png"})], initial_polling_interval_seconds=SOON))

    @engine.function("film")
    async def film(payload: Any, ctx: Any) -> Any:
        return await ctx.external("render", {"scene": payload["scene"]})

    async with engine.worker():
        run = await engine.start_function("film", {"scene": "dusk"})
        result = await engine.run_result(run, timeout=BOUND)
    assert "f.png" in str(result)
    (job,) = (await engine.kernel.external_jobs.list(every=True)).jobs
    assert job.run_id == run.id


async def test_jobs_of_a_paused_run_are_polled_and_resolved_but_the_run_stays_paused(engine: Engine) -> None:
    gate = Gate()
    engine.specialist("film.Render", gate)
    async with engine.worker():
        run = await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": "dawn"})
        await polled(gate, 1)
        await engine.runs.pause(run.id, actor="ada")
        await polled(gate, gate.polls + 2)
        gate.done = True

        async def resolved() -> bool:
            return [job.state for job in (await engine.kernel.external_jobs.list(every=True)).jobs] == ["completed"]

        await until(resolved)
        assert (await engine.kernel.runs.get_run(run.id)).state == "paused"
        await engine.runs.resume(run.id, actor="ada")
        assert await engine.run_result(run, timeout=BOUND) == {"url": "done.png"}


async def test_canceling_a_run_cancels_its_jobs_at_their_services(engine: Engine) -> None:
    gate = Gate()
    engine.specialist("film.Render", gate)
    async with engine.worker():
        run = await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": "dawn"})
        await polled(gate, 1)
        await engine.runs.cancel(run.id, actor="ada")

        async def told() -> bool:
            return gate.canceled == ["job-1"]

        await until(told)
    (job,) = (await engine.kernel.external_jobs.list(every=True)).jobs
    assert (job.state, job.error_code) == ("canceled", "canceled")


async def test_stopping_a_worker_cancels_no_job_at_the_service(engine: Engine) -> None:
    gate = Gate()
    engine.specialist("render", gate)
    task = await engine.enqueue("render")
    async with engine.worker():
        await polled(gate, 1)
    assert (await engine.kernel.reads.get_task(task)).state == "awaiting_external"
    assert await engine.kernel.store.tasks.list_matching(TaskFilter(kind=EXTERNAL_CANCEL), 10) == []
    gate.done = True
    async with engine.worker():
        assert await engine.result(task, timeout=BOUND) == {"url": "done.png"}
    assert gate.canceled == []


async def test_a_hanging_service_does_not_delay_others(engine: Engine) -> None:
    hangs = asyncio.Event()

    class Hanging(Specialist):
        async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
            return STILL

        async def poll(self, external_job_id: str) -> None:
            hangs.set()
            await asyncio.Event().wait()

    engine.specialist("hanging", Hanging(), concurrency=4)
    engine.specialist("render", StubExternalSpecialist([RenderEvent({"n": 1})], initial_polling_interval_seconds=SOON))
    async with engine.worker(concurrency=8, grace=0):
        for _ in range(20):
            await engine.enqueue("hanging")
        async with asyncio.timeout(BOUND):
            await hangs.wait()
        task = await engine.enqueue("render")
        assert await engine.result(task, timeout=BOUND) == {"n": 1}


async def test_a_poll_that_takes_too_long_is_a_poll_that_raised(engine: Engine) -> None:
    class Slow(Gate):
        async def poll(self, external_job_id: str) -> Any:
            if self.polls == 0:
                self.polls = 1
                await asyncio.Event().wait()
            return RenderEvent({"n": 1})

    engine.specialist("render", Slow(), timeout=3)
    async with engine.worker():
        task = await engine.enqueue("render")
        assert await engine.result(task, timeout=BOUND) == {"n": 1}
    (job,) = (await engine.kernel.external_jobs.list(every=True)).jobs
    assert job.raised == 1


async def test_a_callback_resolves_the_job_of_a_workflow(engine: Engine) -> None:
    tokens: list[str] = []

    class Calling(Gate):
        async def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
            tokens.append(ctx.callback_token)
            return ExternalProductionHandle("job-1", 3600)

    engine.specialist("film.Render", Calling())
    async with engine.worker():
        run = await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": "dawn"})

        async def handed_off() -> bool:
            return len((await engine.kernel.external_jobs.list()).jobs) == 1

        await until(handed_off)
        await engine.kernel.external_jobs.resolve(tokens[0], {"url": "called.png"})
        assert await engine.run_result(run, timeout=BOUND) == {"url": "called.png"}


async def test_the_polling_loop_starts_polls_and_stops(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    engine.specialist("render", gate)
    loop = ExternalPollingLoop(engine, tick_seconds=0.5)
    with caplog.at_level(logging.INFO, "treadle"):
        await loop.start()
        task = await engine.enqueue("render")
        await polled(gate, 2)
        gate.done = True
        assert await engine.result(task, timeout=BOUND) == {"url": "done.png"}
        await loop.stop(timeout=5)
        await loop.stop()
    assert "external_polling_loop.started tick_seconds=0.5" in caplog.text
    assert "external_polling_loop.stopped" in caplog.text


async def test_stopping_waits_for_polls_in_flight(engine: Engine) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    class Waiting(Gate):
        async def poll(self, external_job_id: str) -> Any:
            begun.set()
            await may_end.wait()
            return RenderEvent({"n": 1})

    engine.specialist("render", Waiting())
    loop = ExternalPollingLoop(engine)
    await loop.start()
    task = await engine.enqueue("render")
    async with asyncio.timeout(BOUND):
        await begun.wait()
        stopping = asyncio.ensure_future(loop.stop(timeout=30))
        may_end.set()
        await stopping
    assert (await engine.kernel.reads.get_task(task)).state == "completed"


async def test_the_render_farm_of_the_examples(engine: Engine, tmp_path: Path) -> None:
    farms, handlers = load_example("render_farm", "farm"), load_example("render_farm", "handlers")
    farm = farms.Farm(tmp_path / "farm.json")
    server = farms.make_server(farm)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        engine.specialist("film.Render", handlers.RenderFarm(f"http://127.0.0.1:{server.server_port}", interval=SOON))
        wish = {"frames": 2, "seconds_per_frame": 0.1}
        async with engine.worker():
            good, bad, lost = [await engine.enqueue("film.Render", wish | more) for more in ({}, {"fail_at": 1}, {"frames": 999})]
            assert (await engine.result(good, timeout=BOUND))["frames"] == 2
            with pytest.raises(TaskFailed, match="failed at frame"):
                await engine.result(bad, timeout=BOUND)

            async def dispatched() -> bool:
                return bool((await engine.kernel.external_jobs.list()).jobs)

            await until(dispatched)
            (job,) = (await engine.kernel.external_jobs.list()).jobs
            farm.forget(job.external_job_id)
            with pytest.raises(TaskFailed, match="does not know"):
                await engine.result(lost, timeout=BOUND)
        assert (await engine.kernel.reads.get_task(lost)).error_code == "external_job_lost"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
async def test_encoded_jobs_work_with_the_codec_and_are_only_reported_without_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    gate = Gate()
    async with Engine(url, settings=Settings(), codec=Zlib()) as encoded:
        encoded.specialist("render", gate)
        async with encoded.worker():
            task = await encoded.enqueue("render")
            await polled(gate, 2)
            gate.done = True
            assert await encoded.result(task, timeout=BOUND) == {"url": "done.png"}
        (job,) = (await encoded.kernel.external_jobs.list(every=True)).jobs
        assert job.external_job_id == "job-1"
        assert (await encoded.kernel.verify()).problems == ()
    async with Engine(url, settings=Settings()) as bare:
        assert (await bare.kernel.verify()).problems == ()
        assert await bare.kernel.external_upkeep.rebuild_page() == ExternalJobsRebuilt(records=1, changed=0, next_before=None)
        (job,) = (await bare.kernel.external_jobs.list(every=True)).jobs
        assert (job.state, "codec" in str(job.failure_detail)) == ("unreadable", True)


async def test_a_function_is_found_although_servers_offer_specialists_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    serving, asking = make_engine(url), make_engine(url)
    serving.specialist("film.Render", StubExternalSpecialist())
    serving.specialist("film.Render", StubExternalSpecialist(), scope="fast")

    @serving.function("double")
    async def double(payload: Any, ctx: Any) -> Any:
        return payload["n"] * 2

    async with serving, serving.worker(), asking:
        assert [name for name, _ in await asking.kernel.functions.list_known() if name == "double"] == ["double"]
        run = await asking.start_function("double", {"n": 2})
        assert await asking.run_result(run, timeout=BOUND) == 4


async def test_an_unreadable_store_does_not_count_as_a_specialist_failure() -> None:
    refusing = Refusing(list_transitions=2)
    engine = Engine("memory://", settings=Settings(), store_of=refusing.store_of)

    class Render(StubExternalSpecialist):
        async def find(self, token: str) -> None:
            """The job did not get there."""

    specialist = Render(start_outcome={"url": "film"})
    async with engine:
        made = await engine.enqueue("film.Render", {})
        (queue_id,) = await engine.kernel.store.tasks.list_queues()
        (task,) = await engine.kernel.store.tasks.claim([queue_id], "dead", 60_000, 1)
        await engine.kernel.external_jobs.begin(task, task.claim)  # a worker that dies before it has submitted the job
        await engine.kernel.store.tasks.expire_leases_of(["dead"])
        engine.specialist("film.Render", specialist)
        async with engine.worker():
            assert await engine.result(made, timeout=BOUND) == {"url": "film"}
    assert (len(specialist.started), refusing.refusals) == (1, [])


class Losing(Specialist):
    """A service that takes a job, fails to answer `misses` times, and has it when asked."""

    def __init__(self, misses: int = 1, *, found: bool = True) -> None:
        self.misses, self.found = misses, found
        self.started: list[str] = []
        self.asked: list[str] = []

    async def start(self, payload: dict[str, Any], ctx: Any) -> Any:
        self.started.append(ctx.dispatch_token)
        if len(self.started) <= self.misses:
            raise OSError("no answer")
        return {"url": "new.png"}

    async def find(self, token: str) -> Any:
        self.asked.append(token)
        return {"url": "found.png"} if self.found else None


@pytest.mark.parametrize("by", ["workflow", "function", "gathered function", "child", "grandchild"])
@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_retried_run_looks_for_its_lost_jobs_under_their_old_tokens(engine: Engine, by: str) -> None:
    lost, kept = Losing(), Losing(2, found=False)
    engine.specialist("film.Render", lost)
    engine.specialist("other", kept)

    @engine.function("film")
    async def film(payload: Any, ctx: Any) -> Any:
        if by != "gathered function":
            return await ctx.external("film.Render", {"scene": "dawn"})
        return (await ctx.gather(ctx.external("film.Render", {}), ctx.external("other", {})))[0]

    @engine.function("studio")
    async def studio(payload: Any, ctx: Any) -> Any:
        return await (await ctx.start("film", {})).result()

    @engine.function("company")
    async def company(payload: Any, ctx: Any) -> Any:
        return await (await ctx.start("studio", {})).result()

    async with engine.worker():
        if by == "workflow":
            run = await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": "dawn"})
        else:
            run = await engine.start_function({"child": "studio", "grandchild": "company"}.get(by, "film"), {})
        for _ in range(2 if by == "gathered function" else 1):
            with pytest.raises(RunFailed, match="no answer"):
                await engine.run_result(run, timeout=BOUND)
            await engine.runs.retry(run.id, actor="ada")
        assert await engine.run_result(run, timeout=BOUND) == {"url": "found.png"}
    assert (len(lost.started), lost.asked) == (1, lost.started)
    if by == "gathered function":
        assert (len(kept.started), kept.asked) == (3, kept.started[:2])
    assert (await engine.kernel.effects.list()).effects == []
