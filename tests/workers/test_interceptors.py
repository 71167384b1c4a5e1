"""Interceptors: code of the user around enqueues, starts of runs, handlers and steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest
from tests.workers import isolated

from treadle import Context, Engine, Enqueued, Interceptor, RetryPolicy, RunFailed, TaskFailed, TaskSpec
from treadle.kernel.runs.records import RunRequest, StartedRun
from treadle.model.errors import InvalidInput
from treadle.settings import Settings
from treadle.testing import StubExternalSpecialist
from treadle.testing.environment import Environment
from treadle.workers.interceptors import StepCall

AFL = """namespace o {
  event facet Pack(item: String) => (n: Long)
  workflow Ship(item: String) => (n: Long) andThen {
    p = Pack(item = $.item)
    yield Ship(n = p.n)
  }
}"""

secret: ContextVar[str] = ContextVar("secret", default="none")


class Recorded(Interceptor):
    """Records what happens around each call."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    async def _around(self, what: str, request: Any, proceed: Callable[[Any], Awaitable[Any]]) -> Any:
        self.log.append(f"{self.name} {what}")
        token = secret.set(self.name)
        try:
            return await proceed(request)
        except ValueError as error:
            self.log.append(f"{self.name} saw {error}")
            raise
        finally:
            secret.reset(token)
            self.log.append(f"{self.name} left {what.partition(' ')[0]}")

    async def enqueue(
        self, specs: Sequence[TaskSpec], proceed: Callable[[Sequence[TaskSpec]], Awaitable[list[Enqueued]]]
    ) -> list[Enqueued]:
        enqueued: list[Enqueued] = await self._around(f"enqueue {[spec.name for spec in specs]}", specs, proceed)
        return enqueued

    async def start(self, request: RunRequest, proceed: Callable[[RunRequest], Awaitable[StartedRun]]) -> StartedRun:
        started: StartedRun = await self._around(f"start {request.name}", request, proceed)
        return started

    async def handler(self, ctx: Context, proceed: Callable[[Context], Awaitable[Any]]) -> Any:
        return await self._around(f"handler {ctx.task.name} {ctx.attempt}", ctx, proceed)

    async def step(self, step: StepCall, proceed: Callable[[StepCall], Awaitable[Any]]) -> Any:
        return await self._around(f"{step.kind} {step.function}.{step.name}", step, proceed)


def around(what: str, *inside: str) -> list[str]:
    """The log of a call inside of both interceptors."""
    left = what.partition(" ")[0]
    return [f"outer {what}", f"inner {what}", *inside, f"inner left {left}", f"outer left {left}"]


