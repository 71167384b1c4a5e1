"""Metrics of a real engine at work: the text is read back by Prometheus's own parser, and every number in it is exact."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND
from tests.workers.harness import Events

from treadle import Engine, ExternalProductionHandle, NonRetryable, Production, TaskFailed, TaskSpec
from treadle.engine.metric_table import MAX_LABEL_VALUES, METRICS, OTHER
from treadle.engine.metrics import FRESH_FOR
from treadle.kernel.telemetry.events import LeasesExpired, LoopError, TaskSettled, TaskTaken
from treadle.kernel.telemetry.observer import AttemptEnded, StoreCalled
from treadle.model.errors import StoreUnavailable
from treadle.settings import Settings
from treadle.testing import ManualClock, StubExternalSpecialist

Sample = tuple[str, tuple[tuple[str, str], ...]]


class Scene:
    """An engine with a clock that stands still, and what it says and counts."""

    def __init__(self, namespace: str = "default") -> None:
        self.clock = ManualClock()
        self.events = Events()
        self.engine = Engine("memory://", settings=Settings(namespace=namespace), clock=self.clock, emit=self.events)

    async def samples(self) -> dict[Sample, float]:
        """All that a scrape shows now, by name and labels."""
        self.clock.advance(FRESH_FOR)
        text, _ = await self.engine.metrics.render()
        families = read_text(text.decode())
        return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}

    async def value(self, name: str, /, **labels: str) -> float | None:
        return (await self.samples()).get((name, tuple(sorted(labels.items()))))

    async def settled(self, transition: str, count: int = 1) -> None:
        await self.events.heard(TaskSettled, count, transition=transition, kind="handler")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    async with made.engine:
        yield made


async def test_work_is_counted_exactly(scene: Scene):
    engine, clock = scene.engine, scene.clock
    metrics = engine.metrics
    assert engine.metrics is metrics

    @engine.handler("fine")
    async def fine(payload):
        clock.advance(0.25)

    @engine.handler("flaky", retry=1)
    async def flaky(payload, ctx):
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    @engine.handler("broken")
    def broken(payload):
        raise NonRetryable("never")

    await engine.enqueue_many([TaskSpec(name="fine"), TaskSpec(name="fine"), TaskSpec(name="flaky", task_list="other")])
    await engine.enqueue("broken", unique_key="one")
    assert (await engine.enqueue("broken", unique_key="one")).created is False
    assert await scene.value("treadle_enqueued_total", kind="handler", task_list="default") == 3
    assert await scene.value("treadle_queue_depth", namespace="default", task_list="default", state="ready") == 3

    async with engine.worker(task_lists=("default", "other"), concurrency=1):
        await scene.settled("retry")
        clock.advance(10)
        await scene.settled("succeed", 3)
        await scene.settled("fail")
        found = await scene.samples()

    def of(name: str, /, **labels: str) -> float | None:
        return found.get((name, tuple(sorted(labels.items()))))

    mine = {"kind": "handler", "task_list": "default"}
    assert of("treadle_enqueued_total", kind="handler", task_list="other") == 1
    assert of("treadle_claims_total", **mine) == 3
    assert of("treadle_claims_total", kind="handler", task_list="other") == 2
    assert of("treadle_settles_total", **mine, outcome="succeeded") == 2
    assert of("treadle_settles_total", **mine, outcome="failed") == 1
    assert of("treadle_settles_total", kind="handler", task_list="other", outcome="retry") == 1
    assert of("treadle_settles_total", kind="handler", task_list="other", outcome="succeeded") == 1
    assert of("treadle_retries_total", kind="handler", task_list="other") == 1
    assert of("treadle_retries_total", **mine) is None
    ran = {"kind": "handler", "name": "fine", "outcome": "succeeded"}
    assert of("treadle_handler_duration_seconds_count", **ran) == 2
    assert of("treadle_handler_duration_seconds_sum", **ran) == 0.5
    assert of("treadle_handler_duration_seconds_bucket", **ran, le="0.1") == 0
    assert of("treadle_handler_duration_seconds_bucket", **ran, le="0.5") == 2
    assert of("treadle_handler_duration_seconds_count", kind="handler", name="broken", outcome="failed") == 1
    assert of("treadle_handler_duration_seconds_count", kind="handler", name="flaky", outcome="retry") == 1
    assert of("treadle_start_delay_seconds_count", task_list="default") == 3
    assert of("treadle_start_delay_seconds_count", task_list="other") == 1, "a retry is no start"
    assert of("treadle_dead_letters", namespace="default") == 1
    assert of("treadle_queue_depth", namespace="default", task_list="default", state="ready") == 0
    assert of("treadle_oldest_ready_age_seconds", namespace="default", task_list="default") == 0
    assert of("treadle_desired_workers", namespace="default", task_list="default") == 0
    assert of("treadle_servers", state="running") == 1
    assert of("treadle_store_up") == 1
    settles = sum(value for (name, _), value in found.items() if name == "treadle_settles_total")
    assert of("treadle_settle_duration_seconds_count") == settles - _settled_by_themselves(scene)
    commits = of("treadle_store_duration_seconds_count", operation="commit")
    assert commits == of("treadle_commit_units_count")
    assert commits is not None
    assert commits > 0
    assert of("treadle_store_duration_seconds_count", operation="claim")
    assert of("treadle_store_duration_seconds_count", operation="wake")
    assert of("treadle_lease_losses_total") == of("treadle_takeovers_total") == of("treadle_dropped_results_total") == 0


def _settled_by_themselves(scene: Scene) -> int:
    """The engine's own handlers commit their settle with what they did."""
    return len([each for each in scene.events.of(TaskSettled) if each.kind == "engine.prune"])


