"""A server on a real socket: where it listens, whom it answers, and how it stops."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.commands import Treadle
from tests.limits import BOUND

from treadle.client import Client
from treadle.engine import Engine
from treadle.interfaces.http.server import (
    HEAD_LIMIT,
    MAX_PORT_ATTEMPTS,
    HttpOptions,
    HttpServer,
    is_loopback,
    listen,
)
from treadle.model.access import Scope
from treadle.model.errors import Refused, TreadleError

ANY = HttpOptions(port=0, open_access=True)


@pytest.fixture
def treadle(tmp_path: Path) -> Treadle:
    return Treadle(tmp_path)


@contextmanager
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


# --- addresses ---


def test_answers_are_sent_without_the_delay_of_nagle():
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP, "asyncio sets TCP_NODELAY only on such sockets; else answers take 40 ms more"


def test_a_taken_default_port_is_skipped(monkeypatch: pytest.MonkeyPatch):
    with taken() as port:
        monkeypatch.setattr("treadle.interfaces.http.server.DEFAULT_PORT", port)
        found = listen("127.0.0.1", None)
        try:
            assert port < found.getsockname()[1] <= port + MAX_PORT_ATTEMPTS
        finally:
            found.close()


def test_a_fully_used_port_range_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("treadle.interfaces.http.server.MAX_PORT_ATTEMPTS", 0)
    with taken() as port:
        monkeypatch.setattr("treadle.interfaces.http.server.DEFAULT_PORT", port)
        with pytest.raises(TreadleError, match=str(port)):
            listen("127.0.0.1", None)


def test_a_chosen_port_that_is_taken_is_an_error():
    with taken() as port, pytest.raises(TreadleError, match=f"Port {port} of 127.0.0.1 is taken"):
        listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(TreadleError):
        listen("192.0.2.1", 0)
    with pytest.raises(TreadleError):
        listen("no such host", 0)


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("", False)])
def test_loopback_addresses_are_recognised(host: str, expected: bool):
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
async def test_without_a_token_only_loopback_is_served(host: str):
    async with Engine("memory://") as engine:
        with pytest.raises(Refused, match="token create"):
            await HttpServer(engine, HttpOptions(host=host, port=0)).listen()


async def test_with_a_token_it_listens_anywhere_and_is_never_open():
    async with Engine("memory://") as engine:
        made = await engine.kernel.tokens.create("ada", [Scope.ADMIN])
        async with (
            HttpServer(engine, HttpOptions(host="0.0.0.0", port=0)) as server,
            httpx.AsyncClient(timeout=BOUND, verify=False) as client,
        ):
            assert not server.open
            assert (await client.get(f"{server.url}/v1/time")).status_code == 401
            await engine.kernel.tokens.revoke("ada")
            assert (await client.get(f"{server.url}/v1/time")).status_code == 401
            shown = {"Authorization": f"Bearer {made.secret}"}
            assert (await client.get(f"{server.url}/v1/time", headers=shown)).status_code == 401


async def test_only_headers_of_a_trusted_proxy_are_believed():
    async with Engine("memory://") as engine:
        secret = (await engine.kernel.tokens.create("ada", [Scope.ADMIN])).secret
        for allowed, secure in (("127.0.0.1", True), ("192.0.2.1", False), ("", False)):
            async with (
                HttpServer(engine, HttpOptions(port=0, open_access=True, forwarded_allow=allowed)) as server,
                httpx.AsyncClient(timeout=BOUND, verify=False) as client,
            ):
                said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}
                answer = await client.post(f"{server.url}/login", json={"token": secret}, headers=said)
                assert ("Secure" in answer.headers["Set-Cookie"]) is secure


# --- slow and endless callers ---


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: 1"])
async def test_a_connection_without_a_request_is_closed(sent: bytes):
    async with Engine("memory://") as engine, HttpServer(engine, HttpOptions(port=0, open_access=True, head_within=0.1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()


async def test_request_timeouts_apply_after_a_response_but_not_during_one():
    async with Engine("memory://") as engine, HttpServer(engine, HttpOptions(port=0, open_access=True, head_within=1)) as server:
        task = await engine.enqueue("never")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(f"GET /v1/tasks/{task.id}/result?wait_for=1.5 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        assert json.loads(await reader.readexactly(length))["finished"] is False
        writer.write(b"GET /health HTTP/1.1\r\n")
        assert await reader.read() == b""
        writer.close()


async def test_a_head_without_an_end_is_cut():
    async with Engine("memory://") as engine, HttpServer(engine, ANY) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * (2 * HEAD_LIMIT))
        answer = b""
        with suppress(ConnectionResetError):  # while it is still being sent
            answer = await reader.read()
        assert answer == b"" or b" 400 " in answer.partition(b"\r\n")[0]
        writer.close()


# --- stopping ---


async def test_a_client_works_over_a_real_connection():
    async with Engine("memory://") as engine, HttpServer(engine, ANY) as server, Client(server.url) as client:
        assert server.open
        made = await client.tasks.enqueue("greet", {"name": "Ada"})
        assert (await client.tasks.get(made.id)).payload == {"name": "Ada"}
        with pytest.raises(ValueError, match="bytes"):
            await client.tasks.enqueue("greet", {"big": "x" * (3 << 20)})


async def test_long_polls_end_immediately_when_the_server_stops():
    async with Engine("memory://") as engine:
        async with HttpServer(engine, HttpOptions(port=0, open_access=True, grace=60)) as server:
            client = Client(server.url)
            made = await client.tasks.enqueue("greet")
            asking = asyncio.create_task(client.tasks.result(made.id, wait_for=60))
            while not len(server.state.waiters):  # noqa: ASYNC110 - a waiter sets no event
                await asyncio.sleep(0.01)
        answer = await asking
        assert (answer.finished, answer.state) == (False, "pending")
        await client.close()


async def test_waiting_ends_when_the_caller_disconnects():
    """The request does not go on waiting, which `ended` shows."""
    async with Engine("memory://") as engine, HttpServer(engine, ANY) as server:
        waiting, ended = asyncio.Event(), asyncio.Event()

        async def result(*args: object, **options: object) -> object:
            waiting.set()
            try:
                return await asyncio.Event().wait()
            finally:
                ended.set()

        engine.kernel.results.of = result  # type: ignore[method-assign,assignment]
        client = Client(server.url)
        made = await client.tasks.enqueue("greet")
        asking = asyncio.create_task(client.tasks.result(made.id, wait_for=60))
        await waiting.wait()
        asking.cancel()
        await client.close()
        await ended.wait()


async def test_a_request_in_progress_completes_during_shutdown():
    async with Engine("memory://") as engine:
        asked, go = asyncio.Event(), asyncio.Event()
        now = engine.kernel.store.now

        async def slow() -> int:
            asked.set()
            await go.wait()
            return await now()

        async with httpx.AsyncClient(timeout=BOUND, verify=False) as client:
            async with HttpServer(engine, ANY) as server:
                engine.kernel.store.now = slow  # type: ignore[method-assign]
                asking = asyncio.create_task(client.get(f"{server.url}/health"))
                await asked.wait()
                asyncio.get_running_loop().call_soon(go.set)
            assert (await asking).status_code == 200
        engine.kernel.store.now = now  # type: ignore[method-assign]


# --- the commands ---


def test_up_serves_http_beside_its_worker_and_prints_the_address(treadle: Treadle):
    with treadle.started("up", "--json") as up:
        started = json.loads(up.first)
        assert started["open"] is False
        assert httpx.get(f"{started['url']}/health", timeout=BOUND).json()["access"] == "token"
        assert httpx.post(f"{started['url']}/v1/tasks", json={"name": "greet"}, timeout=BOUND).status_code == 401
        file = Path(started["token_file"])
        assert (file.parent, file.stat().st_mode & 0o777) == (treadle.folder, 0o600)
        shown = {"Authorization": f"Bearer {file.read_text().strip()}"}
        assert httpx.post(f"{started['url']}/v1/tasks", json={"name": "greet"}, headers=shown, timeout=BOUND).status_code == 201
        assert treadle.json("tasks", "list", "--server", started["url"])["tasks"]  # commands find the file
        with httpx.Client(timeout=BOUND, verify=False) as browser:
            assert browser.get(started["sign_in"]).status_code == 200
            assert browser.get(f"{started['url']}/session").json()["actor"] == "local"
        ended = up.stop()
    assert (ended.code, json.loads(ended.out)["event"]) == (0, "stopped")


def test_serve_serves_without_a_worker_and_needs_a_token_beyond_loopback(treadle: Treadle):
    refused = treadle("serve", "--host", "0.0.0.0", "--json")
    assert (refused.code, refused.error["code"]) == (5, "needs_token")
    secret = treadle.json("token", "create", "ada", "--scope", "admin")["secret"]
    with treadle.started("serve", "--host", "0.0.0.0", "--json") as serving:
        started = json.loads(serving.first)
        assert started["open"] is False
        assert httpx.get(f"{started['url']}/v1/tasks", timeout=BOUND).status_code == 401
        assert treadle("tasks", "list", "--server", started["url"], TREADLE_TOKEN=secret).code == 0
        assert treadle("workers").code == 0
        assert serving.stop().code == 0


def test_up_without_http_listens_nowhere(treadle: Treadle):
    with treadle.started("up", "--no-http", "--json") as up:
        assert "url" not in json.loads(up.first)


def test_up_works_without_the_packages_and_explains_how_to_install_them(tmp_path: Path):
    script = (
        "import asyncio, sys\n"
        "sys.modules['uvicorn'] = None\n"
        "from treadle.interfaces.cli import host, main\n"
        "def stopped(at_eof=False):\n"
        "    event = asyncio.Event()\n"
        "    event.set()\n"
        "    return event\n"
        "host.stop_signal = stopped\n"
        "main(['up', '--store', 'memory://'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=BOUND)
    assert ended.returncode == 0
    assert "pip install 'treadle[http]'" in ended.stderr
    assert "Stopped" in ended.stdout


def test_a_first_start_is_closed_even_through_a_plain_proxy_and_after_the_last_token_expired(treadle: Treadle):
    """A TCP proxy adds no headers, and its connections come from this machine: nothing tells its callers from local ones."""
    treadle.json("token", "create", "short", "--scope", "admin", "--expires", "1ms")
    with treadle.started("serve", "--json") as serving:
        started = json.loads(serving.first)
        assert started["open"] is False
        with proxied(int(started["url"].rpartition(":")[2])) as port:
            for host in ("127.0.0.1", f"127.0.0.1:{port}", "work.example.org"):
                for headers in ({}, {"X-Forwarded-For": "127.0.0.1"}, {"X-Real-IP": "::1", "Forwarded": "for=127.0.0.1"}):
                    answer = httpx.post(
                        f"http://127.0.0.1:{port}/v1/tokens",
                        json={"name": "evil", "scopes": ["admin"]},
                        headers={"Host": host, **headers},
                        timeout=BOUND,
                    )
                    assert answer.status_code == 401
    assert [token["name"] for token in treadle.json("token", "list")["tokens"]] == ["local"]


def test_open_access_is_explicit_visible_and_limited_to_loopback(treadle: Treadle):
    refused = treadle("serve", "--open", "--host", "0.0.0.0", "--json")
    assert (refused.code, refused.error["code"]) == (5, "needs_token")
    treadle.json("token", "create", "ada", "--scope", "admin")
    with treadle.started("serve", "--open", "--json") as serving:
        started = json.loads(serving.first)
        assert (started["open"], "sign_in" in started) == (True, False)
        assert httpx.get(f"{started['url']}/v1/tasks", timeout=BOUND).status_code == 200
        assert "This server is open" in httpx.get(f"{started['url']}/", timeout=BOUND).text
        status = treadle("status", "--server", started["url"])
        assert "open to every caller" in status.out
        assert started["url"] in treadle("status").out
        (shown,) = treadle.json("status")["open_servers"]
        assert shown.startswith(f"{started['url']} on ")
        assert serving.stop().code == 0
    assert treadle.json("status")["open_servers"] == []


@contextmanager
def proxied(target: int) -> Iterator[int]:
    """The port of a proxy that passes bytes on as they are."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                caller, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", target))
                opened.extend((caller, server))
                for pair in ((caller, server), (server, caller)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        for each in opened:
            each.close()
