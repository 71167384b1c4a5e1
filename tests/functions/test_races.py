"""Messages that reach a function at the worst moment: while it is suspended, pauses or continues as another run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import Process, Scene, function_scene, until
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle.kernel.store.units import PutRun
from treadle.model.errors import SignalTimeout

COLD, WARM = 0, 1000


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


class SlowInbox:
    """A store whose next answer to `list_messages` is on its way until the test lets it come."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.records = self
        self.slow = False
        self.asked, self.may_come = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner if hasattr(self._inner, name) else self._inner.records, name)

    async def list_messages(self, run_id: str, limit: int, after: int = 0) -> Any:
        found = await self._inner.records.list_messages(run_id, limit, after)
        if self.slow:
            self.asked.set()
            await self.may_come.wait()
        return found


def with_slow_inbox(process: Process) -> SlowInbox:
    slow = SlowInbox(process.engine.kernel.store)
    process.runner.runtime.store = slow  # type: ignore[misc, assignment]
    return slow


async def test_an_interrupted_read_of_the_inbox_consumes_no_message(scene: Scene):
    """One branch executes, another waits: a look has read the run, but not yet its mail, when the first has ended."""
    executes, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        executes.set()
        await may_end.wait()
        return "slow"

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.gather(ctx.step(slow), ctx.wait_for("go"))

    started = await scene.engine.start_function("f")
    process = scene.process()
    store = with_slow_inbox(process)
    turn = asyncio.create_task(process.turn())
    await executes.wait()
    await until(lambda: _sleeps(scene))
    assert await scene.engine.signal(started, "go", "now")
    store.slow = True
    scene.clock.advance(1)
    await store.asked.wait()
    store.slow = False
    may_end.set()
    await turn
    await process.quiet()
    assert await scene.engine.run_result(started) == ["slow", "now"]


