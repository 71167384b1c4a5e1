"""Handles of any task or run, one `start` for anything that runs, and calls that name the right one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND

from treadle import Engine, FunctionContext, Handle, RunCanceled, TaskCanceled
from treadle.client import Client
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.model.clock import as_text
from treadle.model.errors import InvalidInput, NotFound, RunNotFound, TaskNotFound

NOBODY = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"
TRIP = """
event facet Weather(city: String) => (degrees: Long)

workflow Trip(city: String) => (degrees: Long) andThen {
    w = Weather(city = $.city)
    yield Trip(degrees = w.degrees)
}
"""
SOURCES = [("trip.afl", TRIP)]


def program(url: str) -> Engine:
    engine = make_engine(url)

    @engine.handler("Weather")
    async def weather(payload: dict[str, Any]) -> dict[str, Any]:
        return {"degrees": 31}

    @engine.task
    def double(n: int) -> int:
        return n * 2

    @engine.function("ask")
    async def ask(ctx: FunctionContext, question: str) -> Any:
        await ctx.step(len, question)
        return await ctx.wait_for("answer")

    return engine


KINDS: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "task": lambda engine: engine.enqueue("double", {"n": 2}),
    "function": lambda engine: engine.start("ask", {"question": "why"}),
    "workflow": lambda engine: engine.start(SOURCES, {"city": "Rome"}),
}
NAMED: dict[str, Callable[[Any], Any]] = {
    "id": lambda work: work.id,
    "short id": lambda work: work.id[:-2],
    "last": lambda _: "last",
    "record": lambda work: work,
}


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    async with program(url_of(request.param, request, tmp_path)) as opened:
        yield opened


@pytest.mark.postgres
@pytest.mark.parametrize("kind", KINDS)
async def test_every_operation_takes_a_task_or_a_run_however_it_is_named(engine: Engine, kind: str) -> None:
    for named in NAMED.values():
        work = named(await KINDS[kind](engine))
        handle = engine.handle(work)
        before = await handle.status()
        assert handle.id == before.id
        assert before.state in ("pending", "running")
        await handle.pause(actor="ada")
        assert (await handle.status()).state == "paused"
        await engine.resume(work, actor="ada")
        assert (await handle.status()).state == before.state
        assert (await handle.why()).code == (await engine.why(work)).code
        await engine.cancel(work, actor="ada", reason="not needed")
        assert (await handle.status()).state == "canceled"
        with pytest.raises((RunCanceled, TaskCanceled), match="not needed"):
            await engine.result(work, timeout=BOUND)
        async for transition in handle.events(after=0):
            if transition.transition == "cancel":
                assert transition.actor == "ada"
                break


async def test_a_failed_task_and_a_failed_run_are_retried_by_their_ids(engine: Engine) -> None:
    fails = True

    @engine.handler("charge")
    async def charge(payload: dict[str, Any]) -> dict[str, Any]:
        if fails:
            raise ValueError("declined")
        return payload

    @engine.function("order")
    async def order(payload: dict[str, Any], ctx: FunctionContext) -> Any:
        return await ctx.call("charge", payload)

    async with engine.worker():
        task, run = await engine.enqueue("charge", {"n": 1}), await engine.start("order", {"n": 1})
        for work in (task, run):
            with pytest.raises(Exception, match="declined"):
                await work.result(timeout=BOUND)
        fails = False
        await engine.retry(task.id, payload={"n": 2})
        with pytest.raises(InvalidInput, match="retry of a run does not take payload"):
            await engine.retry(run.id, payload={"n": 2})
        await engine.retry(run.id)
        assert await engine.result(task.id, timeout=BOUND) == {"n": 2}
        assert await engine.result(run.id, timeout=BOUND) == {"n": 1}


async def test_a_handle_with_a_reference_has_typed_results_and_refuses_other_work(engine: Engine) -> None:
    @engine.task("add")
    def add(a: int, b: int) -> int:
        return a + b

    async with engine.worker():
        task = await engine.enqueue("add", {"a": 1, "b": 2})
        assert await engine.handle(task.id, add).result(timeout=BOUND) == 3
        assert await engine.handle(task.id).result(timeout=BOUND) == {"result": 3}
        run = await engine.start("ask", {"question": "why"})
        with pytest.raises(TaskNotFound):
            await engine.handle(run.id, add).result(timeout=BOUND)


async def test_only_runs_have_steps(engine: Engine) -> None:
    async with engine.worker():
        run = await engine.start(SOURCES, {"city": "Rome"})
        assert await run.result(timeout=BOUND) == {"degrees": 31}
        assert [step.name for step in await run.steps() if step.name == "w"] == ["w"]
        task = await engine.enqueue("double", {"n": 1})
        with pytest.raises(InvalidInput, match="only runs have steps"):
            await task.steps()


async def test_missing_work_is_reported(engine: Engine) -> None:
    handle: Handle[Any] = engine.handle(NOBODY)
    for operation in (
        handle.status,
        handle.why,
        handle.steps,
        handle.cancel,
        handle.retry,
        handle.pause,
        handle.resume,
        handle.result,
    ):
        with pytest.raises(TaskNotFound, match="no task or run"):
            await operation()
    with pytest.raises(InvalidInput, match="not a valid task or run id"):
        engine.handle(None)  # type: ignore[call-overload]


async def test_start_takes_a_reference_a_function_a_flow_and_sources(engine: Engine) -> None:
    await engine.kernel.flows.publish("trips", SOURCES)
    async with engine.worker():
        for run in (
            await engine.start(SOURCES, {"city": "Rome"}),
            await engine.start(SOURCES, {"city": "Rome"}, workflow="Trip", lenient=True),
            await engine.start("trips", {"city": "Rome"}),
            await engine.start("trips", {"city": "Rome"}, workflow="Trip"),
            await engine.start("trips", {"city": "Rome"}, on_failure="finish"),
        ):
            assert await run.result(timeout=BOUND) == {"degrees": 31}
        run = await engine.start("ask", {"question": "why"})
        await run.signal("answer", 42)
        assert await engine.run_result(run.id, timeout=BOUND) == 42
    with pytest.raises(NotFound, match="function nobody") as missing:
        await engine.start("nobody")
    assert missing.value.code == "function_not_found"


async def test_a_call_with_the_code_or_options_of_another_names_the_right_one(engine: Engine) -> None:
    @engine.task
    def pack(n: int) -> int:
        return n

    @engine.function
    async def ship(ctx: FunctionContext, n: int) -> int:
        return n

    def unregistered(n: int) -> int:
        return n

    wrong: list[tuple[type[Exception], str, Awaitable[Any]]] = [
        (InvalidInput, "ship is a durable function.* use start", engine.enqueue(ship, 1)),  # type: ignore[call-overload]
        (InvalidInput, "pack is a handler.* use enqueue", engine.start(pack, 1)),  # type: ignore[call-overload]
        (InvalidInput, "unregistered is not registered", engine.enqueue(unregistered, 1)),  # type: ignore[call-overload]
        (InvalidInput, "unregistered is not registered", engine.start(unregistered, 1)),  # type: ignore[call-overload]
        (TypeError, "did you mean priority", engine.enqueue("pack", {}, prority=1)),  # type: ignore[call-overload]
        (TypeError, "did you mean priority", engine.start("ship", {}, prority=1)),  # type: ignore[call-overload]
        (TypeError, "did you mean lenient", engine.start(SOURCES, {}, leniant=True)),  # type: ignore[call-overload]
        (InvalidInput, "did you mean delay", engine.enqueue(pack.with_options(dealy=1), 1)),  # type: ignore[call-arg]
    ]
    for error, message, call in wrong:
        with pytest.raises(error, match=message):
            await call
    assert (await engine.tasks.list()).tasks == []


@pytest.mark.parametrize(("call", "option"), [("enqueue", "unique_key"), ("start", "workflow")])
def test_signatures_show_every_option(call: str, option: str) -> None:
    for owner in (Engine, type(Engine("memory://").blocking())):
        parameters = inspect.signature(getattr(owner, call)).parameters
        assert {"payload", "actor", "priority", option} <= parameters.keys()
        assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


@pytest.mark.parametrize(
    ("call", "option", "default"), [("handler", "retry", None), ("task", "timeout", None), ("function", "version", 1)]
)
def test_signatures_of_decorators_show_every_option(call: str, option: str, default: int | None) -> None:
    parameters = inspect.signature(getattr(Engine, call)).parameters
    assert parameters[option].default == default
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


LOOKUPS = ("tasks", "runs", "approvals", "schedules", "watchers", "alerts")


async def test_find_returns_none_where_get_raises_on_a_store_and_on_a_server(engine: Engine) -> None:
    task, run = await KINDS["task"](engine), await KINDS["function"](engine)
    await engine.schedules.create("nightly", task="double", every=60)
    await engine.alerts.create("imports", when="run_failed", to="https://ops.example.org/hook")
    async with HttpServer(engine, HttpOptions(port=0, open_access=True)) as server, Client(server.url) as client:
        for api in (engine, client):
            for group in LOOKUPS:
                with pytest.raises(NotFound):
                    await getattr(api, group).get(NOBODY)
                assert await getattr(api, group).find(NOBODY) is None
            assert (await api.tasks.find(task)).id == task.id
            assert (await api.runs.find(run.id)).id == run.id
            assert (await api.schedules.find("nightly")).name == "nightly"
            assert (await api.alerts.find("imports")).when == "run_failed"


def test_handles_and_groups_work_without_an_event_loop() -> None:
    with program("memory://").blocking() as e:
        e.start_worker()
        run = e.start("ask", {"question": "why"})
        assert e.handle(run.id).status().state in ("pending", "running")
        assert [each.id for each in e.runs.list(state=["pending", "running"]).runs] == [run.id]
        run.pause()
        assert run.status().state == "paused"
        run.resume()
        run.signal("answer", 1)
        assert e.result(run.id, timeout=BOUND) == 1
        assert e.tasks.find(NOBODY) is None
        assert "list" in dir(e.approvals)
        with pytest.raises(RunNotFound):
            e.runs.get(NOBODY)


async def test_the_text_of_a_record_is_one_line(engine: Engine) -> None:
    task = await KINDS["task"](engine)
    record = await task.status()
    text = str(record)
    assert text == f"{task.id} double pending since {as_text(record.created_at.ms)}"
    assert str(await engine.kernel.reads.get_task(task)) == text
    await task.cancel()
    record = await task.status()
    assert str(record) == f"{task.id} double canceled since {as_text(record.finished_at.ms)}"
    run = await KINDS["function"](engine)
    assert str(await run.status()).startswith(f"{run.id} ask ")
    schedule = await engine.schedules.create("nightly", task="double", every=60)
    assert str(schedule).startswith(f"{schedule.id} nightly active since ")
    assert "\n" not in str((await engine.runs.list()).runs[0])
