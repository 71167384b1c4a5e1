"""MCP at a server: for whom, under which name, in both eras of the protocol, and how it stops."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError
from tests.limits import BOUND
from tests.mcp.test_tools import SHOP
from tests.mcp.transports import over_http, refused, serving, shop_engine, told

from treadle.model.access import OPEN, Scope

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


async def test_an_open_server_answers_its_own_machine_alone():
    async with shop_engine() as engine, serving(engine) as server, httpx.AsyncClient(timeout=BOUND, verify=False) as http:
        async with over_http(server.url) as client:
            assert told(await client.call_tool("task_list", {})) == {"tasks": [], "complete": True, "next_before": None}
        url = f"{server.url}/mcp"
        assert (await http.post(url, json=HELLO, headers=ACCEPT)).status_code == 200
        for headers, code in (
            ({"Host": "evil.example.org"}, "host_not_allowed"),
            ({"Host": "evil.example.org:8787"}, "host_not_allowed"),
            ({"Origin": "http://evil.example.org"}, "cross_origin"),
            ({"Sec-Fetch-Site": "cross-site"}, "cross_origin"),
            ({"X-Forwarded-For": "192.0.2.1"}, "host_not_allowed"),
        ):
            answer = await http.post(url, json=HELLO, headers={**ACCEPT, **headers})
            assert (answer.status_code, answer.json()["code"]) == (403, code)
        plain = await http.post(url, content=json.dumps(HELLO), headers={**ACCEPT, "Content-Type": "text/plain"})
        assert plain.status_code == 400
        for method in ("GET", "DELETE", "PUT"):
            answer = await http.request(method, url, headers=ACCEPT)
            assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


async def test_a_server_with_tokens_rejects_callers_without_one():
    async with shop_engine() as engine:
        made = await engine.kernel.tokens.create("ada", [Scope.READ])
        async with serving(engine) as server, httpx.AsyncClient(timeout=BOUND, verify=False) as http:
            for headers in ({}, {"Authorization": "Bearer tdl_nonsense"}, {"Authorization": "Basic YTpi"}):
                answer = await http.post(f"{server.url}/mcp", json=HELLO, headers={**ACCEPT, **headers})
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            async with over_http(server.url, made.secret) as client:
                assert told(await client.call_tool("task_list", {}))["tasks"] == []
                await engine.kernel.tokens.revoke("ada")
                with pytest.raises(MCPError):
                    await client.call_tool("task_list", {})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_caller_has_the_scopes_of_its_own_token(mode: str):
    async with shop_engine() as engine:
        reader = (await engine.kernel.tokens.create("reader", [Scope.READ])).secret
        cook = (await engine.kernel.tokens.create("cook", [Scope.WORK, Scope.READ], task_lists=["kitchen"])).secret
        operator = (await engine.kernel.tokens.create("operator", [Scope.OPERATE])).secret
        async with (
            serving(engine) as server,
            over_http(server.url, reader, mode) as reading,
            over_http(server.url, cook, mode) as cooking,
            over_http(server.url, operator, mode) as operating,
        ):
            names = {tool.name for tool in (await reading.list_tools()).tools}
            assert "task_list" in names
            assert not names & {"task_enqueue", "task_cancel", "afl_execute_workflow"}
            said = refused(await reading.call_tool("task_enqueue", {"name": "x"}))
            assert (said["code"], said["scope"]) == ("forbidden", "enqueue")
            task = told(await cooking.call_tool("task_enqueue", {"name": "x", "task_list": "kitchen"}))
            assert refused(await cooking.call_tool("task_enqueue", {"name": "x"}))["code"] == "list_forbidden"
            assert refused(await cooking.call_tool("approval_list", {}))["code"] == "restricted_token"
            await operating.call_tool("task_cancel", {"task_id": task["id"]})
            transitions = told(await reading.call_tool("task_show", {"task_id": task["id"]}))["transitions"]
            assert ("cancel", "operator") in [(transition["transition"], transition["actor"]) for transition in transitions]
            said = refused(
                await operating.call_tool("afl_manage_handlers", {"action": "register", "facet_name": "a.B", "module_uri": "os"})
            )
            assert (said["code"], said["scope"]) == ("forbidden", "register")


async def test_a_list_restricted_token_runs_flows_there_and_sees_diagnostics():
    async with shop_engine() as engine:
        cook = (await engine.kernel.tokens.create("cook", [Scope.OPERATE, Scope.PUBLISH], task_lists=["kitchen"])).secret
        async with serving(engine) as server, over_http(server.url, cook) as client:
            begun = {"source": SHOP, "inputs": {"count": 1}, "wait_for": 0, "task_list": "kitchen"}
            run_id = told(await client.call_tool("afl_execute_workflow", begun))["run_id"]
            assert [run["id"] for run in told(await client.call_tool("run_list", {}))["runs"]] == [run_id]
            said = refused(await client.call_tool("afl_execute_workflow", {**begun, "source": SHOP.replace("Long", "Lang")}))
            assert (said["code"], said["diagnostics"][0]["line"]) == ("invalid_flow", 2)


async def test_a_body_may_not_be_too_large():
    async with shop_engine() as engine, serving(engine) as server, httpx.AsyncClient(timeout=BOUND, verify=False) as http:
        big = {**HELLO, "padding": "x" * (engine.kernel.settings.payload_limit + (2 << 20))}
        assert (await http.post(f"{server.url}/mcp", json=big, headers=ACCEPT)).status_code == 413


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_waiting_caller_gets_the_current_state_when_the_server_stops(mode: str):
    async with shop_engine() as engine:
        server = serving(engine)
        running = await server.__aenter__()
        async with over_http(running.url, mode=mode) as client:
            begun = {"source": SHOP, "inputs": {"count": 1}, "wait_for": 0}
            run_id = told(await client.call_tool("afl_execute_workflow", begun))["run_id"]
            waits = _Waits(engine)
            waiting = asyncio.create_task(client.call_tool("run_outputs", {"run_id": run_id, "wait_for": 50}))
            await waits.begun.wait()
            stopping = asyncio.create_task(server.__aexit__(None, None, None))
            ended = told(await waiting)
            assert (ended["state"], ended["finished"]) == ("running", False)
            await stopping


async def test_waiting_calls_count_towards_the_limit_of_waiting_callers():
    async with shop_engine() as engine, serving(engine) as server, over_http(server.url) as client, AsyncExitStack() as others:
        task = await engine.enqueue("later")
        for _ in range(engine.kernel.settings.http_waiting_each):
            others.enter_context(server.state.waiters.join(OPEN))
        asked = {"task_id": task.id, "wait_for": 50}
        assert refused(await client.call_tool("task_result", asked))["code"] == "too_many_waiting"
        assert told(await client.call_tool("task_result", {**asked, "wait_for": 0}))["finished"] is False


class _Waits:
    """Says when somebody waits for the end of a run."""

    def __init__(self, engine: Any) -> None:
        self.begun = asyncio.Event()
        wait = engine.kernel.results.of

        async def told_of(*args: Any, **options: Any) -> Any:
            self.begun.set()
            return await wait(*args, **options)

        engine.kernel.results.of = told_of
