"""Events for many over HTTP: each once and in order, also across lost connections, and nobody waits for the slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from tests.monitoring.test_events import Late

from treadle.api.events import Event, EventConditions
from treadle.client import Client
from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import CHECK_EVERY, AppState, state_of
from treadle.interfaces.http.broadcast import HEARTBEAT_EVERY, Broadcast
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.interfaces.http.stream import LAG_GRACE
from treadle.kernel.reads.events import GIVE_UP_FOR
from treadle.model.access import Scope
from treadle.model.errors import Forbidden
from treadle.settings import Settings
from treadle.testing import ManualClock

CLIENTS = 200
ANY = EventConditions()


async def move_some(engine: Engine, count: int) -> list[str]:
    """So many transitions; the ids of what made them, in order."""
    ids = []
    for _ in range(count):
        task = await engine.enqueue("work")
        await engine.cancel(task)
        ids.append(task.id)
    return ids


def client_of(url: str, token: str | None = None) -> Client:
    return Client(url, token, transport=httpx.AsyncHTTPTransport(verify=False))


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(events) for _ in range(count)]


async def joined(live: Broadcast, count: int) -> None:
    while live.subscribers != count:  # noqa: ASYNC110 - it is other clients' requests that change it
        await asyncio.sleep(0.01)


async def test_200_clients_see_every_event_once_and_in_order_also_across_reconnects():
    each, total = 15, 60
    async with Engine("memory://") as engine:
        (expected := []).extend(await move_some(engine, each))
        async with HttpServer(engine, HttpOptions(port=0, open_access=True)) as server:
            port = int(server.url.rpartition(":")[2])
            clients = [client_of(server.url) for _ in range(CLIENTS)]
            following = [asyncio.create_task(take(client.events.follow(after_seq=0), total)) for client in clients]
            await joined(server.state.events, CLIENTS)
            expected += await move_some(engine, each)
        expected += await move_some(engine, each)  # while there is no server
        async with HttpServer(engine, HttpOptions(port=port, open_access=True)) as server:
            assert server.url.endswith(str(port))
            expected += await move_some(engine, each)
            seen = await asyncio.gather(*following)
        for client in clients:
            await client.close()
    for events in seen:
        assert [event.entity_id for event in events] == expected
        assert [event.seq for event in events] == sorted({event.seq for event in events})


async def test_a_slow_subscriber_is_disconnected_without_delaying_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("treadle.interfaces.http.broadcast.BUFFER", 20)
    async with Engine("memory://") as engine:
        live = Broadcast(engine)
        slow, fast = live.subscriber(ANY), live.subscriber(ANY)
        async with aclosing(slow.receive(0)) as of_slow, aclosing(fast.receive(0)) as of_fast:
            assert await anext(of_slow) == await anext(of_fast) == []
            ids: list[str] = []
            told: list[bytes] = []
            while not slow.lagging.is_set():  # nobody takes what `slow` is told; the engine goes on meanwhile
                ids += await move_some(engine, 5)
                while len(told) < len(ids):
                    told += [each.text for each in await anext(of_fast)]
            assert not fast.lagging.is_set()
            assert len(ids) <= 30
            assert [task_id in text.decode() for task_id, text in zip(ids, told, strict=True)] == [True] * len(ids)
            assert [portion async for portion in of_slow] == []
        again = live.subscriber(ANY)
        async with aclosing(again.receive(slow.resume_after)) as events:
            assert len(await anext(events)) == len(ids)
        await live.close()


class Caller:
    """A caller of the application as a server sees it, who may stop to take what it is sent."""

    def __init__(self, front: AppState, app: Any, query: str = "") -> None:
        self.front, self.app, self.query = front, app, query
        self.sent: list[bytes] = []
        self.taking = asyncio.Event()
        self.taking.set()
        self.began = asyncio.Event()
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message.get("body", b""))
        if self.sent[-1]:
            self.began.set()
        await self.taking.wait()

    async def call(self) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events/stream",
            "query_string": self.query.encode(),
            "headers": [(b"host", b"127.0.0.1")],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "server": ("127.0.0.1", 80),
        }
        await self.app(scope, self.receive, self.send)


async def test_a_lagging_caller_is_notified_and_a_stuck_one_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("treadle.interfaces.http.broadcast.BUFFER", 5)
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        app = make_app(engine, open_access=True)
        late, stuck = Caller(state_of(app), app), Caller(state_of(app), app)
        calls = [asyncio.create_task(each.call()) for each in (late, stuck)]
        for each in (late, stuck):
            await each.began.wait()
            each.taking.clear()
        for _ in range(4):
            await move_some(engine, 5)
            await asyncio.sleep(0)
        late.taking.set()
        await calls[0]
        assert late.sent[-2].startswith(b"event: lagging")
        assert not calls[1].done()
        clock.advance(LAG_GRACE)
        await calls[1]
        assert state_of(app).events.subscribers == 0


async def test_a_heartbeat_carries_the_resume_position_and_rechecks_access():
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        app = make_app(engine, open_access=True)
        caller = Caller(state_of(app), app, "entity=run")
        calling = asyncio.create_task(caller.call())
        await caller.began.wait()
        await move_some(engine, 3)
        last = await engine.kernel.store.log.find_last_seq()
        while f": {last}\nid: {last}\n\n".encode() not in caller.sent:
            clock.advance(HEARTBEAT_EVERY)
            await asyncio.sleep(0.01)
        state_of(app).callers.open_access = False
        while not calling.done():
            clock.advance(HEARTBEAT_EVERY)
            await asyncio.sleep(0.01)
        assert caller.sent[-1] == b""


async def test_access_of_a_busy_follower_is_rechecked_too():
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        app = make_app(engine, open_access=True)
        caller = Caller(state_of(app), app)
        calling = asyncio.create_task(caller.call())
        await caller.began.wait()
        caller.taking.clear()  # it is being told something, and more comes meanwhile
        await move_some(engine, 1)
        while b"data" not in caller.sent[-1]:  # noqa: ASYNC110 - it is the server that changes it
            await asyncio.sleep(0.01)
        state_of(app).callers.open_access = False
        (late,) = await move_some(engine, 1)
        clock.advance(CHECK_EVERY)
        await joined(state_of(app).events, 0)
        caller.taking.set()
        await calling
        assert caller.sent[-1] == b""
        assert late.encode() not in b"".join(caller.sent)


@pytest.mark.parametrize("old", [True, False])
async def test_a_stopping_server_sends_no_more_history(monkeypatch: pytest.MonkeyPatch, old: bool):
    monkeypatch.setattr("treadle.interfaces.http.broadcast.PAGE", 5)
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        await move_some(engine, 20)
        if old:
            clock.advance(GIVE_UP_FOR / 1000 + 1)
        live = Broadcast(engine)
        follower = live.subscriber(ANY)
        async with aclosing(follower.receive(0)) as portions:
            told = await anext(portions)
            await live.close()
            assert [portion async for portion in portions if portion] == []
        assert follower.resume_after == told[-1].seq


async def test_an_event_committed_late_arrives_once_and_survives_a_resume(
    postgres_url: str, postgres_server: str, postgres_schema: str
):
    async with Engine(postgres_url, settings=Settings()) as engine:
        task = await engine.enqueue("work")
        await move_some(engine, 1)
        late = Late(postgres_server, postgres_schema, task.id)
        await move_some(engine, 1)
        live = Broadcast(engine)
        one, other = live.subscriber(ANY), live.subscriber(ANY)
        async with aclosing(one.receive(0)) as events:
            told = await anext(events)
            assert [each.resume_after for each in told] == [late.seq - 1, late.seq - 1]
            assert await anext(events) == []
            async with aclosing(other.receive(told[-1].resume_after)) as resumed:
                assert [each.seq for each in await anext(resumed)] == [late.seq + 1]
                assert await anext(resumed) == []
                late.commit()
                for each in (events, resumed):
                    while not (found := await anext(each)):
                        pass
                    assert [(each.seq, each.resume_after) for each in found] == [(late.seq, late.seq + 1)]
        await live.close()


async def test_filters_apply_to_past_and_live_events():
    async with Engine("memory://") as engine, HttpServer(engine, HttpOptions(port=0, open_access=True)) as server:
        client = client_of(server.url)
        _, second = await move_some(engine, 2)
        async with aclosing(client.events.follow(after_seq=0, entity_id=second, transition="cancel")) as events:
            assert (await anext(events)).entity_id == second
        await joined(server.state.events, 0)
        async with aclosing(client.events.follow(entity="task")) as events:
            taking = asyncio.create_task(anext(events))
            await joined(server.state.events, 1)
            (third,) = await move_some(engine, 1)
            found = await taking
        assert (found.entity_id, found.transition, found.to_state, found.actor) == (third, "cancel", "canceled", "python")
        await client.close()


async def test_a_follower_without_the_read_scope_is_forbidden():
    async with Engine("memory://") as engine:
        secret = (await engine.kernel.tokens.create("ci", [Scope.WORK])).secret
        async with HttpServer(engine, HttpOptions(port=0, open_access=True)) as server:
            client = client_of(server.url, secret)
            with pytest.raises(Forbidden):
                await anext(client.events.follow())
            await client.close()


@pytest.mark.parametrize("place", ["x", "-1", "1.5", "9" * 30])
async def test_an_invalid_resume_position_is_rejected(place: str):
    async with Engine("memory://") as engine:
        transport = httpx.ASGITransport(make_app(engine, open_access=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.get("/v1/events/stream", headers={"Last-Event-ID": place})).status_code == 422