async def test_ready_tasks_raise_the_oldest_age_and_the_desired_workers(scene: Scene):
    engine = scene.engine
    engine.metrics  # noqa: B018
    await engine.enqueue("waits", task_list="slow")
    scene.clock.advance(40)
    await engine.enqueue("later", task_list="slow", delay=3600)
    found = await scene.samples()
    place = (("namespace", "default"), ("task_list", "slow"))
    assert found["treadle_oldest_ready_age_seconds", place] == 40 + FRESH_FOR
    assert found["treadle_desired_workers", place] == (await engine.kernel.reads.desired_workers("slow")).desired == 1
    depths = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "treadle_queue_depth"}
    assert depths == {"ready": 1, "running": 0, "waiting": 1, "blocked": 0}


async def test_a_takeover_is_counted(scene: Scene):
    engine = scene.engine
    engine.metrics  # noqa: B018

    @engine.handler("held")
    async def held(payload):
        return {}

    task = await engine.enqueue("held")
    queues = list(await engine.kernel.store.tasks.list_queues())
    assert await engine.kernel.store.tasks.claim(queues, "a dead worker", 5000, 1)
    async with engine.worker():
        scene.clock.advance(6)
        await scene.events.heard(LeasesExpired)
        await scene.events.heard(TaskSettled, task_id=task.id)
        assert await scene.value("treadle_takeovers_total") == 1


async def test_a_lost_lease_is_counted_and_the_attempt_was_stopped(scene: Scene):
    engine = scene.engine
    engine.metrics  # noqa: B018

    @engine.handler("endless")
    async def endless(payload):
        await asyncio.Event().wait()

    task = await engine.enqueue("endless")
    async with engine.worker():
        await scene.events.heard(TaskTaken, task_id=task.id)
        engine.kernel.telemetry.add(scene.events)
        await engine.cancel(task)
        await scene.events.heard(AttemptEnded)
        assert await scene.value("treadle_lease_losses_total") == 1
        ended = {"kind": "handler", "name": "endless", "outcome": "stopped"}
        assert await scene.value("treadle_handler_duration_seconds_count", **ended) == 1


async def test_renewals_are_measured(scene: Scene):
    engine = scene.engine
    done = asyncio.Event()
    engine.metrics  # noqa: B018
    engine.kernel.telemetry.add(scene.events)

    @engine.handler("slow")
    async def slow(payload):
        await done.wait()

    task = await engine.enqueue("slow")
    async with engine.worker(lease=4):
        await scene.events.heard(TaskTaken, task_id=task.id)
        scene.clock.advance(2)
        await scene.events.heard(StoreCalled, operation="renew", count=1)
        assert await scene.value("treadle_store_duration_seconds_count", operation="renew") == 1
        done.set()
        await scene.settled("succeed")


async def test_the_delay_of_external_polls_is_measured(scene: Scene):
    engine = scene.engine
    engine.metrics  # noqa: B018
    still = ExternalProductionHandle("job-1", 1)
    engine.specialist("render", StubExternalSpecialist([still, OSError("gone"), Production({"url": "x"})]))
    task = await engine.enqueue("render")
    async with engine.worker():
        await scene.events.heard(TaskSettled, task_id=task.id, transition="hand_off")
        for count, late in ((1, 3.0), (2, 1.0)):
            scene.clock.advance(late)
            await scene.events.heard(TaskSettled, count, task_id=task.id, transition="still_working")
        scene.clock.advance(1.5)
        await scene.events.heard(TaskSettled, task_id=task.id, transition="succeed")
        assert await scene.value("treadle_poll_lateness_seconds_count", name="render") == 3
        assert await scene.value("treadle_poll_lateness_seconds_sum", name="render") == 2.0 + 0.0 + 0.5
        assert await scene.value("treadle_poll_errors_total", name="render") == 1
        outcomes = ("awaiting_external", "still_working", "succeeded")
        labels = {"kind": "handler", "task_list": "default"}
        assert [await scene.value("treadle_settles_total", **labels, outcome=each) for each in outcomes] == [1, 2, 1]


