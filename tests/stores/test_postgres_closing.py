"""Connections that are still being opened while the store closes: nobody is left with one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.limits import BOUND

from treadle.kernel.store.process import SystemClock
from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.connect import HOT, Connector, Pool, PostgresConnection
from treadle.stores.postgres.connection.signals import ChannelNotifier
from treadle.testing import ManualClock


class SlowConnector(Connector):
    """Opens connections, and hands them over when it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(parse_address(url))
        self.opened: list[PostgresConnection] = []
        self.is_open, self.go_on = asyncio.Event(), asyncio.Event()

    async def connect(self, *arguments: Any, **options: Any) -> PostgresConnection:
        self.opened.append(await super().connect(*arguments, **options))
        self.is_open.set()
        await self.go_on.wait()
        return self.opened[-1]


async def test_a_pool_that_closes_leaves_no_connection_that_was_being_opened(postgres_url: str) -> None:
    connector = SlowConnector(postgres_url)
    pool = Pool(connector, HOT, 1)

    async def use() -> None:
        async with pool.connection():
            pass

    using = asyncio.ensure_future(use())
    await connector.is_open.wait()
    await pool.close()
    connector.go_on.set()
    await using
    assert [connection.is_closed() for connection in connector.opened] == [True]


async def test_a_voice_that_closes_leaves_no_connection_that_was_being_opened(postgres_url: str) -> None:
    connector = SlowConnector(postgres_url)
    voice = ChannelNotifier(connector, ManualClock())
    telling = asyncio.ensure_future(voice.notify([1]))
    await connector.is_open.wait()
    await voice.close()
    connector.go_on.set()
    await telling
    assert [connection.is_closed() for connection in connector.opened] == [True]


@pytest.mark.parametrize("turns", range(6))
async def test_closing_a_store_stops_listening_when_its_session_ends_concurrently(postgres_url: str, turns: int) -> None:
    """Closing does not hang."""
    store = PostgresStore(postgres_url, clock=SystemClock())
    await store.open()
    await store.subscribe(lambda queues: None)
    store._listener._connection.terminate()
    for _ in range(turns):  # so that the end of the session and the cancellation also arrive together
        await asyncio.sleep(0)
    async with asyncio.timeout(BOUND):
        await store.close()
