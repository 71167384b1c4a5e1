"""The choice among the servers of a URL, without any server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import asyncpg
import pytest

from treadle.model.errors import StoreUnavailable
from treadle.stores.postgres.connection import failover
from treadle.stores.postgres.connection.address import DatabaseServer
from treadle.stores.postgres.connection.failover import ServerSearch, SplitBrain, Standing

SERVERS = [DatabaseServer(name, f"postgresql://ann:s3cret@{name}/work") for name in "abc"]


@dataclass(eq=False)
class Line:
    standing: Standing
    ended: bool = False

    def terminate(self) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    failover._newest.clear()
    yield
    failover._newest.clear()


def primary(timeline: int | None = 1, *, cluster: int | None = 7, started: str = "x", read_only: bool = False) -> Standing:
    return Standing(False, read_only, started, cluster, timeline)


def standby(timeline: int = 1) -> Standing:
    return Standing(True, True, "y", 7, timeline)


class Network:
    """Servers that answer with a standing, an error, or never."""

    def __init__(self, **answers: Standing | Exception | None) -> None:
        self.answers, self.lines, self.asked = answers, dict[str, Line](), list[str]()

    async def connect(self, server: DatabaseServer) -> Line:
        self.asked.append(server.name)
        answer = self.answers[server.name]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        self.lines[server.name] = Line(answer)
        return self.lines[server.name]

    async def find(self, first: DatabaseServer | None = None, target: str = "read-write") -> str:
        server, line = await ServerSearch("postgresql://ann:***@a,b,c/work", SERVERS, target, self.connect).find(first)
        assert not line.ended
        assert all(each.ended for each in self.lines.values() if each is not line)
        return server.name


async def test_the_writable_server_is_used() -> None:
    assert await Network(a=standby(), b=primary(), c=standby()).find() == "b"
    assert await Network(a=primary(read_only=True), b=standby(), c=primary(started="z")).find() == "c"


async def test_a_reconnect_probes_only_the_previous_server() -> None:
    network = Network(a=standby(), b=primary(), c=standby())
    assert await network.find(SERVERS[1]) == "b"
    assert network.asked == ["b"]


async def test_an_unresponsive_server_does_not_delay_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "HEAD_START", 0.01)
    monkeypatch.setattr(failover, "GRACE", 0.01)
    assert await Network(a=None, b=None, c=primary()).find(SERVERS[0]) == "c"


async def test_the_writable_server_after_the_failover_is_used() -> None:
    assert await Network(a=primary(1), b=primary(2, started="z"), c=standby(2)).find() == "b"


async def test_a_standby_reveals_that_a_primary_was_overtaken() -> None:
    with pytest.raises(StoreUnavailable, match="a was overtaken by a failover: it is on timeline 1, and timeline 2 exists"):
        await Network(a=primary(1), b=ConnectionRefusedError("no"), c=standby(2)).find()


async def test_the_highest_timeline_is_remembered_for_each_cluster() -> None:
    assert await Network(a=primary(3), b=standby(3), c=standby(3)).find() == "a"
    with pytest.raises(StoreUnavailable, match="overtaken"):
        await Network(a=standby(2), b=primary(2), c=standby(2)).find()
    assert await Network(a=standby(3), b=primary(1, cluster=8), c=standby(3)).find() == "b"


@pytest.mark.parametrize("other", [primary(started="z"), primary(started="z", cluster=8), primary(None, started="z", cluster=None)])
async def test_two_unordered_servers_are_refused(other: Standing) -> None:
    network = Network(a=primary(), b=standby(), c=other)
    with pytest.raises(SplitBrain, match="several servers take writes"):
        await network.find()
    assert all(line.ended for line in network.lines.values())


async def test_two_names_of_one_server_are_one_server() -> None:
    assert await Network(a=primary(), b=primary(), c=standby()).find() == "a"


async def test_a_server_of_unknown_timeline_is_used() -> None:
    assert await Network(a=standby(), b=primary(None, cluster=None), c=standby()).find() == "b"


async def test_any_server_may_be_read() -> None:
    assert await Network(a=standby(), b=primary(), c=standby()).find(target="any") in "abc"


async def test_the_error_has_the_reason_for_each_server_and_no_password() -> None:
    network = Network(a=ConnectionRefusedError("refused"), b=standby(), c=asyncpg.TooManyConnectionsError("full"))
    with pytest.raises(StoreUnavailable) as caught:
        await network.find()
    said = str(caught.value)
    assert "a cannot be reached" in said
    assert "b is a standby" in said
    assert "c has no connection left" in said
    assert "s3cret" not in said
    assert not caught.value.rejected


async def test_an_error_is_permanent_only_if_all_servers_reject_the_user() -> None:
    wrong = asyncpg.InvalidPasswordError("no")
    for last, rejected in ((wrong, True), (standby(), False)):
        with pytest.raises(StoreUnavailable) as caught:
            await Network(a=wrong, b=wrong, c=last).find()
        assert caught.value.rejected is rejected
