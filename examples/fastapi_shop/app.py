"""A shop on FastAPI: an order and the task that charges it are stored in one transaction.

    DATABASE_URL=postgresql://localhost/shop uvicorn app:app --port 8000
    curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"total": 4200}'

The dashboard is at http://localhost:8000/treadle, for users of the shop (here: the name and password admin).
"""

import base64
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from treadle import Engine
from treadle.integrations.fastapi import EngineDep, lifespan, mount

DATABASE_URL = os.environ["DATABASE_URL"]  # noqa: TID251

engine = Engine(os.environ.get("TREADLE_STORE", DATABASE_URL))  # noqa: TID251


@engine.provide(asyncpg.Pool)
async def worker_pool() -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(DATABASE_URL, min_size=1) as pool:
        yield pool


@engine.handler("charge", retry=5)
async def charge(payload: dict[str, Any], pool: asyncpg.Pool) -> dict[str, Any]:
    # A worker that dies is replaced, so this may run twice: the key of the table makes the second time a no-op.
    await pool.execute("insert into charges (order_id) values ($1) on conflict do nothing", payload["order"])
    return {"charged": payload["order"]}


@asynccontextmanager
async def database(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(DATABASE_URL, min_size=1) as pool:
        await pool.execute("create table if not exists orders (id bigserial primary key, total bigint not null)")
        await pool.execute("create table if not exists charges (order_id bigint primary key references orders)")
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan(engine, worker=True, then=database))


class Order(BaseModel):
    total: int = Field(gt=0)


@app.post("/orders", status_code=201)
async def create_order(order: Order, request: Request, engine: EngineDep) -> dict[str, Any]:
    async with request.app.state.pool.acquire() as connection, connection.transaction():
        order_id = await connection.fetchval("insert into orders (total) values ($1) returning id", order.total)
        await engine.within(connection, notify=True).enqueue("charge", {"order": order_id})
    return {"id": order_id}


@app.get("/orders/{order_id}")
async def show_order(order_id: int, request: Request) -> dict[str, Any]:
    query = "select total, order_id is not null from orders left join charges on order_id = id where id = $1"
    row = await request.app.state.pool.fetchrow(query, order_id)
    if row is None:
        raise HTTPException(404)
    return {"id": order_id, "total": row[0], "charged": row[1]}


def current_admin(request: Request) -> str:
    """Return the user of the request; this shop knows one."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind != "Basic" or not secrets.compare_digest(given.encode(), base64.b64encode(b"admin:admin")):
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})
    return "admin"


mount(app, engine, "/treadle", authenticate=current_admin)