async def test_runs_and_their_steps_are_counted(scene: Scene):
    engine = scene.engine
    engine.metrics  # noqa: B018

    @engine.function("hello")
    async def hello(payload, ctx):
        return await ctx.step(lambda: {"n": 1}, name="one")

    async with engine.worker():
        run = await engine.start_function("hello")
        await engine.run_result(run, timeout=BOUND)
        assert await scene.value("treadle_runs", namespace="default", state="completed") == 1
        assert await scene.value("treadle_enqueued_total", kind="function", task_list="default") == 1
        assert (
            await scene.value("treadle_handler_duration_seconds_count", kind="function", name="hello@1", outcome="succeeded") == 1
        )


async def test_names_are_bounded(scene: Scene):
    metrics, engine = scene.engine.metrics, scene.engine
    for number in range(MAX_LABEL_VALUES + 20):
        engine.kernel.emit(TaskSettled("id", f"n{number}", "succeed", 1, 1.0, kind="handler", task_list=f"list{number}"))
    found = await scene.samples()
    lists = {dict(labels)["task_list"]: value for (name, labels), value in found.items() if name == "treadle_settles_total"}
    assert len(lists) == MAX_LABEL_VALUES + 1
    assert lists[OTHER] == 20
    assert lists["list0"] == 1
    assert len(metrics._children) <= MAX_LABEL_VALUES, "what is remembered is bounded too"


async def test_lists_in_the_store_are_bounded_and_their_depths_add_up(scene: Scene):
    engine = scene.engine
    await engine.enqueue_many(TaskSpec(name="x", task_list=f"l{number}") for number in range(MAX_LABEL_VALUES + 5))
    found = await scene.samples()
    ready = [value for (name, labels), value in found.items() if name == "treadle_queue_depth" and dict(labels)["state"] == "ready"]
    assert len(ready) == MAX_LABEL_VALUES + 1
    assert sum(ready) == MAX_LABEL_VALUES + 5


async def test_two_engines_of_a_process_have_separate_metrics():
    one, two = Scene(), Scene("two")
    async with one.engine, two.engine:
        assert one.engine.metrics.registry is not two.engine.metrics.registry
        await one.engine.enqueue("mine")
        assert await one.value("treadle_enqueued_total", kind="handler", task_list="default") == 1
        assert await two.value("treadle_enqueued_total", kind="handler", task_list="default") is None
        assert await two.value("treadle_queue_depth", namespace="default", task_list="default", state="ready") is None


async def test_a_namespace_shows_only_its_own(tmp_path):
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    async with (
        Engine(url, settings=Settings(namespace="a")) as one,
        Engine(url, settings=Settings(namespace="b")) as two,
    ):
        await one.enqueue("x")
        text, _ = await two.metrics.render()
        assert 'namespace="a"' not in text.decode()


