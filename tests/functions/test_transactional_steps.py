"""Transactional steps: their code changes the user's database exactly once, with every driver, after crashes and in races."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.functions.driver import LEASE_FOR, Died, Scene, function_scene
from tests.limits import BOUND

from treadle import FunctionContext, NonRetryable
from treadle.model.values import decode_error
from treadle.stores import step_results

_numbers = count(1)


class Place(NamedTuple):
    """A database of the user: statements are executed on a connection of the test's own."""

    url: str
    schema: str
    execute: Callable[[str], list[tuple[Any, ...]]]

    @property
    def path(self) -> str:
        """The options that put its tables into the schema."""
        return f"-csearch_path={self.schema}"


@contextmanager
def in_file(path: Path) -> Iterator[Place]:
    def execute(statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(path)
        try:
            with connection:
                return connection.execute(statement).fetchall()
        finally:
            connection.close()

    execute("create table orders (number int)")
    yield Place(str(path), "", execute)


@contextmanager
def on_server(server: str) -> Iterator[Place]:
    schema = f"steps_{threading.get_native_id()}_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
        connection.execute(f"set search_path to {schema}")

        def execute(statement: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

        try:
            execute("create table orders (number int)")
            yield Place(server, schema, execute)
        finally:
            connection.execute(f"drop schema {schema} cascade")


# drivers: what is passed to ctx.transaction, and whether its driver is async


@asynccontextmanager
async def opening_sqlite3(place: Place, **options: Any) -> AsyncIterator[Any]:
    yield partial(sqlite3.connect, place.url, **options)


@asynccontextmanager
async def sqlite3_connection(place: Place) -> AsyncIterator[Any]:
    connection = sqlite3.connect(place.url, check_same_thread=False, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def alchemy(place: Place, kind: str) -> AsyncIterator[Any]:
    arguments = {"connect_args": {"options": place.path}} if place.schema else {}
    url = place.url.replace("postgresql:", "postgresql+psycopg:") if place.schema else f"sqlite:///{place.url}"
    engine = sqlalchemy.create_engine(url, **arguments)
    try:
        match kind:
            case "engine":
                yield engine
            case "sessionmaker":
                yield sessionmaker(engine)
            case "session":
                with sessionmaker(engine)() as session:
                    yield session
            case "connection":
                with engine.connect() as connection:
                    yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def alchemy_async(place: Place, kind: str) -> AsyncIterator[Any]:
    engine = create_async_engine(
        place.url.replace("postgresql:", "postgresql+asyncpg:"), connect_args={"server_settings": {"search_path": place.schema}}
    )
    try:
        match kind:
            case "engine":
                yield engine
            case "sessionmaker":
                yield async_sessionmaker(engine)
            case "session":
                async with async_sessionmaker(engine)() as session:
                    yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def asyncpg_pool(place: Place) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(place.url, min_size=1, max_size=2, server_settings={"search_path": place.schema}) as pool:
        yield pool


@asynccontextmanager
async def opening_asyncpg(place: Place) -> AsyncIterator[Any]:
    yield lambda: asyncpg.connect(place.url, server_settings={"search_path": place.schema})


@asynccontextmanager
async def opening_psycopg(place: Place, connect: Any) -> AsyncIterator[Any]:
    yield partial(connect, place.url, options=place.path, row_factory=psycopg.rows.dict_row)


@asynccontextmanager
async def django_connection(place: Place) -> AsyncIterator[Any]:
    import django
    from django.apps import apps
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure()
    if not apps.ready:
        django.setup()
    options: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": place.url}
    if place.schema:
        parts = psycopg.conninfo.conninfo_to_dict(place.url)
        names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        options = {names[key]: value for key, value in parts.items() if key in names}
        options |= {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"options": place.path}}
    connections.settings["steps"] = connections.configure_settings({"default": {}, "steps": options})["steps"]
    try:
        yield connections["steps"]
    finally:
        del connections.settings["steps"]
        del connections["steps"]


SQLITE: dict[str, Any] = {
    "sqlite3, opened": opening_sqlite3,
    "sqlite3, opened without implicit transactions": partial(opening_sqlite3, isolation_level=None),
    "sqlite3": sqlite3_connection,
    "SQLAlchemy engine on SQLite": partial(alchemy, kind="engine"),
    "SQLAlchemy sessionmaker on SQLite": partial(alchemy, kind="sessionmaker"),
    "Django on SQLite": django_connection,
}
POSTGRES: dict[str, Any] = {
    "psycopg, opened": partial(opening_psycopg, connect=psycopg.connect),
    "async psycopg, opened": partial(opening_psycopg, connect=psycopg.AsyncConnection.connect),
    "asyncpg, opened": opening_asyncpg,
    "asyncpg pool": asyncpg_pool,
    "SQLAlchemy session": partial(alchemy, kind="session"),
    "SQLAlchemy connection": partial(alchemy, kind="connection"),
    "async SQLAlchemy engine": partial(alchemy_async, kind="engine"),
    "async SQLAlchemy sessionmaker": partial(alchemy_async, kind="sessionmaker"),
    "async SQLAlchemy session": partial(alchemy_async, kind="session"),
    "Django": django_connection,
}


class Orders:
    """The code of a step: it stores the order through the session that it receives."""

    def __init__(self, driver: str) -> None:
        self.calls: list[int] = []
        self.fails = False
        self.code: Any = self.add_async if "async" in driver else self.add

    def add(self, session: Any, number: int) -> dict[str, int]:
        self._execute(session, number)
        return {"number": number}

    async def add_async(self, session: Any, number: int) -> dict[str, int]:
        await self._execute(session, number)
        return {"number": number}

    def _execute(self, session: Any, number: int) -> Any:
        self.calls.append(number)
        statement = f"insert into orders values ({number})"
        if self.fails:
            statement = "insert into nothing values (1)"
        if hasattr(session, "ensure_connection"):
            with session.cursor() as cursor:
                return cursor.execute(statement)
        return session.execute(sqlalchemy.text(statement) if "sqlalchemy" in type(session).__module__ else statement)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


@pytest.fixture(params=[*SQLITE, *POSTGRES])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    server = driver in POSTGRES
    with on_server(request.getfixturevalue("postgres_server")) if server else in_file(tmp_path / "shop.db") as opened:
        yield opened


@pytest.fixture
async def source(driver: str, place: Place) -> AsyncIterator[Any]:
    async with (SQLITE | POSTGRES)[driver](place) as opened:
        yield opened


def order(scene: Scene, source: Any, orders: Orders, *, blocking: bool = False) -> None:
    if blocking:

        @scene.engine.function("order")
        def order_sync(payload: Any, ctx: Any) -> Any:
            return ctx.transaction(source, orders.code, 17)
    else:

        @scene.engine.function("order")
        async def order_async(payload: Any, ctx: FunctionContext) -> Any:
            return await ctx.transaction(source, orders.code, 17, name="add")


async def error_of(scene: Scene, run_id: str) -> dict[str, Any]:
    error: Any = decode_error((await scene.engine.kernel.runs.get_run(run_id)).error)
    return dict(error)


async def test_a_crash_before_the_step_is_recorded_here_calls_it_once(scene: Scene, driver: str, place: Place, source: Any) -> None:
    orders = Orders(driver)
    order(scene, source, orders)
    started = await scene.engine.start_function("order")
    with pytest.raises(Died):
        await scene.process(dies_at=1).quiet()
    assert place.execute("select number from orders") == [(17,)]
    scene.clock.advance(LEASE_FOR / 1000)
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == {"number": 17}
    assert orders.calls == [17]
    assert place.execute("select number from orders") == [(17,)]
    assert place.execute("select run_id, name, result from treadle_steps") == [(started.id, "add", '{"number":17}')]


async def test_a_failed_attempt_rolls_back_and_a_retry_commits(scene: Scene, driver: str, place: Place, source: Any) -> None:
    orders = Orders(driver)
    order(scene, source, orders, blocking=True)
    orders.fails = True
    started = await scene.engine.start_function("order")
    await scene.process().quiet()
    assert "nothing" in str(await error_of(scene, started.id))
    assert place.execute("select * from orders") == place.execute("select * from treadle_steps") == []
    orders.fails = False
    await scene.engine.kernel.runs.retry(started.id)
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == {"number": 17}
    assert place.execute("select number from orders") == [(17,)]


PAIRED = ["sqlite3, opened", "psycopg, opened"]


@pytest.mark.parametrize("driver", PAIRED)
async def test_concurrent_attempts_of_a_step_have_one_effect(driver: str, place: Place, source: Any) -> None:
    step = {"step_id": "s", "run_id": "r", "name": "add", "at": 1}
    orders, inside, arrived = Orders(driver), threading.Event(), threading.Event()

    def first(session: Any) -> str:
        inside.set()
        assert arrived.wait(BOUND)
        orders.add(session, 1)
        return "1"

    def connect() -> Any:
        arrived.set()
        return source(timeout=BOUND) if place.schema == "" else source()

    def second(session: Any) -> str:
        orders.add(session, 2)
        return "2"

    one = asyncio.create_task(asyncio.to_thread(step_results.record_step, source, step, first, None))
    assert await asyncio.to_thread(inside.wait, BOUND)
    other = asyncio.to_thread(step_results.record_step, connect, step, second, None)
    assert await asyncio.gather(one, other) == ["1", "1"]
    assert orders.calls == [1]
    assert place.execute("select number from orders") == [(1,)]


@pytest.mark.parametrize("driver", PAIRED)
async def test_old_results_are_deleted(driver: str, place: Place, source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_results, "_uses", count(1))

    def perform(step_id: str, at: int) -> None:
        step = {"step_id": step_id, "run_id": "r", "name": "add", "at": at}
        step_results.record_step(source, step, lambda session: "null", None)

    await asyncio.to_thread(perform, "old", 0)
    await asyncio.to_thread(perform, "new", step_results.KEEP_FOR)
    assert len(place.execute("select 1 from treadle_steps")) == 2
    monkeypatch.setattr(step_results, "_uses", count(step_results.PRUNE_EVERY))
    await asyncio.to_thread(perform, "last", step_results.KEEP_FOR + 1)
    assert place.execute("select step_id from treadle_steps order by at") == [("new",), ("last",)]


async def async_code(session: Any) -> None:
    """Do nothing."""


def blocking_code(session: Any) -> None:
    """Do nothing."""


def returns_session(session: Any) -> Any:
    return session


MISUSES: list[tuple[str, Any, str]] = [
    ("sqlite3, opened", async_code, "must be async exactly if"),
    ("SQLAlchemy engine on SQLite", async_code, "must be async exactly if"),
    ("Django on SQLite", async_code, "must be async exactly if"),
    ("asyncpg, opened", blocking_code, "must be async exactly if"),
    ("asyncpg pool", blocking_code, "must be async exactly if"),
    ("async SQLAlchemy engine", blocking_code, "must be async exactly if"),
    ("sqlite3, opened", returns_session, "cannot be stored"),
]


@pytest.mark.parametrize(("driver", "code", "message"), MISUSES)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")  # a connection that a blocking function cannot await
async def test_a_step_that_cannot_be_transactional_fails(scene: Scene, source: Any, code: Any, message: str) -> None:
    @scene.engine.function("order")
    async def order(payload: Any, ctx: FunctionContext) -> Any:
        return await ctx.transaction(source, code)

    started = await scene.engine.start_function("order")
    await scene.process().quiet()
    assert message in (await error_of(scene, started.id))["message"]


@pytest.mark.parametrize("driver", ["sqlite3", "SQLAlchemy session", "SQLAlchemy connection", "async SQLAlchemy session"])
async def test_an_open_transaction_is_refused(scene: Scene, driver: str, source: Any) -> None:
    orders = Orders(driver)
    order(scene, source, orders)
    begun = source.execute("begin") if driver == "sqlite3" else source.begin()
    if "async" in driver:
        await begun
    started = await scene.engine.start_function("order")
    await scene.process().quiet()
    assert "open transaction" in (await error_of(scene, started.id))["message"]
    assert orders.calls == []
    await source.rollback() if "async" in driver else source.rollback()


@pytest.mark.parametrize(
    ("row", "message"), [("'other', '1'", "the step other at the place of add"), ("'add', null", "autocommit")]
)
@pytest.mark.parametrize("driver", PAIRED)
async def test_a_result_of_another_step_or_without_a_value_is_not_used(
    driver: str, place: Place, source: Any, row: str, message: str
) -> None:
    def perform(step_id: str) -> str:
        step = {"step_id": step_id, "run_id": "r", "name": "add", "at": 1}
        return step_results.record_step(source, step, lambda session: "1", None)

    assert await asyncio.to_thread(perform, "s") == "1"
    place.execute(f"insert into treadle_steps (step_id, run_id, at, name, result) values ('t', 'r', 1, {row})")
    with pytest.raises(NonRetryable, match=message):
        await asyncio.to_thread(perform, "t")


async def test_an_object_is_no_database(scene: Scene) -> None:
    @scene.engine.function("order")
    async def order(payload: Any, ctx: FunctionContext) -> Any:
        return await ctx.transaction(3, blocking_code)

    started = await scene.engine.start_function("order")
    await scene.process().quiet()
    assert "no database of a transactional step" in (await error_of(scene, started.id))["message"]
