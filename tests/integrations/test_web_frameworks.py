"""The integrations of Flask, SQLAlchemy and Django, as far as the example applications do not show it."""

from __future__ import annotations

import asyncio
import threading
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import pytest
import sqlalchemy
from flask import Flask, current_app
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from tests.engines import make_engine
from tests.limits import BOUND

from treadle import BlockingFunctionContext, Engine
from treadle.integrations.flask import Treadle
from treadle.integrations.processes import close_engines, store_url
from treadle.integrations.sqlalchemy import attach, work
from treadle.model.errors import InvalidInput
from treadle.stores.postgres.connection.address import parse_address


async def test_handlers_of_flask_run_in_the_application_context_of_the_configured_store(tmp_path):
    treadle = Treadle(make_engine("memory://"))
    app = Flask("shop")
    app.config["TREADLE_STORE"] = f"sqlite:///{tmp_path / 'shop.db'}"

    @treadle.handler("name")
    def name(payload: dict[str, Any]) -> dict[str, Any]:
        return {"app": current_app.name, "n": payload["n"]}

    @treadle.engine.function("names")
    def names(payload: dict[str, Any], ctx: BlockingFunctionContext) -> list[str]:
        def name_of_app() -> str:
            return current_app.name

        return [ctx.step(name_of_app), ctx.effect("name", name_of_app)]

    treadle.init_app(app)
    assert app.extensions["treadle"] is treadle
    assert sorted(app.cli.commands["treadle"].commands) == ["migrate", "worker"]
    async with treadle.engine as engine, engine.worker(), asyncio.timeout(BOUND):
        task = await asyncio.to_thread(lambda: treadle.waiting.enqueue("name", {"n": 1}))
        assert await engine.result(task.id) == {"app": "shop", "n": 1}
        assert await (await engine.start("names")).result() == ["shop", "shop"]
    assert treadle.waiting is treadle.waiting
    close_engines()


async def test_a_web_process_starts_functions_before_any_worker_has_run(tmp_path):
    treadle = Treadle(make_engine(f"sqlite:///{tmp_path / 'shop.db'}"))

    @treadle.engine.function("double")
    def double(n: int, ctx: BlockingFunctionContext) -> int:
        return 2 * n

    run = await asyncio.to_thread(lambda: treadle.waiting.start(double, 7))
    async with treadle.engine as engine, engine.worker(), asyncio.timeout(BOUND):
        assert await engine.result(run.id) == 14
    close_engines()


async def test_sessions_of_an_attached_maker_start_work(postgres_url, postgres_server):
    async with make_engine(postgres_url) as engine:
        database = sqlalchemy.create_engine(postgres_server.replace("postgresql:", "postgresql+psycopg:"))
        with attach(sessionmaker(database), engine).begin() as session:
            made = work(session).enqueue("charge", {"order": 1})
            with session.begin_nested() as savepoint:
                work(session).enqueue("charge", {"order": 2})
                savepoint.rollback()
        database.dispose()
        remote = create_async_engine(postgres_server.replace("postgresql:", "postgresql+asyncpg:"))
        async with attach(async_sessionmaker(remote), engine, notify=True).begin() as session:
            other = await work(session).enqueue("charge", {"order": 3})
        await remote.dispose()
        assert {task.id for task in await engine.kernel.reads.list_tasks(kind="handler")} == {made.id, other.id}
    with pytest.raises(InvalidInput, match="attach"):
        work(sessionmaker()())


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (
            {"dbname": "shop", "user": "ada", "password": "p@s/s", "host": "db", "port": 5433},
            "postgresql://ada:p%40s%2Fs@db:5433/shop",
        ),
        ({"dbname": "shop", "user": "ada", "host": "/run/pg", "port": "5433"}, "postgresql://ada@/shop?host=%2Frun%2Fpg&port=5433"),
        ({"database": "a b", "sslmode": "require"}, "postgresql:///a%20b?sslmode=require"),
    ],
)
def test_the_store_of_another_library_s_database(parameters, expected):
    address = parse_address(store_url(parameters, "work"))
    assert (address.schema, set(address.dsn.split("?")[0:1])) == ("work", {expected.split("?")[0]})
    assert all(unquote(part) in unquote(address.dsn) for part in expected.partition("?")[2].split("&"))


def test_settings_of_django_are_checked():
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.test.utils import override_settings

    from treadle.integrations.django.engine import get_engine

    if not settings.configured:
        settings.configure()
    with override_settings(TREADLE={"STOER": "memory://"}), pytest.raises(ImproperlyConfigured, match="unknown key STOER"):
        get_engine()
    with override_settings(TREADLE={"STORE": "memory://"}):
        assert isinstance(get_engine(), Engine)
    get_engine.cache_clear()


async def test_connections_of_django_are_checked_around_the_steps_of_sync_functions(monkeypatch):
    from django.conf import settings
    from django.test.utils import override_settings

    module = import_module("treadle.integrations.django.engine")
    checks: list[str] = []
    monkeypatch.setattr(module, "close_old_connections", lambda: checks.append(threading.current_thread().name))
    if not settings.configured:
        settings.configure()
    with override_settings(TREADLE={"STORE": "memory://"}):
        engine = module.get_engine()
    module.get_engine.cache_clear()

    @engine.function("f")
    def function(payload: dict[str, Any], ctx: BlockingFunctionContext) -> int:
        return ctx.step(lambda: len(checks))

    async with engine, engine.worker(), asyncio.timeout(BOUND):
        assert await (await engine.start("f")).result() == 1
    assert len(checks) == 2
    assert threading.current_thread().name not in checks
