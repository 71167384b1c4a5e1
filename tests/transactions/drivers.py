"""The drivers whose connections callers pass to `Engine.within`: each opens a transaction that ends with its block."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import django
import psycopg
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session


class Opened(NamedTuple):
    """A connection in a transaction; `is_async` drivers need an event loop."""

    connection: Any
    execute: Callable[[str], Any]
    is_async: bool = False


Driver = Callable[[str], AbstractAsyncContextManager[Opened]]


def _address(server: str, driver: str) -> str:
    return server.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def by_asyncpg(server: str) -> AsyncIterator[Opened]:
    connection = await asyncpg.connect(server)
    try:
        async with connection.transaction():
            yield Opened(connection, connection.execute, True)
    finally:
        await connection.close()


@asynccontextmanager
async def by_psycopg(server: str) -> AsyncIterator[Opened]:
    with psycopg.connect(server, row_factory=dict_row) as connection:
        yield Opened(connection, connection.execute)


@asynccontextmanager
async def by_psycopg_async(server: str) -> AsyncIterator[Opened]:
    async with await psycopg.AsyncConnection.connect(server) as connection, connection.transaction():
        yield Opened(connection, connection.execute, True)


@asynccontextmanager
async def by_sqlalchemy(server: str, driver: str = "psycopg") -> AsyncIterator[Opened]:
    engine = sqlalchemy.create_engine(_address(server, driver))
    try:
        with engine.begin() as connection:
            yield Opened(connection, lambda sql: connection.execute(sqlalchemy.text(sql)))
    finally:
        engine.dispose()


def by_sqlalchemy_psycopg2(server: str) -> AbstractAsyncContextManager[Opened]:
    return by_sqlalchemy(server, "psycopg2")


@asynccontextmanager
async def by_sqlalchemy_session(server: str) -> AsyncIterator[Opened]:
    engine = sqlalchemy.create_engine(_address(server, "psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield Opened(session, lambda sql: session.execute(sqlalchemy.text(sql)))
    finally:
        engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_async(server: str) -> AsyncIterator[Opened]:
    engine = create_async_engine(_address(server, "psycopg"))
    try:
        async with engine.begin() as connection:
            yield Opened(connection, lambda sql: connection.execute(sqlalchemy.text(sql)), True)
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_sqlalchemy_async_session(server: str) -> AsyncIterator[Opened]:
    engine = create_async_engine(_address(server, "asyncpg"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield Opened(session, lambda sql: session.execute(sqlalchemy.text(sql)), True)
    finally:
        await engine.dispose()


@asynccontextmanager
async def by_django(server: str) -> AsyncIterator[Opened]:
    from django.apps import apps
    from django.conf import settings
    from django.db.backends.postgresql.base import DatabaseWrapper

    if not settings.configured:
        settings.configure()
    if not apps.ready:
        django.setup()
    given = psycopg.conninfo.conninfo_to_dict(server)
    options = {"NAME": given["dbname"], "USER": given["user"], "PASSWORD": given.get("password", "")}
    options |= {"HOST": given["host"], "PORT": str(given.get("port", ""))}
    defaults = {"ATOMIC_REQUESTS": False, "AUTOCOMMIT": True, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "OPTIONS": {}}
    connection = DatabaseWrapper(defaults | options | {"TIME_ZONE": None, "TEST": {}}, "default")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # noqa: TID251 (the tests run on an event loop; the example does not)
    connection.ensure_connection()
    connection.set_autocommit(False)
    try:
        try:
            yield Opened(connection, lambda sql: connection.cursor().execute(sql))
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
    finally:
        connection.close()


DRIVERS: tuple[Driver, ...] = (
    by_asyncpg,
    by_psycopg,
    by_psycopg_async,
    by_sqlalchemy,
    by_sqlalchemy_psycopg2,
    by_sqlalchemy_session,
    by_sqlalchemy_async,
    by_sqlalchemy_async_session,
    by_django,
)
COMMON = (by_asyncpg, by_psycopg, by_sqlalchemy_psycopg2, by_sqlalchemy_async_session, by_django)
"""One of each kind; `make test-all` tests the others, too."""
