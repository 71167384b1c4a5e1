"""Resources are read by address, page by page; prompts tell what is known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference, ResourceTemplateReference
from tests.mcp.test_tools import NOBODY, SHOP
from tests.mcp.transports import in_request_context, shop_engine, told

from treadle.interfaces.mcp.resources import find_resource
from treadle.model.access import Scope


async def read(client: Client, uri: str) -> Any:
    (found,) = (await client.read_resource(uri)).contents
    assert found.uri == uri
    assert found.mime_type == "application/json"
    return json.loads(found.text)  # type: ignore[union-attr]


async def test_runs_steps_and_logs_are_read_by_address():
    engine = shop_engine()
    async with engine, in_request_context(engine) as client:
        async with engine.worker():
            run = told(await client.call_tool("afl_execute_workflow", {"source": SHOP, "inputs": {"count": 2}, "wait_for": 50}))
        run_id = run["run_id"]
        assert [each["id"] for each in (await read(client, "afl://runners"))["runs"]] == [run_id]
        assert (await read(client, "afl://runs?state=failed"))["runs"] == []
        assert (await read(client, f"afl://runners/{run_id}"))["outputs"] == {"total": 20.0}
        first = await read(client, f"afl://runners/{run_id}/steps?limit=2")
        rest = await read(client, f"afl://runs/{run_id}/steps?after={first['next_after']}")
        steps = [*first["steps"], *rest["steps"]]
        assert [step["statement_id"] for step in steps] == ["shop.Buy", "shop.Buy/block-0", "shop.Buy/block-0/priced"]
        priced = steps[2]
        assert (priced["workflow_id"], priced["object_type"], priced["facet_name"]) == (run_id, "step", "shop.Price")
        assert (priced["params"], priced["returns"]) == ({"count": 2}, {"total": 20.0})
        assert (priced["container_id"], priced["block_id"]) == (steps[1]["id"], steps[1]["id"])
        assert await read(client, f"afl://steps/{priced['id']}") == priced
        lines = (await read(client, f"afl://runners/{run_id}/logs"))["lines"]
        assert 'Buy: {"total":20.0}' in [each["message"] for each in lines]
        assert (await read(client, "afl://servers"))["servers"][0]["handlers"] == ["shop.Confirm", "shop.Price"]
        assert (await read(client, "afl://status"))["runs"]["completed"] == 1


async def test_flows_tasks_and_the_language_are_read_by_address():
    engine = shop_engine()
    async with engine, in_request_context(engine) as client:
        await client.call_tool("flow_publish", {"name": "shop", "source": SHOP})
        two = [{"name": "a.afl", "text": SHOP}, {"name": "b.afl", "text": "namespace b { facet B() }"}]
        await client.call_tool("flow_publish", {"name": "shop", "sources": two})
        assert [(each["name"], each["version"]) for each in (await read(client, "afl://flows"))["flows"]] == [("shop", 2)]
        shown = await read(client, "afl://flows/shop?version=1")
        assert (shown["event_facets"], shown["sources"]) == (["shop.Price"], [])
        (old,) = (await client.read_resource("afl://flows/shop/source?version=1")).contents
        (new,) = (await client.read_resource("afl://flows/shop/source")).contents
        assert old.text == SHOP  # type: ignore[union-attr]
        assert new.text.startswith(f"// --- a.afl ---\n{SHOP}")  # type: ignore[union-attr]
        assert new.mime_type == "text/plain"
        ids = [(await engine.enqueue("shop.Price", {"count": n})).id for n in range(3)]
        page = await read(client, "afl://tasks?limit=2")
        rest = await read(client, f"afl://tasks?limit=2&before={page['next_before']}")
        assert [each["id"] for each in (*page["tasks"], *rest["tasks"])] == ids[::-1]
        assert (await read(client, f"afl://tasks/{ids[0]}"))["payload"] == {"count": 0}
        assert await read(client, "afl://handlers") == {"handlers": [], "next_after": None}
        (brief,) = (await client.read_resource("afl://language")).contents
        assert brief.mime_type == "text/markdown"


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        (f"afl://runners/{NOBODY}", "run_not_found"),
        (f"afl://steps/{NOBODY}", "step_not_found"),
        (f"afl://tasks/{NOBODY}", "task_not_found"),
        ("afl://flows/none", "flow_not_found"),
        ("afl://handlers/a.B", "handler_not_found"),
        ("afl://tasks?limit=1000", "invalid_input"),
        ("afl://tasks?limit=many", "invalid_input"),
        ("afl://nothing", "not_found"),
        ("file:///etc/passwd", "not_found"),
    ],
)
async def test_a_missing_resource_is_an_error_with_its_code(uri: str, code: str):
    engine = shop_engine()
    async with engine, in_request_context(engine) as client:
        with pytest.raises(MCPError) as raised:
            await client.read_resource(uri)
        assert raised.value.data["code"] == code


async def test_resources_and_prompts_keep_to_the_scope():
    engine = shop_engine()
    async with engine, in_request_context(engine, Scope.WORK) as client:
        with pytest.raises(MCPError) as raised:
            await client.read_resource("afl://tasks")
        assert raised.value.data == {"code": "forbidden", "uri": "afl://tasks", "scope": "read"}
        with pytest.raises(MCPError, match="forbidden"):
            await client.get_prompt("run_debug", {"run_id": NOBODY})


def test_runs_can_be_addressed_as_runners():
    found = find_resource("afl://runs/7/steps?after=3")
    assert found is not None
    assert (found[0].name, found[1]) == ("runner steps", {"runner_id": "7", "after": "3"})
    assert find_resource("afl://runsx") is None


async def test_prompts_include_diagnostics_and_declared_facets():
    engine = shop_engine()
    async with engine, in_request_context(engine) as client:

        async def tell(name: str, **given: str) -> str:
            (message,) = (await client.get_prompt(name, given)).messages
            return message.content.text  # type: ignore[no-any-return, union-attr]

        fix = await tell("afl_fix", source=SHOP.replace("Long", "Lang"))
        assert "line 2, column 30: error: unknown type `Lang`" in fix
        assert "hint: Did you mean `Long`?" in fix
        assert "It compiles" in await tell("afl_fix", source=SHOP)
        async with engine.worker():
            write = await tell("afl_write", goal="Sell tea", namespace="tea")
            begun = {"source": SHOP, "inputs": {"count": -1}, "wait_for": 50}
            run = told(await client.call_tool("afl_execute_workflow", begun))
        assert (run["status"], run["success"]) == ("ERROR", False)
        assert "- shop.Price" in write
        assert "Sell tea" in write
        assert "namespace `tea`" in write
        debug = await tell("run_debug", run_id=run["run_id"])
        assert "nothing to buy" in debug
        assert "Buy.priced" in debug
        assert SHOP.rstrip() in debug
        for name, given in (("afl_write", {}), ("afl_language", {"x": "y"}), ("sing", {})):
            with pytest.raises(MCPError):
                await tell(name, **given)


async def test_arguments_are_completed():
    engine = shop_engine()
    async with engine, in_request_context(engine) as client, in_request_context(engine, Scope.WORK) as worker:
        for name in ("shop", "shelf", "tea"):
            await client.call_tool("flow_publish", {"name": name, "source": SHOP})
        run_id = told(await client.call_tool("run_start", {"flow": "tea", "inputs": {"count": 1}, "wait_for": 0}))["run_id"]
        flow = ResourceTemplateReference(uri="afl://flows/{flow_id}{?version}")
        debug = PromptReference(name="run_debug")
        assert (await client.complete(flow, {"name": "flow_id", "value": "sh"})).completion.values == ["shelf", "shop"]
        assert (await client.complete(debug, {"name": "run_id", "value": ""})).completion.values == [run_id]
        assert (await client.complete(debug, {"name": "run_id", "value": "x"})).completion.values == []
        assert (await client.complete(debug, {"name": "goal", "value": ""})).completion.values == []
        assert (await worker.complete(flow, {"name": "flow_id", "value": ""})).completion.values == []
