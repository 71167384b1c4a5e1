"""Long polls of a server: limited in total and per caller, and ended when the caller loses access."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import Stage

from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import CHECK_EVERY, state_of
from treadle.model.access import Scope
from treadle.settings import Settings
from treadle.testing import ManualClock

EVENTS = "/v1/events/stream"


@asynccontextmanager
async def staged(url: str = "memory://", **settings: int) -> AsyncIterator[Stage]:
    """A server whose engine has those settings."""
    clock = ManualClock()
    async with Engine(url, clock=clock, settings=Settings(store=url, **settings)) as engine:  # type: ignore[arg-type]
        stage = Stage(engine, clock, make_app(engine, open_access=True))
        yield stage
        await state_of(stage.app).close()


async def waits(stage: Stage, count: int) -> None:
    """Until so many wait."""
    while len(state_of(stage.app).waiters) != count:  # noqa: ASYNC110 - it is the requests of others that change it
        await asyncio.sleep(0.001)


async def worker_of(client: httpx.AsyncClient, *lists: str) -> str:
    made = await client.post("/v1/workers", json={"name": "w", "handlers": ["greet"], "task_lists": list(lists) or ["default"]})
    worker_id: str = made.json()["worker_id"]
    return worker_id


def claiming(client: httpx.AsyncClient, worker_id: str) -> asyncio.Task[httpx.Response]:
    """Somebody who waits for a task."""
    return asyncio.create_task(client.post("/v1/tasks/claim", json={"worker_id": worker_id, "wait_for": 60}))


def following(client: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
    """Somebody who follows events; the answer is there when it ends."""
    return asyncio.create_task(client.get(EVENTS))


async def test_callers_over_the_waiting_limit_are_refused_and_the_others_keep_waiting():
    async with staged(http_waiting=2) as stage, stage.client() as client:
        worker_id = await worker_of(client)
        claim, stream = claiming(client, worker_id), following(client)
        await waits(stage, 2)
        for refused in (await claiming(client, worker_id), await following(client)):
            assert (refused.status_code, refused.json()["code"], refused.headers["Retry-After"]) == (503, "too_many_waiting", "5")
            assert refused.headers["Content-Type"] == "application/problem+json"
        at_once = await client.post("/v1/tasks/claim", json={"worker_id": worker_id})
        assert (at_once.status_code, at_once.json()) == (200, {"tasks": []})
        await client.post("/v1/tasks", json={"name": "greet"})
        assert len((await claim).json()["tasks"]) == 1
        await waits(stage, 1)  # one has left: there is room
        again = claiming(client, worker_id)
        await waits(stage, 2)
        await state_of(stage.app).close()
        assert (await again).json() == {"tasks": []}
        assert (await stream).status_code == 200


async def test_one_caller_cannot_use_all_waiting_slots():
    async with staged(http_waiting=10, http_waiting_each=1) as stage:
        ada, bob = await stage.token(name="ada"), await stage.token(name="bob")
        async with stage.shown(ada) as hers, stage.shown(bob) as his:
            following(hers)
            await waits(stage, 1)
            refused = await following(hers)
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_waiting")
            following(his)
            await waits(stage, 2)


async def test_sessions_of_a_token_are_the_same_caller():
    async with staged(http_waiting_each=1) as stage:
        secret = await stage.token()
        async with stage.client() as browser, stage.shown(secret) as program:
            await browser.post("/login", json={"token": secret})
            following(browser)
            await waits(stage, 1)
            assert (await following(program)).status_code == 503


async def test_a_waiting_claim_ends_with_its_token_without_a_task(stage: Stage):
    secret = await stage.token(Scope.WORK)
    async with stage.shown(secret) as client:
        claim = claiming(client, await worker_of(client))
        await waits(stage, 1)
        await stage.engine.kernel.tokens.revoke("ada")
        stage.clock.advance(CHECK_EVERY)
        answer = await claim
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    task = await stage.engine.enqueue("greet")
    await waits(stage, 0)
    assert (await stage.engine.kernel.reads.get_task(task.id)).shown_state == "pending"


async def test_a_stream_ends_with_its_token(stage: Stage):
    secret = await stage.token(Scope.READ)
    async with stage.shown(secret) as client:
        stream = following(client)
        await waits(stage, 1)
        await stage.engine.kernel.tokens.revoke("ada")
        stage.clock.advance(CHECK_EVERY)
        answer = await stream
    assert answer.status_code == 200


async def test_waiting_callers_are_disconnected_when_their_token_expires(stage: Stage):
    secret = await stage.token(Scope.READ, Scope.WORK, expires=30)
    async with stage.shown(secret) as client:
        claim, stream = claiming(client, await worker_of(client)), following(client)
        await waits(stage, 2)
        stage.clock.advance(30)
        assert (await claim).status_code == 401
        assert (await stream).status_code == 200


async def test_revocation_by_another_process_ends_waiting_calls_in_time(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'one.db'}"
    async with staged(url) as stage:
        secret = await stage.token(Scope.READ, Scope.WORK)
        async with stage.shown(secret) as client, Engine(url, clock=stage.clock) as elsewhere:
            claim = claiming(client, await worker_of(client))
            await waits(stage, 1)
            await elsewhere.kernel.tokens.revoke("ada")
            stage.clock.advance(CHECK_EVERY)  # less than what was looked up lately is taken to hold for
            assert (await claim).status_code == 401


async def test_closing_a_session_ends_only_its_own_waiting_calls(stage: Stage):
    secret = await stage.token()
    async with stage.client() as browser, stage.shown(secret) as program:
        await browser.post("/login", json={"token": secret})
        ended, goes_on = following(browser), following(program)
        await waits(stage, 2)
        await browser.post("/logout", headers={"Accept": "application/json"})
        stage.clock.advance(CHECK_EVERY)
        assert (await ended).status_code == 200
        await waits(stage, 1)
        assert not goes_on.done()
        await state_of(stage.app).close()
        await goes_on


@pytest.mark.parametrize("body", [b"", b'{"name": "gr'])
async def test_a_request_body_that_stalls_times_out(stage: Stage, body: bytes):
    async def slow() -> AsyncIterator[bytes]:
        yield body
        await asyncio.Event().wait()

    async with stage.client() as client:
        asking: asyncio.Task[Any] = asyncio.create_task(
            client.post("/v1/tasks", content=slow(), headers={"Content-Type": "application/json"})
        )
        while not asking.done():
            stage.clock.advance(5)
            await asyncio.sleep(0.001)
    assert (asking.result().status_code, asking.result().json()["code"]) == (408, "request_too_slow")
    assert asking.result().headers["Connection"] == "close"
