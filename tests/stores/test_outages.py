"""Long-running commands start before their database does; a database that rejects them is reported with the fix."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
import pytest

from treadle import Engine
from treadle.interfaces.cli.host import opened
from treadle.kernel.telemetry.events import StoreTrouble
from treadle.model.errors import StoreUnavailable
from treadle.settings import Settings
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
