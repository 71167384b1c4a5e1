"""Handles of a client: the methods of `treadle.Handle`, with the same results and errors, over HTTP."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engine.test_handles import KINDS, NOBODY, program
from tests.engines import ALL, url_of
from tests.limits import BOUND

from treadle import Engine, FunctionContext, Handle, RunCanceled, TaskCanceled, TaskFailed, UpdateRejected
from treadle.client import Client
from treadle.client.handle import RemoteHandle
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.model.errors import InvalidInput, NotFound, RunNotFound

ELSEWHERE = {"actor", "type"}
"""Parameters that a client does not have: the server knows the actor by its token, and values arrive as JSON."""


class Remote(NamedTuple):
    """A server, and a client of it."""

    engine: Engine
    client: Client


@pytest.fixture(params=ALL)
async def remote(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Remote]:
    engine = program(url_of(request.param, request, tmp_path))
    options = HttpOptions(port=0, open_access=True)
    async with engine, HttpServer(engine, options) as server, Client(server.url) as client:
        yield Remote(engine, client)


@pytest.mark.parametrize(
    "name", [name for name in vars(Handle) if not name.startswith("_") and name not in ("on", "id", "created")]
)
def test_a_handle_of_a_client_has_every_method_with_the_same_parameters(name: str) -> None:
    expected, parameters = (inspect.signature(getattr(kind, name)).parameters for kind in (Handle, RemoteHandle))
    assert list(parameters) == [parameter for parameter in expected if parameter not in ELSEWHERE]
    for parameter in parameters.values():
        assert (parameter.kind, parameter.default) == (expected[parameter.name].kind, expected[parameter.name].default)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", KINDS)
async def test_every_operation_takes_a_task_or_a_run(remote: Remote, kind: str) -> None:
    work = await KINDS[kind](remote.engine)
    handle = remote.client.handle(work)
    before = await handle.status()
    assert (handle.id, before.state) == (work.id, (await work.status()).state)
    await handle.pause()
    assert (await handle.status()).state == "paused"
    await handle.resume()
    assert (await handle.status()).state == before.state
    assert (await handle.why()).code == (await work.why()).code
    await handle.cancel(reason="not needed")
    with pytest.raises((RunCanceled, TaskCanceled), match="not needed"):
        await remote.client.handle(work.id).result(timeout=BOUND)
    async with asyncio.timeout(BOUND):
        async for event in handle.events(after=0):
            if event.transition == "cancel":
                break


@pytest.mark.postgres
async def test_results_are_those_of_an_engine(remote: Remote) -> None:
    engine, client = remote
    async with engine.worker():
        task, flow = await KINDS["task"](engine), await KINDS["workflow"](engine)
        assert await client.handle(task.id).result(timeout=BOUND) == await engine.result(task.id) == {"result": 4}
        assert await client.handle(flow.id).result(timeout=BOUND) == await engine.result(flow.id) == {"degrees": 31}
        assert [step.name for step in await client.handle(flow).steps()] == [step.name for step in await flow.steps()]
        run = await KINDS["function"](engine)
        handle = client.handle(run.id)
        with pytest.raises(TimeoutError, match="has not ended after"):
            await handle.result(timeout=0.05)
        assert await handle.signal("answer", 42, idempotency_key="one")
        assert not await handle.signal("answer", 43, idempotency_key="one")
        assert await handle.result(timeout=BOUND) == 42


async def test_a_failed_task_is_retried_with_another_payload(remote: Remote) -> None:
    @remote.engine.handler("charge")
    async def charge(payload: dict[str, Any], ctx: Any) -> dict[str, Any]:
        ctx.stream("log").write(payload["n"])
        if payload["n"] < 0:
            raise ValueError("declined")
        return payload

    async with remote.engine.worker():
        handle = remote.client.handle(await remote.engine.enqueue("charge", {"n": -1}))
        with pytest.raises(TaskFailed, match="declined"):
            await handle.result(timeout=BOUND)
        with pytest.raises(InvalidInput, match="retry of a task does not take step"):
            await handle.retry(step="pay")
        with pytest.raises(InvalidInput, match="only runs have steps"):
            await handle.steps()
        await handle.retry(payload={"n": 1})
        assert await handle.result(timeout=BOUND) == {"n": 1}
        assert [entry.value async for entry in handle.stream("log")][-1] == 1


async def test_a_function_answers_queries_and_updates(remote: Remote) -> None:
    @remote.engine.function("desk")
    async def desk(payload: dict[str, Any], ctx: FunctionContext) -> None:
        ctx.publish("state", "open")
        for _ in range(2):
            update = await ctx.update("address")
            await (update.reply({"city": update.value}) if update.value else update.reject("empty"))

    async with remote.engine.worker():
        handle = remote.client.handle(await remote.engine.start("desk"))
        assert await handle.query("state", wait=60) == "open"
        assert await handle.update("address", "Rome", timeout=BOUND) == {"city": "Rome"}
        with pytest.raises(UpdateRejected, match="empty"):
            await handle.update("address", "", timeout=BOUND)


async def test_work_that_does_not_exist_is_not_found_by_the_first_operation(remote: Remote) -> None:
    handle = remote.client.handle(NOBODY)
    for operation in (handle.status, handle.cancel, handle.result, handle.steps):
        with pytest.raises(RunNotFound):
            await operation()  # type: ignore[operator]
    with pytest.raises(NotFound):
        await handle.why()