async def recorded(run: Callable[[Environment], Awaitable[Any]]) -> tuple[list[str], Any]:
    log: list[str] = []
    async with Environment() as env:
        env.engine.intercept(Recorded(log, "outer"))
        env.engine.intercept(Recorded(log, "inner"))
        return log, await run(env)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_interceptors_wrap_the_enqueue_and_each_attempt_of_a_handler(kind: str) -> None:
    async def run(env: Environment) -> Any:
        def work(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
            if ctx.attempt == 1:
                raise ValueError("once")
            return {"secret": secret.get()}

        async def async_work(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
            return work(payload, ctx)

        env.engine.handler("work", retry=RetryPolicy.of(1, first=0))(work if kind == "sync" else async_work)
        return await env.result(await env.engine.enqueue("work"))

    log, result = await recorded(run)
    failed = ["outer handler work 1", "inner handler work 1"]
    failed += ["inner saw once", "inner left handler", "outer saw once", "outer left handler"]
    assert log == [*around("enqueue ['work']"), *failed, *around("handler work 2")]
    assert result == {"secret": "inner"}


async def test_interceptors_wrap_the_start_and_the_steps_of_a_function() -> None:
    async def run(env: Environment) -> Any:
        async def own() -> str:
            return secret.get()

        def threaded() -> str:
            return secret.get()

        @env.engine.function("f")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            secrets = [await ctx.step(own), await ctx.step(threaded, name="thread"), await ctx.effect("pay", own)]
            await ctx.sleep(1)
            return [*secrets, secret.get()]

        started = await env.engine.start("f")
        return await env.result(started)

    log, result = await recorded(run)
    calls = [line for what in ("start f", "step f.own", "step f.thread", "effect f.pay") for line in around(what)]
    assert log == calls
    assert result == ["inner"] * 3 + ["none"]


async def test_interceptors_wrap_workflows_specialists_isolated_handlers_and_batches() -> None:
    async def run(env: Environment) -> None:
        env.engine.handler("o.Pack")(lambda payload: {"n": 1})
        env.engine.handler("isolated", isolation="process")(isolated.slowly)
        env.engine.specialist("render", StubExternalSpecialist([{"done": True}]))
        await env.result(await env.engine.start_run([("s.afl", AFL)], "o.Ship", {"item": "x"}))
        for task in await env.engine.enqueue_many([TaskSpec(name="isolated"), TaskSpec(name="render")]):
            await env.result(task)

    log, _ = await recorded(run)
    outer = [line.removeprefix("outer ") for line in log if line.startswith("outer ") and " left " not in line]
    assert outer == [
        "start o.Ship", "handler o.Pack 1", "enqueue ['isolated', 'render']", "handler isolated 1", "handler render 1",
        "handler render 1",
    ]  # fmt: skip


class Tenant(Interceptor):
    """Changes requests and results."""

    async def enqueue(self, specs: Any, proceed: Any) -> Any:
        return await proceed([msgspec.structs.replace(spec, payload={**spec.payload, "tenant": "acme"}) for spec in specs])

    async def start(self, request: RunRequest, proceed: Any) -> Any:
        options = {**request.options, "tags": {"tenant": "acme"}}
        return await proceed(RunRequest(request.name, {"tenant": "acme"}, options))

    async def handler(self, ctx: Context, proceed: Any) -> Any:
        return {"wrapped": await proceed(ctx)}

    async def step(self, step: StepCall, proceed: Any) -> Any:
        return [await proceed(step)]


async def test_interceptors_may_change_requests_and_results() -> None:
    async with Environment() as env:
        env.engine.intercept(Tenant())

        @env.engine.handler("work")
        async def work(payload: dict[str, Any]) -> dict[str, Any]:
            return payload

        @env.engine.function("f")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            return [payload, await ctx.step(lambda: 7)]

        assert await env.result(await env.engine.enqueue("work", {"n": 1})) == {"wrapped": {"n": 1, "tenant": "acme"}}
        run = await env.engine.start("f")
        assert await env.result(run) == [{"tenant": "acme"}, [7]]
        assert [record.id for record in (await env.engine.runs.list(where="tag.tenant = acme")).runs] == [run.id]


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_interceptors_see_and_change_the_start_of_a_child_once(kind: str) -> None:
    async def run(env: Environment) -> Any:
        env.engine.intercept(Tenant())

        @env.engine.function("child")
        async def child(payload: dict[str, Any], ctx: Any) -> Any:
            return payload

        async def parent(payload: dict[str, Any], ctx: Any) -> Any:
            started = await ctx.start("child", {"n": 1})
            await ctx.sleep(1)
            return await started.result()

        def sync_parent(payload: dict[str, Any], ctx: Any) -> Any:
            started = ctx.start("child", {"n": 1})
            ctx.sleep(1)
            return started.result()

        env.engine.function("parent")(parent if kind == "async" else sync_parent)
        result = await env.result(await env.engine.start("parent"))
        assert {run.workflow for run in (await env.engine.runs.list(where="tag.tenant = acme")).runs} == {"child", "parent"}
        return result

    log, result = await recorded(run)
    assert log == [*around("start parent"), *around("start child")]
    assert result == {"tenant": "acme"}


class Full(Interceptor):
    """Refuses children, in the first execution only."""

    calls = 0

    async def start(self, request: RunRequest, proceed: Any) -> Any:
        self.calls += request.name == "child"
        if self.calls == 1:
            await proceed(request)
            raise PermissionError("no room")
        return await proceed(request)


async def test_the_exception_of_an_interceptor_of_a_start_is_recorded() -> None:
    async with Environment(settings=Settings(warm_functions=0)) as env:
        full = Full()
        env.engine.intercept(full)

        @env.engine.function("child")
        async def child(payload: dict[str, Any], ctx: Any) -> None: ...

        @env.engine.function("parent")
        async def parent(payload: dict[str, Any], ctx: Any) -> str:
            try:
                await ctx.start("child")
            except PermissionError as error:
                await ctx.sleep(1)
                return str(error)
            return "started"

        run = await env.engine.start("parent")
        assert "no room" in await env.result(run)
        assert full.calls == 1
        assert [run.workflow for run in (await env.engine.runs.list()).runs] == ["parent"]


class Refusing(Interceptor):
    async def handler(self, ctx: Context, proceed: Any) -> Any:
        raise PermissionError("no secret")

    async def step(self, step: StepCall, proceed: Any) -> Any:
        raise PermissionError("no secret")


async def test_an_exception_of_an_interceptor_is_one_of_the_call() -> None:
    async with Environment() as env:
        env.engine.intercept(Refusing())

        @env.engine.handler("work", retry=RetryPolicy.of(3, never=(PermissionError,)))
        async def work(payload: dict[str, Any]) -> None:
            raise AssertionError

        @env.engine.function("f")
        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            await ctx.step(work, {})

        with pytest.raises(TaskFailed, match="PermissionError is in never"):
            await env.result(await env.engine.enqueue("work"))
        with pytest.raises(RunFailed, match="no secret"):
            await env.result(await env.engine.start("f"))


def test_only_overridden_methods_are_called() -> None:
    engine = Engine("memory://", settings=Settings())
    engine.intercept(Interceptor())
    assert engine.kernel.registry.around == {}
    engine.intercept(Refusing())
    assert sorted(engine.kernel.registry.around) == ["handler", "step"]
    for wrong in (Refusing, object(), None):
        with pytest.raises(InvalidInput, match="intercept"):
            engine.intercept(wrong)  # type: ignore[arg-type]
