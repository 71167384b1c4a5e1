"""A process without another server serves its metrics itself: real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.commands import Treadle
from tests.limits import BOUND

from treadle import Engine
from treadle.engine.status_server import (
    HEAD_LIMIT,
    HttpReply,
    StatusServer,
    error_reply,
    is_loopback,
    parse_address,
    probe_routes,
    serve_metrics,
)
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput, StoreUnavailable
from treadle.settings import Settings


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory://", settings=Settings()) as made:
        yield made


def fetch(url: str, **options: object) -> tuple[int, str, str]:
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=BOUND) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def say(url: str, request: bytes) -> bytes:
    """All that is answered to those bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].partition("/")[0]))
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""  # closed while more was coming
    finally:
        writer.close()


def serve(engine: Engine, address: str) -> AbstractAsyncContextManager[str]:
    return serve_metrics(engine.metrics, engine.kernel.tokens, engine.kernel.emit, address)


async def test_only_get_requests_are_answered(engine: Engine):
    async with serve(engine, "0") as url:
        await engine.enqueue("x")
        status, kind, text = await asyncio.to_thread(fetch, url)
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
        assert values["treadle_enqueued_total"] == 1
        _, kind, _ = await asyncio.to_thread(fetch, url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert kind.startswith("application/openmetrics-text")
        assert (await asyncio.to_thread(fetch, url, method="POST"))[0] == 405
        assert (await asyncio.to_thread(fetch, url, method="HEAD"))[::2] == (200, "")
        assert (await asyncio.to_thread(fetch, url.replace("/metrics", "/secrets")))[0] == 404
        assert (await say(url, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert await say(url, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 2 * HEAD_LIMIT + b"\r\n\r\n") == b""
        assert (await asyncio.to_thread(fetch, url))[0] == 200, "it is still there"
    with pytest.raises(OSError):
        await say(url, b"")


async def test_where_others_can_reach_it_a_token_is_needed(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("treadle.engine.status_server.is_loopback", lambda host: False)
    reads = (await engine.kernel.tokens.create("prometheus", scopes=[Scope.READ])).secret
    works = (await engine.kernel.tokens.create("worker", scopes=[Scope.WORK])).secret

    async with serve(engine, "0") as url:

        async def status(authorization: str | None) -> int:
            headers = {} if authorization is None else {"Authorization": authorization}
            return (await asyncio.to_thread(fetch, url, headers=headers))[0]

        assert await status(f"Bearer {reads}") == 200
        assert await status(f"Bearer {works}") == 403
        assert [await status(each) for each in (None, "Bearer x", "Bearer", f"Basic {reads}", reads)] == [401] * 5
        await engine.kernel.tokens.revoke("prometheus")
        assert await status(f"Bearer {reads}") == 401


async def test_a_port_in_use_is_skipped(engine: Engine):
    async with serve(engine, "0") as first:
        port = first.split(":")[2].partition("/")[0]
        async with serve(engine, f"127.0.0.1:{port}") as second:
            assert second != first
            assert (await asyncio.to_thread(fetch, second))[0] == 200


def test_listen_addresses_are_parsed():
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert parse_address("[::1]:9464") == ("::1", 9464)
    for wrong in ("", "localhost", "host:", "host:99999", "host:-1"):
        with pytest.raises(InvalidInput):
            parse_address(wrong)
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")] == [True] * 3 + [False] * 2


def test_a_worker_serves_its_metrics(treadle: Treadle):
    environment = {"TREADLE_METRICS_ADDRESS": "0", "TREADLE_LOG_FORMAT": "json"}
    with treadle.started("worker", "--handlers", "jobs", "--json", **environment) as worker:
        url = json.loads(worker.err.wait_for("metrics_served"))["fields"]["url"]
        assert treadle("enqueue", "greet", "--wait").code == 0
        assert 'treadle_claims_total{kind="handler",task_list="default"} 1.0' in fetch(url)[2]
        assert fetch(url.replace("/metrics", "/live"))[::2] == (200, '{"status": "ok"}')
        assert worker.stop().code == 0


async def test_a_probe_names_the_state_and_whether_the_store_answers():
    state, answers = "starting", True

    async def now() -> int:
        if not answers:
            raise StoreUnavailable("postgresql://ada:secret@db cannot be reached")
        return 0

    routes = probe_routes(lambda: state, now)

    async def ask(path: str) -> tuple[int, str]:
        reply = await routes[path]({})
        return reply.status, json.loads(reply.body)["status"]

    assert await ask("/health") == (503, "starting")
    state = "running"
    assert await ask("/health") == (200, "running")
    answers = False
    assert await ask("/health") == (503, "no_store")
    assert await ask("/live") == (200, "ok")


def test_a_runner_serves_its_metrics(treadle: Treadle):
    environment = {"TREADLE_METRICS_ADDRESS": "0", "TREADLE_LOG_FORMAT": "json"}
    with treadle.started("runner", "--json", **environment) as runner:
        url = json.loads(runner.err.wait_for("metrics_served"))["fields"]["url"]
        assert 'treadle_servers{state="running"} 1.0' in fetch(url)[2]
        assert runner.stop().code == 0


async def test_an_answer_that_the_service_is_unavailable_names_a_time_to_retry():
    async def unavailable(_: object) -> HttpReply:
        return error_reply(503, "The store does not answer.")

    server = StatusServer({"/metrics": unavailable}, on_error=lambda error: None)
    await server.listen("127.0.0.1", [0])
    try:
        answer = await say(f"http://127.0.0.1:{server.port}/metrics", b"GET /metrics HTTP/1.1\r\n\r\n")
    finally:
        await server.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in answer