async def test_concurrent_scrapes_share_one_read_of_the_store(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    looks = []
    count_dead_letters = scene.engine.kernel.store.dead_letters.count

    async def counted(which):
        looks.append(which)
        return await count_dead_letters(which)

    monkeypatch.setattr(scene.engine.kernel.store.dead_letters, "count", counted)
    await asyncio.gather(*(scene.engine.metrics.render() for _ in range(50)))
    assert len(looks) == 1
    scene.clock.advance(FRESH_FOR / 2)
    await scene.engine.metrics.render()
    assert len(looks) == 1
    scene.clock.advance(FRESH_FOR / 2)
    await scene.engine.metrics.render()
    assert len(looks) == 2


async def test_without_a_store_there_are_still_counters_and_no_stale_gauges(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    await scene.engine.enqueue("x")
    assert await scene.value("treadle_store_up") == 1

    async def down():
        raise StoreUnavailable("down")

    monkeypatch.setattr(scene.engine.kernel.store.tasks, "list_depths", down)
    scene.engine.kernel.emit(LoopError("waker", "boom"))
    found = await scene.samples()
    assert found["treadle_store_up", ()] == 0
    assert found["treadle_loop_errors_total", (("loop", "waker"),)] == 1
    assert not any(name == "treadle_queue_depth" for name, _ in found)


async def test_a_failing_store_is_counted(scene: Scene):
    scene.engine.metrics  # noqa: B018
    assert scene.engine.kernel.telemetry.observe is not None
    scene.engine.kernel.telemetry.observe(StoreCalled("commit", 0.5, 0, failed=True))
    found = await scene.samples()
    assert found["treadle_store_errors_total", (("operation", "commit"),)] == 1
    assert found["treadle_store_duration_seconds_sum", (("operation", "commit"),)] == 0.5
    assert found["treadle_commit_units_count", ()] == 0


async def test_openmetrics_is_rendered_on_request(scene: Scene):
    await scene.engine.enqueue("x")
    text, kind = await scene.engine.metrics.render("application/openmetrics-text; version=1.0.0, text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    names = {family.name for family in read_openmetrics(text.decode())}
    assert {"treadle_queue_depth", "treadle_lease_losses"} <= names
    _, kind = await scene.engine.metrics.render(None)
    assert kind.startswith("text/plain")


async def test_every_metric_is_in_the_table_and_follows_the_naming_rule(scene: Scene):
    shown = {metric.name for metric in METRICS}
    async with scene.engine.worker():
        found = {family.name for family in read_text((await scene.engine.metrics.render())[0].decode())}
    assert {name.removesuffix("_total").removesuffix("_created") for name in found} <= shown
    for metric in METRICS:
        assert metric.name.startswith("treadle_")
        assert not metric.name.endswith(("_total", "_ms", "_milliseconds"))
        assert metric.help.endswith(".")


async def test_disabled_telemetry_installs_no_observer_and_no_spans(scene: Scene):
    await scene.engine.enqueue("x")
    assert scene.engine.kernel.telemetry.observe is None
    assert scene.engine.kernel.telemetry.spans is None


def test_telemetry_libraries_are_not_loaded_unless_used():
    code = """
import sys
import treadle.engine.worker_host
print([name for name in sys.modules if name.startswith(("prometheus", "opentelemetry"))])
"""
    assert say(code) == "[]"


def test_without_the_extras_the_errors_name_them():
    code = """
import asyncio, sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
from treadle import Engine
from treadle.settings import Settings
try:
    Engine("memory://").metrics
except Exception as error:
    print(error.code, error)
try:
    asyncio.run(Engine("memory://", settings=Settings(otlp_endpoint="http://127.0.0.1:1")).open())
except Exception as error:
    print(error.code, error)
"""
    metrics, traces = say(code).splitlines()
    assert metrics.startswith("missing_dependency ")
    assert "treadle[metrics]" in metrics
    assert traces.startswith("missing_dependency ")
    assert "treadle[otel]" in traces


def say(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


async def test_a_failing_observer_is_removed_and_does_not_affect_tasks(scene: Scene, caplog: pytest.LogCaptureFixture):
    def bad(event):
        raise RuntimeError("a bug")

    scene.engine.kernel.telemetry.add(bad)
    task = await scene.engine.enqueue("x")
    assert (await scene.engine.kernel.reads.get_task(task)).name == "x"
    assert scene.engine.kernel.telemetry.observe is None
    assert "an observer failed" in caplog.text


async def test_remote_workers_are_counted_where_they_are_served(scene: Scene):
    engine = scene.engine
    engine.metrics  # noqa: B018
    outside = engine.kernel.remote_workers
    await engine.enqueue("ship", task_list="far")
    server = await outside.register("curl", handlers=["ship"], task_lists=["far"])
    (claimed,) = await outside.claim(server.id)
    scene.clock.advance(1.5)
    await outside.complete(server.id, claimed.task.id, claimed.claim_version)
    found = await scene.samples()
    place = (("kind", "handler"), ("task_list", "far"))
    assert found["treadle_claims_total", place] == 1
    assert found["treadle_settles_total", (place[0], ("outcome", "succeeded"), place[1])] == 1
    ran = (("kind", "handler"), ("name", "ship"), ("outcome", "succeeded"))
    assert found["treadle_handler_duration_seconds_sum", ran] == 1.5


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_gauges_are_the_same_on_every_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    async with make_engine(url_of(kind, request, tmp_path)) as engine:

        @engine.handler("broken")
        async def broken(payload):
            raise NonRetryable("never")

        @engine.function("hello")
        async def hello(payload):
            return {}

        async with engine.worker():
            task = await engine.enqueue("broken")
            with pytest.raises(TaskFailed):
                await engine.result(task, timeout=BOUND)
            await engine.run_result(await engine.start_function("hello"), timeout=BOUND)
            await engine.enqueue("nobody", task_list="idle")
            await engine.enqueue("nobody", task_list="idle", delay=3600)
            text, _ = await engine.metrics.render()
        shown = text.decode().splitlines()
        for line in (
            'treadle_queue_depth{namespace="default",state="ready",task_list="idle"} 1.0',
            'treadle_queue_depth{namespace="default",state="waiting",task_list="idle"} 1.0',
            'treadle_queue_depth{namespace="default",state="ready",task_list="default"} 0.0',
            'treadle_desired_workers{namespace="default",task_list="idle"} 1.0',
            'treadle_dead_letters{namespace="default"} 1.0',
            'treadle_runs{namespace="default",state="completed"} 1.0',
            'treadle_servers{state="running"} 1.0',
            "treadle_store_up 1.0",
        ):
            assert line in shown
