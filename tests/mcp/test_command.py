"""`treadle mcp` and the servers that have it, as real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.commands import Treadle
from tests.limits import BOUND
from tests.mcp.test_mount import HELLO
from tests.mcp.test_tools import SHOP
from tests.mcp.transports import over_http, over_stdio, refused, told

from treadle.interfaces.mcp.catalog import DEFAULT, TOOLS, TOOLSET_OF
from treadle.model.access import Scope

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "mcp").glob("*.json"))


@pytest.fixture
def treadle(tmp_path: Path) -> Treadle:
    return Treadle(tmp_path)


async def test_a_scope_limits_the_tools_offered_over_stdio(treadle: Treadle):
    async with over_stdio(treadle.folder, "--store", treadle.store, "--scope", "read", mode="legacy") as client:
        assert client.server_info.name == "treadle"
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert listed == {name for name, tool in TOOLS.items() if tool.scope is Scope.READ and TOOLSET_OF[name] in DEFAULT}
        said = refused(await client.call_tool("task_enqueue", {"name": "x"}))
        assert (said["code"], said["scope"]) == ("forbidden", "enqueue")
        assert told(await client.call_tool("task_list", {}))["tasks"] == []


async def test_an_unreachable_server_and_a_bad_token_are_tool_errors(treadle: Treadle):
    with treadle.started("serve", "--json") as serving:
        url = json.loads(serving.first)["url"]
        treadle.json("token", "create", "ada", "--scope", "read")
        async with over_stdio(treadle.folder, "--server", url, token="tdl_wrong") as client:
            assert refused(await client.call_tool("task_list", {}))["code"] == "unauthorized"
            assert serving.stop().code == 0
            assert refused(await client.call_tool("task_list", {}))["code"] == "server_unreachable"


@contextmanager
def spoken_to(treadle: Treadle, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, with a stdin that stays open."""
    command = [sys.executable, "-m", "treadle", "mcp", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=treadle.folder, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_over_stdio_a_signal_ends_the_server_with_stdin_open(treadle: Treadle, sign: signal.Signals):
    with spoken_to(treadle, "--store", treadle.store, "--work") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(HELLO) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "treadle"
        process.send_signal(sign)
        assert process.wait(BOUND) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
    assert [server["state"] for server in treadle.json("workers")["servers"]] == ["stopped"] * 2  # of engine and registry


def test_over_stdio_an_invalid_store_is_reported_immediately_with_stdin_open(treadle: Treadle):
    with spoken_to(treadle, "--store", "nonsense://x") as process:
        assert process.wait(BOUND) == 2
        assert process.stderr is not None
        assert "invalid_store_url" in process.stderr.read()


async def test_with_a_worker_it_serves_handlers_registered_in_the_store(treadle: Treadle):
    (treadle.folder / "prices.py").write_text('def handle(payload):\n    return {"total": 2.5 * payload["count"]}\n')
    treadle("handlers", "register", "shop.Price", "prices")
    async with over_stdio(treadle.folder, "--store", treadle.store, "--work") as client:
        bought = told(await client.call_tool("afl_execute_workflow", {"source": SHOP, "inputs": {"count": 2}, "wait_for": 30}))
        assert (bought["status"], bought["outputs"]) == ("COMPLETED", {"total": 5.0})


@pytest.mark.parametrize("command", ["up", "mcp"])
async def test_servers_offer_mcp_and_stop_on_request(treadle: Treadle, command: str):
    arguments = ["mcp", "--http"] if command == "mcp" else ["up"]
    with treadle.started(*arguments, "--json") as serving:
        started = json.loads(serving.first)
        url, secret = started["url"], Path(started["token_file"]).read_text().strip()  # noqa: ASYNC240
        async with over_http(url.removesuffix("/mcp"), secret) as client:
            made = told(await client.call_tool("task_enqueue", {"name": "x"}))
            assert told(await client.call_tool("task_show", {"task_id": made["id"]}))["state"] == "pending"
        assert serving.stop().code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--http", "--server", "http://127.0.0.1:1"), "http://127.0.0.1:1/mcp"),
        (("--http", "--scope", "read"), "token create"),
        (("--server", "http://127.0.0.1:1", "--scope", "read"), "the token decides"),
        (("--server", "http://127.0.0.1:1", "--work"), "the token decides"),
        (("--http", "--host", "0.0.0.0"), "token create"),
    ],
)
def test_invalid_options_are_rejected(treadle: Treadle, arguments: tuple[str, ...], said: str):
    ended = treadle("mcp", *arguments)
    assert ended.code != 0
    assert said in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_configuration_are_understood(treadle: Treadle, path: Path):
    (server,) = json.loads(path.read_text())["mcpServers"].values()
    if "command" not in server:
        assert server["url"].endswith("/mcp")
        return
    assert server["command"] == "treadle"
    options = treadle("mcp", "--help").out
    assert [word for word in server["args"] if word.startswith("--") and word not in options] == []


def test_there_are_examples_of_configuration():
    assert len(EXAMPLES) == 3
