"""A refused call changes nothing: every route, tool and form, for every kind of caller, on a store whose bytes are compared.

Arguments come from the contract's own examples, with the ids of real rows, so that a call that were not refused would act.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tests.http.callers import CALLERS, FLOW, ISSUE, Rows, arguments, headers_of, populate, request_of, sqlite_rows
from tests.http.conftest import Stage
from tests.mcp.transports import in_request_context

from treadle import Engine
from treadle.api.facade import all_calls
from treadle.engine.operations import Operations
from treadle.interfaces.http.access import COOKIE
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.routes import RouteTable
from treadle.interfaces.mcp.catalog import TOOLS
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.web.site import FLASH_COOKIE, add_pages
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.kernel.alerts import service as alerts
from treadle.model.access import Access, Scope, granted
from treadle.model.errors import Forbidden, ListForbidden, TreadleError
from treadle.stores.sqlite import connect_for_reading
from treadle.testing import ManualClock


@dataclass
class World:
    """A server on a file, in which there is one of everything."""

    stage: Stage
    rows: Rows
    ids: dict[str, Any]


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(alerts, "TEST_WITHIN", 0.01)  # no worker sends it
    clock, path = ManualClock(), tmp_path / "treadle.db"
    async with Engine(f"sqlite:///{path}", clock=clock) as engine:
        stage = Stage(engine, clock, make_app(engine, more=[add_pages]))
        state_of(stage.app).callers.logins = FailedLogins(clock, per_address=10**6)
        ids = await populate(engine, tmp_path)
        with closing(connect_for_reading(path)) as line:
            yield World(stage, sqlite_rows(line), ids)


async def calling(world: World, who: str) -> httpx.AsyncClient:
    """A client of that kind."""
    return world.stage.client(**await headers_of(world.stage.engine, who))


async def test_a_refused_call_does_not_change_the_store(world: World):
    """No refused call changes a row or shows a secret."""
    for who in CALLERS:
        await _refused_calls(world, who)


async def _refused_calls(world: World, who: str) -> None:
    count = 0
    async with await calling(world, who) as client:
        for call in all_calls():
            async with world.rows.unchanged(f"{who}: {call.id}") as refused:
                answer = await client.request(**request_of(call, world.ids))
                refused.append(answer.status_code in (401, 403))
            assert answer.status_code < 500, (call.id, answer.text)
            count += refused[0]
    assert (count == 0) is (who == Scope.ADMIN)


@pytest.mark.parametrize("who", [Scope.ENQUEUE, Scope.WORK])
async def test_a_call_that_its_scope_grants_is_answered_even_if_its_caller_may_not_read(world: World, who: Scope):
    """403 after the change was the answer to a job's enqueueing and status: their answers read the job."""
    async with await calling(world, who) as client:
        made = await client.post("/v1/dispatch/jobs", json={"issue": ISSUE})
        assert (made.status_code, made.json()["status"]) == (201, "pending")
        if who is Scope.WORK:
            held = (await client.post("/v1/dispatch/dequeue", json={"worker_id": "me"})).json()["job"]["id"]
            done = await client.post(f"/v1/dispatch/jobs/{held}/status", json={"worker_id": "me", "status": "completed"})
            assert (done.status_code, done.json()["status"]) == (200, "completed")
        assert (await client.get(f"/v1/dispatch/jobs/{made.json()['id']}")).status_code == 403


async def test_a_refused_tool_does_not_change_the_store(world: World):
    """No refused tool changes a row."""
    for scope in Scope:
        await _refused_tools(world, scope)


async def _refused_tools(world: World, scope: Scope) -> None:
    count = 0
    async with in_request_context(world.stage.engine, scope) as client:
        for tool in TOOLS.values():
            async with world.rows.unchanged(f"{scope}: {tool.name}") as refused:
                result = await client.call_tool(tool.name, arguments(world.ids, tool.parameters) | _of(tool.name, world))
                refused.append(bool(result.is_error) and result.structured_content["code"] == "forbidden")
            count += refused[0]
    assert (count == 0) is (scope is Scope.ADMIN)


def _of(tool: str, world: World) -> dict[str, Any]:
    given = {"afl_execute_workflow": {"source": FLOW}, "flow_publish": {"source": FLOW}, "limit_set": {"handler": "x", "rate": 1}}
    return given.get(tool, {})


@pytest.mark.parametrize("scope", Scope)
async def test_a_tool_without_its_scope_calls_no_service(scope: Scope):
    """Neither the contract nor the process of the server: a worker that starts is not in the store."""
    access = Access("ada", granted([scope]))
    context = RequestContext(cast(Any, Unreachable()), access, start_worker=cast(Any, Unreachable()))
    without = [tool for tool in TOOLS.values() if not access.may(tool.scope)]
    assert (without == []) is (scope is Scope.ADMIN)
    for tool in without:
        for called, given in ((tool, {}), (TOOLS["tool_call"], {"name": tool.name})):
            with pytest.raises(Forbidden):
                await called.call(context, given)


class Unreachable:
    """Fails when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was reached")

    def __call__(self, *_: object) -> Any:
        raise AssertionError("it was called")


async def test_a_tool_is_refused_in_a_list_that_the_token_may_not_use(world: World):
    access = Access("ada", frozenset(Scope), task_lists=("mine",))
    context = RequestContext(Operations(world.stage.engine, access), access, start_worker=cast(Any, Unreachable()))
    tools = [tool for tool in TOOLS.values() if "task_list" in tool.input_schema["properties"]]
    assert "worker_start" in [tool.name for tool in tools]
    for tool in tools:
        async with world.rows.unchanged(tool.name) as refused:
            with pytest.raises(TreadleError) as raised:
                await tool.call(context, arguments(world.ids, tool.parameters) | _of(tool.name, world))
            refused.append(True)
        assert isinstance(raised.value, Forbidden | ListForbidden), tool.name


async def test_a_refused_form_does_not_change_the_store(world: World):
    """No refused form changes a row."""
    for scope in (Scope.READ, Scope.APPROVE, Scope.REGISTER, Scope.PUBLISH, Scope.OPERATE):
        await _refused_forms(world, scope)


async def _refused_forms(world: World, scope: Scope) -> None:
    opened = await world.stage.engine.kernel.sessions.open(await world.stage.token(scope, name=scope))
    posts = sorted(
        route.path
        for table in world.stage.app.routes
        if isinstance(table, RouteTable)
        for route in table.routes
        if route.method == "POST" and route.operation is None
    )
    assert len(posts) > 20
    fields = {"csrf": opened.csrf, "title": "x", "task": "x", "workflow": "shop.Buy", "scope": "read", "decision": "approve"}
    given = {each: value for each, value in world.ids.items() if isinstance(value, str)}
    count = 0
    async with world.stage.client(Cookie=f"{COOKIE}={opened.cookie}") as client:
        for path in posts:
            async with world.rows.unchanged(f"{scope}: {path}") as refused:
                place = path.format_map(_Names(given))
                answer = await client.post(place, data={**given, **fields})
                flash = answer.cookies.get(FLASH_COOKIE, "")
                said = bytes.fromhex(flash[1:].strip('"')).decode() if flash.startswith("!") else ""
                refused.append("scope" in said)
            count += refused[0]
    assert count


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "x"
