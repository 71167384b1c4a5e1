"""Long-running commands start before their database does; a database that rejects them is reported with the fix."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from inspect import iscoroutinefunction
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
import pytest
from tests.engines import port_of
from tests.limits import BOUND

from treadle import Engine
from treadle.agents import Evaluator, Persistence, RegistryRunner, RegistryRunnerConfig, agent
from treadle.interfaces.cli import host
from treadle.interfaces.cli.host import opened
from treadle.interfaces.http.server import HttpOptions
from treadle.kernel.store.ports import Store
from treadle.kernel.telemetry.events import StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreUnavailable
from treadle.model.retry import Backoff
from treadle.settings import Settings
from treadle.stores import make_store
from treadle.stores.postgres.connection.errors import translated


@pytest.fixture
def closed() -> Iterator[socket.socket]:
    """A port that is ours and refuses connections until somebody listens to it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def through(url: str, port: int) -> str:
    """The URL with another port at this machine in place of its server."""
    parts = urlsplit(url)
    schema = parse_qs(parts.query)["schema"][0]
    user = f"{parts.username}@" if parts.username else ""
    return f"postgresql://{user}127.0.0.1:{port}{parts.path}?schema={schema}"


async def dial(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    folder = parse_qs(parts.query).get("host", [""])[0] or unquote(parts.hostname or "")
    if folder.startswith("/"):
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{parts.port or 5432}")
    return await asyncio.open_connection(parts.hostname, parts.port or 5432)


async def forward(url: str, at: socket.socket) -> asyncio.Server:
    """Accept connections at the port and pass them on to the database of the URL."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await dial(url)
        await asyncio.gather(pump(reader, outer), pump(inner, writer), return_exceptions=True)

    return await asyncio.start_server(accept, sock=at)


async def test_a_process_that_starts_before_its_database_waits_for_it(postgres_url: str, closed: socket.socket) -> None:
    events: list[object] = []
    waiting, stop = asyncio.Event(), asyncio.Event()

    def emit(event: object) -> None:
        events.append(event)
        waiting.set()

    engine = Engine(through(postgres_url, closed.getsockname()[1]), settings=Settings(), emit=emit)
    server = None
    try:

        async def use() -> str:
            async with opened(engine, stop) as found:
                return (await found.enqueue("job")).id

        using = asyncio.create_task(use())
        await waiting.wait()
        assert isinstance(events[0], StoreTrouble)
        assert "cannot be reached" in events[0].error
        server = await forward(postgres_url, closed)
        assert await using
    finally:
        if server is not None:
            server.close()


async def test_a_signal_ends_the_wait_for_a_database(closed: socket.socket) -> None:
    stop = asyncio.Event()
    engine = Engine(f"postgresql://x@127.0.0.1:{closed.getsockname()[1]}/x", settings=Settings(), emit=lambda _: stop.set())
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        async with opened(engine, stop):
            pass


async def test_a_database_that_rejects_the_connection_is_not_waited_for(postgres_url: str) -> None:
    parts = urlsplit(postgres_url)
    events: list[object] = []
    engine = Engine(parts._replace(path="/no_such_database").geturl(), settings=Settings(), emit=events.append)
    with pytest.raises(StoreUnavailable, match="createdb"):
        async with opened(engine, asyncio.Event()):
            pass
    assert events == []


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ProtocolViolationError("unsupported startup parameter: search_path"),
        asyncpg.DuplicatePreparedStatementError('prepared statement "__asyncpg_stmt_1__" already exists'),
        asyncpg.InvalidSQLStatementNameError('prepared statement "__asyncpg_stmt_1__" does not exist'),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_pooler_without_its_option_is_reported_with_the_fix(error: Exception) -> None:
    with pytest.raises(StoreUnavailable, match="pgbouncer=1"), translated("postgresql://host/db"):
        raise error


class Cut:
    """A store that loses its connection at one call after it was opened."""

    def __init__(self, at: int) -> None:
        self.remaining = at
        self.opened = False

    def store_of(self, url: str, clock: Clock) -> Store:
        self._inner = make_store(url, clock)
        return cast("Store", self)

    async def open(self, **options: Any) -> None:
        await self._inner.open(**options)
        self.opened = True

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        return port_of(member, self._wrap) or self._wrap(name, member)

    def _wrap(self, name: str, method: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            self.remaining -= self.opened
            if self.remaining == -1 and self.opened:
                raise StoreUnavailable("The connection was cut.")
            return await method(*arguments, **options)

        return call if iscoroutinefunction(method) and name != "close" else method


async def starts(at: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a worker with a server whose store is cut at that call of its start-up; return whether there was such a call."""
    stop, cut = asyncio.Event(), Cut(at)
    engine = Engine("memory://", settings=Settings(), store_of=cut.store_of)
    monkeypatch.setattr(host, "stop_signal", lambda *_: stop)
    monkeypatch.setattr(host, "_OPENING", Backoff(0.001, 0.001))

    @engine.handler("greet", limit_key="greeters")
    async def greet(payload: dict[str, Any]) -> dict[str, Any]:
        return {}

    async def started(server_id: str, server: Any) -> None:
        reached.append(cut.remaining < 0)
        stop.set()

    reached: list[bool] = []
    options = host.Serving(("default",), 1, 1, 1, 5, http=HttpOptions(port=0, open_access=True))
    async with asyncio.timeout(BOUND):
        await host.serve([engine], options, started)
    return reached[-1]


async def test_a_connection_cut_at_any_call_of_the_start_up_does_not_end_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 0
    while await starts(at, monkeypatch):
        at += 1
    assert at > 5


def agent_starts(at: int) -> bool:
    """Run an agent whose store is cut at that call of its start-up; return whether there was such a call."""
    cut = Cut(at)
    persistence = Persistence(engine=Engine("memory://", settings=Settings(), store_of=cut.store_of))
    cut.remaining, cut.opened = at, True
    runner = RegistryRunner(persistence, Evaluator(persistence), RegistryRunnerConfig())
    reached: list[bool] = []

    def started() -> None:
        reached.append(cut.remaining < 0)
        runner.stop()

    runner.on_started = started
    try:
        runner.start()
    finally:
        persistence.close()
    return reached[-1]


def test_a_connection_cut_at_any_call_of_the_start_up_does_not_end_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_STARTING", Backoff(0.001, 0.001))
    at = 0
    while agent_starts(at):
        at += 1
    assert at > 5
