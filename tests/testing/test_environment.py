"""Tests of programs built on Treadle: the environment in memory, replays of recorded runs, and the pytest plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.commands import Treadle
from tests.limits import BOUND

from treadle import Engine, RunFailed
from treadle.engine.worker_host import WorkerHost
from treadle.model.errors import InvalidInput
from treadle.testing import BlockingEnvironment, Environment, ReplayFailed, Stalled, record, replay, replay_async
from treadle.testing.recordings import read_recording


def shop() -> tuple[Engine, list[Any]]:
    """A program: a flaky mail handler, and a function that sleeps, asks, calls and waits."""
    engine, sent = Engine("sqlite:////nowhere/shop.db"), []

    @engine.handler("mail", retry=3)
    async def mail(payload: dict[str, Any]) -> dict[str, Any]:
        sent.append(payload["to"])
        if sent.count(payload["to"]) < 3:
            raise RuntimeError("SMTP is down")
        return {"mailed": payload["to"]}

    @engine.handler("parent")
    async def parent(payload: dict[str, Any]) -> dict[str, Any]:
        return await engine.result(await engine.enqueue("mail", {"to": "child"}))

    @engine.function("order")
    async def order(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.sleep(timedelta(days=3))
        asked = await ctx.approval("Ship?", context={"price": 1}, edits=True)
        mailed = await ctx.call("mail", {"to": payload["to"]})
        told = await ctx.wait_for("paid", timeout=3600)
        return {"price": asked["context"]["price"], **mailed, "paid": told}

    return engine, sent


async def test_work_runs_only_when_the_test_starts_it() -> None:
    engine, sent = shop()
    async with Environment(engine) as env:
        task = await engine.enqueue("mail", {"to": "ada", "cc": "bob"}, delay=60, priority=3)
        await env.drain()
        assert not sent
        await env.assert_enqueued("mail", {"to": "ada"}, count=1)
        await env.assert_not_enqueued("mail", {"to": "eve"})
        [stored] = await env.enqueued()
        assert (stored.payload, stored.state, stored.due_in, stored.priority) == ({"to": "ada", "cc": "bob"}, "pending", 60.0, 3)
        await env.advance(59.999)
        assert not sent
        await env.advance(0.001)
        assert sent == ["ada"]
        assert await env.result(task) == {"mailed": "ada"}
        assert sent == ["ada"] * 3
        with pytest.raises(AssertionError, match=r"Expected a task 'mail' with {'to': 'eve'}; found 0. Stored: mail {'to': 'ada'"):
            await env.assert_enqueued("mail", {"to": "eve"})
    assert engine.kernel.settings.store != "memory://"  # it is back on its own store


async def test_a_handler_may_wait_for_another_task() -> None:
    engine, sent = shop()
    sent += ["child"] * 2
    async with Environment(engine) as env:
        assert await env.result(await engine.enqueue("parent")) == {"mailed": "child"}


async def test_tests_control_approvals_timers_and_signals() -> None:
    engine, sent = shop()
    sent += ["ada"] * 2
    async with Environment(engine) as env:
        run = await engine.start_function("order", {"to": "ada"})
        began_at = env.clock.now()
        with pytest.raises(Stalled, match=r"does not end by itself: waits for a decision on approval"):
            await env.result(run)
        assert env.clock.now() - began_at == timedelta(days=3).total_seconds() * 1000  # no further than it can go by itself
        with pytest.raises(AssertionError, match=r"Expected one pending approval of .*; found: none"):
            await env.approve("01a3185c-5000-7d07-acd8-000000000000")
        await env.approve(run, actor="ada", edits={"price": 2})
        await engine.signal(run, "paid", "cash")
        assert await env.result(run) == {"price": 2, "mailed": "ada", "paid": "cash"}
        other = await engine.start_function("order", {"to": "ada"})
        await env.advance(days=3)
        await env.deny(other, reason="too late")
        with pytest.raises(RunFailed, match="too late"):
            await env.result(other)


async def test_a_rate_limit_passes_with_time() -> None:
    engine = Engine("memory://")
    started: list[int] = []

    @engine.handler("call")
    async def call(payload: dict[str, Any]) -> None:
        started.append(env.clock.now())

    async with Environment(engine) as env:
        await engine.kernel.lists.limit_rate("default", "call", 1, burst=1)
        for _ in range(3):
            await engine.enqueue("call")
        await env.advance(10)
        assert [at - started[0] for at in started] == [0, 1000, 2000]


async def test_the_rate_of_a_key_passes_with_time_for_tasks_and_steps() -> None:
    engine = Engine("memory://")
    started: list[int] = []

    @engine.handler("call", limit_key="api")
    async def call(payload: dict[str, Any]) -> None:
        started.append(env.clock.now())

    @engine.function("step")
    async def step(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.step(call, {}, limit_key="api")

    async with Environment(engine) as env:
        await engine.kernel.lists.limit_key_rate("api", 1, burst=1)
        await env.drain()  # stores the handler's key
        tasks = [await engine.enqueue("call") for _ in range(2)]
        run = await engine.start_function("step", {})
        await env.result(tasks[1])
        await env.result(run)
        assert sorted(at - started[0] for at in started) == [0, 1000, 2000]
        await engine.enqueue("missing", limit_key="api")
        behind = await engine.enqueue("missing", limit_key="api")
        with pytest.raises(Stalled):
            await env.result(behind)


async def test_a_task_that_becomes_due_while_a_worker_stops_is_not_stalled() -> None:
    engine, sent = shop()

    class PassingTime(Environment):
        """As on a store whose clock does not stand still: time passes, and due tasks wake, between two workers."""

        def make_host(self) -> WorkerHost:
            host = super().make_host()
            stop = host.stop

            async def stopped(**options: Any) -> None:
                await stop(**options)
                self.clock.advance(timedelta(days=1))
                await self.engine.kernel.store.tasks.wake(1000)

            host.stop = stopped  # type: ignore[method-assign]
            return host

    async with PassingTime(engine) as env:
        task = await engine.enqueue("mail", {"to": "ada"})
        assert await env.result(task) == {"mailed": "ada"}
        assert sent == ["ada"] * 3
        with pytest.raises(Stalled):
            await env.result(await engine.enqueue("missing"))


async def test_results_of_handles_have_their_types() -> None:
    engine = Engine("memory://")

    @engine.task
    async def due(at: datetime, days: int) -> datetime:
        return at + timedelta(days=days)

    async with Environment(engine) as env:
        handle = await engine.enqueue(due, datetime(2027, 1, 1, tzinfo=UTC), days=3)
        assert await env.result(handle) == datetime(2027, 1, 4, tzinfo=UTC)
        await env.assert_enqueued("due", {"at": "2027-01-01T00:00:00Z", "days": 3})
    with BlockingEnvironment(engine) as blocking:
        waiting = blocking.engine.enqueue(due, datetime(2027, 1, 1, tzinfo=UTC), days=1)
        assert blocking.result(waiting) == datetime(2027, 1, 2, tzinfo=UTC)


def test_the_environment_works_without_an_event_loop() -> None:
    engine, sent = shop()
    sent += ["ada"] * 2
    with BlockingEnvironment(engine) as env:
        run = env.engine.start_function("order", {"to": "ada"})
        env.advance(days=3)
        env.approve()
        env.engine.signal(run, "paid")
        env.assert_enqueued("mail", {"to": "ada"})
        assert env.result(run)["mailed"] == "ada"


# replays


async def recorded_order(engine: Engine, until: str) -> Any:
    """The recording of an order: `asked`, or `done`."""
    async with Environment(engine) as env:
        run = await engine.start_function("order", {"to": "ada"})
        await env.advance(days=3)
        if until == "done":
            await env.approve()
            await engine.signal(run, "paid", "x" * 100_000)  # stored as a blob
            await env.result(run)
        return await record(engine, run)


@pytest.mark.parametrize("until", ["asked", "done"])
async def test_unchanged_code_replays(until: str, tmp_path: Path) -> None:
    engine, sent = shop()
    recording = await recorded_order(engine, until)
    sent.clear()
    path = tmp_path / "order.json"
    path.write_text(recording.text())
    assert read_recording(path) == recording
    await replay_async(engine, path)
    assert not sent  # nothing but the function's own code is executed


@pytest.mark.parametrize("operation", ["step", "effect", "gather"])
async def test_a_replay_does_not_execute_a_step_that_was_in_progress(operation: str) -> None:
    engine, executed = Engine("memory://"), []

    @engine.function("order")
    async def order(payload: Any, ctx: Any) -> Any:
        await ctx.step(int, name="first")
        charge = {
            "step": lambda: ctx.step(lambda: executed.append(1)),
            "effect": lambda: ctx.effect("charge", lambda: executed.append(1)),
            "gather": lambda: ctx.gather(ctx.step(lambda: executed.append(1)), ctx.sleep(1)),
        }[operation]
        await charge()

    async with Environment(engine) as env:
        run = await engine.start_function("order")
        await env.result(run)
        recording = await record(engine, run)
    assert executed == [1]
    await replay_async(engine, msgspec.structs.replace(recording, state="running", steps=recording.steps[:1]))
    assert executed == [1]


CHANGES = {
    "a step before": ("asked", "await ctx.step(int); await ctx.sleep(259200)", "recorded sleep .*, now step int"),
    "a step gone": ("asked", "return 1", "ends before sleep|recorded sleep .* now the end"),
    "another call": ("done", "await ctx.sleep(259200); await ctx.approval('Ship?'); await ctx.call('post', {})", "now call post"),
    "a step after the recording": ("asked", "await ctx.sleep(259200); await ctx.approval('Ship?'); await ctx.step(exit)", None),
    "another result": (
        "done",
        "await ctx.sleep(259200); await ctx.approval('Ship?'); await ctx.call('mail', {}); await ctx.wait_for('paid'); return 5",
        "now it returns 5",
    ),
    "another end": (
        "done",
        "await ctx.sleep(259200); await ctx.approval('Ship?'); await ctx.call('mail', {}); await ctx.wait_for('paid'); 1 / 0",
        "now the function raises ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_changed_code_is_rejected_if_it_breaks_recorded_runs(change: str) -> None:
    until, code, problem = CHANGES[change]
    recording = await recorded_order(shop()[0], until)
    scope: dict[str, Any] = {}
    exec(f"async def order(payload, ctx):\n    {code}", scope)
    changed = Engine("memory://")
    changed.function("order")(scope["order"])
    if problem is None:
        await replay_async(changed, recording)
    else:
        with pytest.raises(ReplayFailed, match=problem):
            await replay_async(changed, recording)


def test_replays_name_missing_functions_and_bad_formats(tmp_path: Path) -> None:
    engine = Engine("memory://")
    given = {"run_id": "r", "function": "order", "version": 2, "state": "completed", "payload": {}, "steps": []}
    with pytest.raises(ReplayFailed, match=r"order@2 is not registered"):
        replay(engine, given)
    with pytest.raises(InvalidInput, match="format 9"):
        replay(engine, {**given, "format": 9})
    (path := tmp_path / "x.json").write_text(json.dumps({"run_id": "r"}))
    with pytest.raises(InvalidInput, match="not a recording of a run"):
        replay(engine, path)


def test_the_record_command_writes_a_replayable_history(treadle: Treadle) -> None:
    engine = Engine(f"sqlite:///{treadle.folder}/treadle.db")

    @engine.function("double")
    async def double(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.step(lambda: payload["n"] * 2, name="twice")

    with engine.blocking() as e:
        e.start_worker()
        run = e.start_function("double", {"n": 2})
        assert e.run_result(run, timeout=BOUND) == 4
    path = treadle.folder / "double.json"
    assert "double@1: 1 steps written to double.json" in treadle("functions", "record", run.id, "-o", "double.json").out
    replay(engine, path)
    assert treadle.json("functions", "record", run.id) == json.loads(path.read_text())
    again = treadle("functions", "record", run.id, "-o", "double.json")
    assert (again.code != 0, "double.json" in again.err) == (True, True)


# the plugin

SNIPPET = Path(__file__).parents[2] / "docs/snippets/test_orders.py"

PROGRAM = """
import pytest
from treadle import Engine

engine = Engine("sqlite:////nowhere/x.db")

@engine.handler("double")
def double(payload):
    return {"n": payload["n"] * 2}

@pytest.fixture
def treadle_app():
    return engine

def test_sync(treadle_env):
    task = treadle_env.engine.enqueue("double", {"n": 2}, delay=3600)
    treadle_env.assert_enqueued("double", {"n": 2})
    assert treadle_env.result(task) == {"n": 4}

def test_each_test_has_an_empty_store(treadle_env):
    assert treadle_env.enqueued() == []

@pytest.mark.asyncio
async def test_async(treadle_async_env):
    assert await treadle_async_env.result(await engine.enqueue("double", {"n": 3})) == {"n": 6}
"""


def test_the_pytest_plugin_provides_its_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "test_orders.py").write_text(SNIPPET.read_text())
    plugins = ["-p", "treadle.testing.pytest_plugin", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *plugins,
        "--rootdir",
        ".",
        "-c",
        "/dev/null",
        "test_program.py",
        "test_orders.py",
    ]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout
