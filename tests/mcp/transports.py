"""The ways in which a client reaches the tools: a process over stdio, a server over HTTP, and a process that asks a server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.limits import BOUND

from treadle import ApprovalRequest, AwaitingApproval, Engine
from treadle.engine.operations import Operations
from treadle.interfaces.cli.mcp_mount import add_mcp
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.server import Context, make_server
from treadle.model.access import Access, Scope, granted

Way = Literal["stdio", "http", "http-legacy", "far"]
WAYS: tuple[Way, ...] = ("stdio", "http", "http-legacy", "far")

HANDS = """
from treadle import ApprovalRequest, AwaitingApproval, Engine

print("a module that prints when it is loaded")
engine = Engine()


@engine.handler("shop.Price")
async def price(payload):
    print("a handler that prints")
    return {"total": 10.0 * payload["count"]}


@engine.handler("shop.Confirm")
async def confirm(payload, ctx):
    if ctx.approval_decision is None:
        return AwaitingApproval(ApprovalRequest.of(f"Buy for {payload['total']}?", context=payload))
    return {"by": ctx.approval_decision["by"]}
"""


def shop_engine(url: str = "memory://") -> Engine:
    """An engine with the handlers of the shop."""
    engine = Engine(url)

    @engine.handler("shop.Price")
    async def price(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["count"] < 0:
            raise RuntimeError("nothing to buy")
        return {"total": 10.0 * payload["count"]}

    @engine.handler("shop.Confirm")
    async def confirm(payload: dict[str, Any], ctx: Any) -> Any:
        if ctx.approval_decision is None:
            return AwaitingApproval(ApprovalRequest.of(f"Buy for {payload['total']}?", context=payload))
        return {"by": ctx.approval_decision["by"]}

    return engine


@asynccontextmanager
async def in_request_context(engine: Engine, *scopes: Scope, actor: str = "mcp:ada") -> AsyncIterator[Client]:
    """A client in this process, with all scopes or these."""
    access = Access(actor, granted(scopes) if scopes else frozenset(Scope))
    desk = RequestContext(Operations(engine, access), access)

    async def desk_of(ctx: Context) -> RequestContext:
        return desk

    async with Client(make_server(desk_of)) as client:
        yield client


@asynccontextmanager
async def over_stdio(folder: Path, *args: str, token: str | None = None, mode: str = "auto") -> AsyncIterator[Client]:
    """A client of `treadle mcp`, a process in that folder; what it says on stderr is in the file `stderr`."""
    env = {"TREADLE_TOKEN": token} if token else {}
    command = StdioServerParameters(command=sys.executable, args=["-m", "treadle", "mcp", *args], cwd=folder, env=env)
    with (folder / "stderr").open("w") as errors:
        async with Client(stdio_client(command, errors), mode=mode) as client:
            yield client


@asynccontextmanager
async def over_http(url: str, token: str | None = None, mode: str = "auto") -> AsyncIterator[Client]:
    """A client of a server's `/mcp`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=BOUND, verify=False) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[HttpServer]:
    """A server with MCP on a real socket, open if there are no tokens."""
    options = HttpOptions(port=0, open_access=not await engine.kernel.tokens.any_live())
    async with HttpServer(engine, options, more=(add_mcp,)) as server:
        yield server


@asynccontextmanager
async def by(way: Way, folder: Path, scopes: Sequence[Scope] = (Scope.ADMIN,)) -> AsyncIterator[Client]:
    """A client of an engine with workers, by that way."""
    async with AsyncExitStack() as stack:
        if way == "stdio":
            (folder / "hands.py").write_text(HANDS)
            narrow = [word for scope in scopes if scope is not Scope.ADMIN for word in ("--scope", scope.value)]
            store = f"sqlite:///{folder}/treadle.db"
            yield await stack.enter_async_context(over_stdio(folder, "--store", store, "--handlers", "hands.py", "--work", *narrow))
            return
        engine = await stack.enter_async_context(shop_engine())
        await stack.enter_async_context(engine.worker())
        token = (await engine.kernel.tokens.create("ada", scopes)).secret
        server = await stack.enter_async_context(serving(engine))
        if way == "far":
            yield await stack.enter_async_context(over_stdio(folder, "--server", server.url, token=token))
        else:
            mode = "legacy" if way == "http-legacy" else "auto"
            yield await stack.enter_async_context(over_http(server.url, token, mode))


def told(result: Any) -> dict[str, Any]:
    """The structured answer of a tool that succeeded; its text content is the same JSON."""
    assert not result.is_error, result.content[0].text
    (item,) = result.content
    assert json.loads(item.text) == result.structured_content
    found: dict[str, Any] = result.structured_content
    return found


def refused(result: Any) -> dict[str, Any]:
    """The error with which a tool refused the call."""
    assert result.is_error
    found: dict[str, Any] = result.structured_content
    assert found["success"] is False
    assert json.loads(result.content[0].text) == found
    return found