async def _sleeps(scene: Scene) -> bool:
    return scene.clock.sleeping > 0


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_child_delayed_by_a_pause_starts_on_resume(scene: Scene, warm: int):
    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        return payload["n"] + 1

    executes, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        executes.set()
        await may_end.wait()
        return "slow"

    @scene.engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        handle = await ctx.start("child", {"n": 1})
        await ctx.step(slow)
        return await handle.result()

    started = await scene.engine.start_function("parent")
    process = scene.process(warm=warm)
    turn = asyncio.create_task(process.turn())
    await executes.wait()
    await scene.engine.runs.pause(started.id)
    may_end.set()
    await turn
    assert await scene.engine.kernel.store.runs.list_children(started.id) == []
    await scene.engine.runs.resume(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == 2


async def test_a_message_that_two_reads_return_is_consumed_once(scene: Scene):
    """A look brings a signal that another one has brought, and its branch has taken in and committed, since it was asked."""
    executes, may_end, heard = asyncio.Event(), asyncio.Event(), asyncio.Event()
    drivers: list[Any] = []

    async def slow() -> None:
        executes.set()
        await may_end.wait()

    async def hears() -> None:
        heard.set()

    async def listen(ctx: Any) -> Any:
        first = await ctx.wait_for("go")
        await ctx.step(hears)
        return [first, await ctx.wait_for("go")]

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        drivers.append(ctx._driver)
        return (await ctx.gather(ctx.step(slow), listen(ctx)))[1]

    started = await scene.engine.start_function("f")
    process = scene.process()
    store = with_slow_inbox(process)
    turn = asyncio.create_task(process.turn())
    await executes.wait()
    await until(lambda: _sleeps(scene))
    await scene.engine.signal(started, "go", 1)
    store.slow = True
    look = asyncio.create_task(drivers[0].inbox.refresh())
    await store.asked.wait()
    store.slow = False
    scene.clock.advance(1)
    await heard.wait()
    await until(lambda: _has(scene, started.id, "hears"))
    store.may_come.set()
    await look
    await scene.engine.signal(started, "go", 2)
    may_end.set()
    await turn
    await process.quiet()
    assert await scene.engine.run_result(started) == [1, 2]


async def _has(scene: Scene, run_id: str, name: str) -> bool:
    return any(each[1] == f"step {name}" for each in await scene.steps(run_id))


async def _removed_branch(ctx: Any) -> Any:
    return await ctx.gather(ctx.call("one"))


async def _shorter_branch(ctx: Any) -> Any:
    async def first() -> Any:
        return 1

    return await ctx.gather(first(), ctx.call("two"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (_removed_branch, "nondeterministic at 0: recorded a gather of 2, now a gather of 1"),
        (_shorter_branch, "nondeterministic at 0.0.0: recorded something else, now the end of the branch"),
    ],
)
async def test_a_branch_with_fewer_operations_is_detected_before_the_next_one(scene: Scene, changed: Any, said: str):
    followed: list[str] = []

    async def follow() -> None:
        followed.append("followed")

    codes = [lambda ctx: ctx.gather(ctx.call("one"), ctx.call("two")), changed]

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        got = await codes[0](ctx)
        await ctx.step(follow)
        return len(got)

    started = await scene.engine.start_function("f")
    process = scene.process(warm=COLD)
    await process.turn()
    old = codes.pop(0)
    await process.quiet(lambda name, payload: {"name": name})
    assert followed == []
    assert said in (await scene.engine.kernel.run_reads.why(started.id)).text
    codes.insert(0, old)
    scene.clock.advance(400)
    await process.quiet()
    assert await scene.engine.run_result(started) == 2
    assert followed == ["followed"]


@pytest.mark.postgres
@pytest.mark.parametrize("url", ALL)
async def test_unconsumed_signals_are_handed_to_the_continued_run(url: str, request: pytest.FixtureRequest, tmp_path: Path):
    async with make_engine(url_of(url, request, tmp_path)) as engine:

        @engine.function("listen")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            heard = [*payload.get("heard", []), await ctx.wait_for("go")]
            if len(heard) < 3:
                await ctx.continue_as_new({"heard": heard})
            return heard

        started = await engine.start_function("listen")
        for n in (1, 2, 3):
            await engine.signal(started, "go", n, idempotency_key=str(n) if n == 2 else None)
        async with engine.worker():
            assert await engine.run_result(started, timeout=BOUND) == [1, 2, 3]


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_a_signal_during_continue_as_new_is_not_lost(scene: Scene, warm: int):
    @scene.engine.function("listen")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        heard = [*payload.get("heard", []), await ctx.wait_for("go")]
        if len(heard) < 3:
            await ctx.continue_as_new({"heard": heard})
        return heard

    started = await scene.engine.start_function("listen")
    await scene.engine.signal(started, "go", 1)
    process = scene.process(warm=warm)
    inner, late = process.committer.submit, [2, 3]

    async def told_late(unit: Any, patience: float | None = None) -> Any:
        """Between the decision to go on as another run and its commit, two more are told."""
        if late and any(isinstance(row, PutRun) for row in unit.rows):
            await scene.engine.signal(started, "go", late.pop(0))
            await scene.engine.signal(started, "go", late.pop(0))
        return await inner(unit, patience)

    process.committer.submit = told_late  # type: ignore[method-assign]
    await process.quiet()
    assert await scene.engine.run_result(started) == [1, 2, 3]


async def test_retrying_a_run_with_a_failed_child_starts_the_child_again(scene: Scene):
    broken = [True]

    @scene.engine.function("child")
    async def child(payload: dict[str, Any], ctx: Any) -> Any:
        if broken:
            raise ValueError("broken")
        return "whole"

    @scene.engine.function("parent")
    async def parent(payload: dict[str, Any], ctx: Any) -> Any:
        handle = await ctx.start("child")
        return await handle.result()

    started = await scene.engine.start_function("parent")
    process = scene.process(warm=COLD)
    await process.quiet()
    assert await scene.state(started.id) == "failed"
    broken.clear()
    await scene.engine.runs.retry(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == "whole"


@pytest.mark.parametrize("warm", [COLD, WARM])
async def test_waiting_with_a_zero_timeout_drains_pending_signals(scene: Scene, warm: int):
    async def drain(ctx: Any) -> list[Any]:
        taken: list[Any] = []
        while True:
            try:
                taken.append(await ctx.wait_for("order", timeout=0))
            except SignalTimeout:
                return taken

    @scene.engine.function("f")
    async def function(payload: dict[str, Any], ctx: Any) -> Any:
        first = await drain(ctx)
        await ctx.sleep(1)
        return [first, await drain(ctx)]

    started = await scene.engine.start_function("f")
    await scene.engine.signal(started, "order", 1)
    await scene.engine.signal(started, "order", 2)
    process = scene.process(warm=warm)
    await process.quiet()
    await scene.engine.signal(started, "order", 3)
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(started) == [[1, 2], [3]]


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("url", ["memory", POSTGRES])
async def test_concurrently_sent_signals_all_arrive(url: str, keyed: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    count = 60
    engine = make_engine(url_of(url, request, tmp_path))

    @engine.function("hear")
    async def hear(payload: Any, ctx: Any) -> list[int]:
        return sorted([await ctx.wait_for("go") for _ in range(payload["count"])])

    async with engine, asyncio.timeout(BOUND):
        run = await engine.start_function("hear", {"count": count})
        sent = [engine.signal(run, "go", n, idempotency_key=f"k{n}" if keyed else None) for n in range(count)]
        if keyed:
            sent += [engine.signal(run, "go", n, idempotency_key=f"k{n}") for n in range(count)]
        assert sum(await asyncio.gather(*sent)) == count
        async with engine.worker():
            assert await engine.run_result(run) == list(range(count))
