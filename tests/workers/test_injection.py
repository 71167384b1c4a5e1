"""Dependencies are injected by type, live as long as their scope, and are cleaned up; hooks run once per process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Depends, Engine
from treadle.model.errors import InvalidInput
from treadle.settings import Settings
from treadle.workers.injection import StartFailed


class Pool:
    closed = False


class Session:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool


class Clock:
    pass


def module_pool() -> Iterator[Pool]:
    yield Pool()


def in_process(payload: dict[str, Any], pool: Pool) -> dict[str, Any]:
    return {"got": type(pool).__name__, "n": payload["n"]}


def make() -> Engine:
    return Engine("memory://", settings=Settings())


async def test_instances_are_injected_and_live_as_long_as_their_scope():
    engine, seen, log = make(), [], []

    @engine.provide(Pool)
    async def pool() -> AsyncIterator[Pool]:
        log.append("open")
        made = Pool()
        yield made
        made.closed = True
        log.append("close")

    @engine.provide(Session, scope="task")
    def session(pool: Pool) -> Iterator[Session]:
        yield Session(pool)
        log.append("end")

    @engine.on_start
    async def started() -> None:
        log.append("start")

    @engine.on_stop
    def stopped() -> None:
        log.append("stop")

    @engine.handler("async")
    async def on_loop(payload: Any, ctx: Any, pool: Pool, session: Session) -> None:
        seen.append((payload["n"], ctx.task.name, pool, session))

    @engine.handler("sync")
    def in_thread(payload: Any, *, session: Session) -> dict[str, bool]:
        return {"open": not session.pool.closed}

    async def fetch(n: int, session: Session) -> int:
        seen.append((n, "step", session.pool, session))
        return n + 1

    @engine.function("flow")
    async def flow(payload: Any, ctx: Any, pool: Pool) -> Any:
        return [await ctx.step(fetch, 1), await ctx.step(lambda: 5)]

    async with engine, asyncio.timeout(BOUND):
        async with engine.worker(), engine.worker():
            first = [await engine.enqueue("async", {"n": n}) for n in range(2)]
            for task in first:
                await engine.result(task)
            assert await engine.result(await engine.enqueue("sync")) == {"open": True}
            assert await engine.run_result((await engine.start_function("flow")).id) == [2, 5]
        assert log == ["open", "start", "end", "end", "end", "end", "stop", "close"]
        assert len({id(each[2]) for each in seen}) == 1
        assert len({id(each[3]) for each in seen}) == 3
        assert sorted(each[:2] for each in seen) == [(0, "async"), (1, "async"), (1, "step")]
        async with engine.worker():
            pass
        assert log.count("open") == 2


async def test_an_isolated_process_creates_its_own():
    engine = make()
    engine.provide(Pool, module_pool)
    engine.handler("work", isolation="process")(in_process)
    async with engine, engine.worker(), asyncio.timeout(BOUND):
        assert await engine.result(await engine.enqueue("work", {"n": 3})) == {"got": "Pool", "n": 3}


async def test_a_marker_names_its_factory():
    engine = make()

    async def clock() -> Clock:
        return Clock()

    Now = Annotated[Clock, Depends(clock)]  # noqa: N806

    async def work(payload: Any, now: Any) -> dict[str, str]:
        return {"now": type(now).__name__}

    work.__annotations__["now"] = Now
    engine.handler("work")(work)
    async with engine, engine.worker(), asyncio.timeout(BOUND):
        assert await engine.result(await engine.enqueue("work")) == {"now": "Clock"}


def test_unresolvable_dependencies_are_rejected_at_registration():
    engine = make()

    def unknown(payload: Any, ctx: Any, pool: Pool) -> None: ...

    def marked(payload: Any, pool: Any) -> None: ...

    async def later() -> Pool:
        return Pool()

    def session(pool: Pool) -> Session:
        return Session(pool)

    marked.__annotations__["pool"] = Annotated[Pool, Depends()]
    with pytest.raises(InvalidInput, match=r"engine\.provide"):
        engine.handler("unknown")(unknown)
    with pytest.raises(InvalidInput, match="needs a Pool, which nothing provides"):
        engine.handler("marked")(marked)
    with pytest.raises(InvalidInput, match="has no provider"):
        engine.provide(Session, session)
    with pytest.raises(InvalidInput, match="'worker' or 'task'"):
        engine.provide(Pool, later, scope="process")  # type: ignore[call-overload]
    engine.provide(Pool, later, scope="task")
    with raises_code("handler_exists"):
        engine.provide(Pool, later)
    with pytest.raises(InvalidInput, match="cannot use a dependency of one task"):
        engine.provide(Session, session)
    with pytest.raises(InvalidInput, match="make the function async"):
        engine.handler("unknown")(unknown)


@pytest.mark.parametrize("by", ["hook", "provider"])
async def test_an_error_at_the_start_stops_the_worker_and_cleans_up(by):
    engine, log = make(), []

    @engine.provide(Pool)
    def pool() -> Iterator[Pool]:
        yield Pool()
        log.append("closed")

    def broken() -> Clock:
        raise ConnectionError("no broker")

    if by == "hook":
        engine.on_start(broken)
    else:
        engine.provide(Clock, broken)
    async with engine:
        with pytest.raises(StartFailed, match=r"(start hook .*broken|provider of .*Clock) failed: ConnectionError: no broker"):
            await engine.worker().__aenter__()
        assert log == ["closed"]
        assert await engine.kernel.store.servers.list_all() == []


ORDERS = [
    "payload, ctx, pool, session",
    "payload, pool, ctx, session",
    "pool, payload, session, ctx",
    "pool, session, payload, ctx",
    "payload, pool, session",
    "pool, payload, session",
    "pool, session, payload",
    "pool, session",
    "payload, ctx, /, pool, session",
    "payload, pool, session, /, ctx",
    "pool, payload, /, session, ctx",
    "pool, payload, ctx, *, session",
    "payload, ctx, *, pool, session",
    "n: int, pool, ctx, session",
    "pool, n: int, session",
    "ctx, pool, n: int, session",
    "n: int, /, pool, *, session, ctx",
]
TYPES = {"payload": Any, "ctx": Any, "n": int, "pool": Pool, "session": Session}


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("order", ORDERS)
async def test_dependencies_stand_anywhere_among_the_parameters(order: str, kind: str):
    engine, received = make(), {}
    engine.provide(Pool, Pool)
    engine.provide(Session, Session, scope="task")
    namespace: dict[str, Any] = {"received": received}
    exec(f"{'async ' * (kind == 'async')}def code({order}): received.update(locals())", namespace)
    code = namespace["code"]
    code.__annotations__ = {name: TYPES[name] for name in inspect.signature(code).parameters}
    engine.handler("work")(code)
    async with engine, engine.worker(), asyncio.timeout(BOUND):
        task = await engine.enqueue("work", {"n": 3})
        await engine.result(task)
    names = inspect.signature(code).parameters
    assert received.keys() == names.keys()
    assert isinstance(received["pool"], Pool)
    assert received["session"].pool is received["pool"]
    assert received.get("payload", {"n": 3}) == {"n": 3}
    assert received.get("n", 3) == 3
    assert "ctx" not in names or received["ctx"].task.id == task.id
