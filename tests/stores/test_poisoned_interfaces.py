"""The dashboard, the command line and MCP with one damaged row of every kind: each page, command and tool answers (issue 16.2)."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_parity import run
from tests.mcp.transports import in_request_context
from tests.sizes import left_out
from tests.stores import poisoned_scene as scene
from tests.stores.test_poisoned_rows import Poison, filled, poison  # noqa: F401 - fixtures
from tests.web.conftest import visiting

from treadle.interfaces.http.app import make_app
from treadle.interfaces.mcp.catalog import TOOLS
from treadle.interfaces.mcp.resources import RESOURCES
from treadle.interfaces.web.site import make_site
from treadle.model.access import Scope

DAMAGES = (left_out("truncated"), "mistyped")
VIEWS = ("steps", "source", "logs", "transitions", "values")


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, poison: Poison) -> Poison:  # noqa: F811
    poison.damage(request.param)
    return poison


def ids_for(poison: Poison, name: str, group: str = "") -> list[str]:  # noqa: F811
    """Values of a parameter in a path, a command or a tool: all that concern damaged rows, and one other."""
    known = {
        "runner_id": "run_id",
        "workflow_id": "run_id",
        "flow_id": "flows",
        "flow": "flows",
        "step": "step_id",
        "id": "task_id",
        "value": "run_id",
    }
    if (name, group) == ("name", "functions"):
        return ["trip", "short"]
    found = poison.ids.get(group if name == "name" else known.get(name, name), [])
    return [each for each in found if not poison.is_healthy(each)] + [each for each in found if poison.is_healthy(each)][:1]


LISTED = {
    "/schedules": "schedule",
    "/watchers": "watcher",
    "/approvals": "approval",
    "/external-jobs": "external_production_record",
    "/objectives": "objective",
    "/settings": "token",
}
"""The pages that name damaged records, by their entity."""


async def test_every_page_answers(damaged: Poison, tmp_path: Path) -> None:
    async with scene.make(damaged.url, tmp_path) as engine:
        secret = (await engine.kernel.tokens.create("admin", list(Scope))).secret
        routes = [each.path for each in make_site(make_app(engine, open_access=True)).routes if each.method == "GET"]
        paths = []
        for route in routes:
            names = re.findall(r"{(\w+)(?::\w+)?}", route)
            if "act" in names or route == "/runs/bulk":
                continue
            filling = (
                ids_for(damaged, "run_id/step")
                if len(names) == 2
                else ids_for(damaged, "run_id" if names[0] == "any_id" else names[0], route.split("/")[1])
                if names
                else [""]
            )
            assert filling, route
            for each in filling:
                values = iter(each.split("/"))
                paths.append(re.sub(r"{\w+(:\w+)?}", lambda _, values=values: next(values), route))
        paths += [f"/runs/{run_id}?view={view}" for run_id in ids_for(damaged, "run_id") for view in VIEWS]
        paths += ["/dead-letters/retry", "/dead-letters/discard", "/runs/bulk?action=cancel"]
        async with visiting(engine) as visit:
            visit.browser.headers["Authorization"] = f"Bearer {secret}"
            refused = {}
            for path in paths:
                answer = await visit.browser.get(path)
                if answer.status_code not in (200, 303) and "There is no view" not in answer.text:  # functions have no source
                    said = re.search(r"<main.*?</main>", answer.text, re.S)
                    refused[path] = (answer.status_code, re.sub(r"<[^>]*>|\s+", " ", said[0])[:300] if said else answer.text[:300])
                entity = LISTED.get(path)
                if entity in damaged.rows:
                    assert "unreadable" in html.unescape(answer.text), path
                    assert damaged.rows[entity] in answer.text or _name(damaged, damaged.rows[entity]) in answer.text, path
        unexpected = {path: said for path, said in refused.items() if said[0] != 409 or damaged.is_healthy(path)}
        assert not unexpected, json.dumps(unexpected)[:4000]


def _name(poison: Poison, row_id: str) -> str:  # noqa: F811
    return str(poison.query("select name from records where id = ?", row_id)[0][0])


COMMANDS = {
    "status": "",
    "workers": "",
    "events": "--limit 100",
    "why": "task_id",
    "tasks list": "",
    "tasks show": "task_id",
    "runs list": "",
    "runs show": "run_id",
    "runs steps": "run_id",
    "runs logs": "run_id",
    "runs usage": "run_id",
    "functions list": "",
    "flows list": "",
    "flows show": "flows",
    "handlers list": "",
    "lists list": "",
    "lists show": "task_list",
    "lists desired": "task_list",
    "schedules list": "",
    "schedules show": "schedules",
    "schedules preview": "schedules",
    "watchers list": "",
    "watchers show": "watchers",
    "watchers seen": "watchers",
    "alerts show": "alerts",
    "external list": "",
    "external show": "job_id",
    "external rebuild": "",
    "effects list": "",
    "approvals list": "",
    "approvals show": "approval_id",
    "objectives list": "",
    "objectives show": "objective_id",
    "objectives board": "",
    "objectives claims": "",
    "dlq list": "",
    "token list": "",
    "store info": "",
    "store prune": "--dry-run",
    "recover": "--dry-run",
    "store verify": "",
}
"""Every command that reads, and the ids that it takes."""


@pytest.mark.all_cases  # the calls behind them: test_poisoned_rows.py
def test_every_command_answers(damaged: Poison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_STORE", damaged.url)
    refused = {}
    for command, ids in COMMANDS.items():
        for each in ids_for(damaged, ids) if ids and not ids.startswith("-") else [ids]:
            for form in ([],) if each else ([], ["--json"]):
                ended = run(*command.split(), *each.split(), *form)
                healthy = not each or each.startswith("-") or damaged.is_healthy(each)
                expected = (1,) if command == "store verify" else (0,) if healthy else (0, 1)
                if ended.code not in expected:
                    refused[f"{command} {each}"] = (ended.code, ended.err[-300:])
                if ended.code == 1 and command != "store verify" and "cannot be read" not in ended.err + ended.out:
                    refused[f"{command} {each}"] = (ended.code, ended.err[-300:])
    assert not refused, json.dumps(refused)[:4000]


async def test_every_tool_and_resource_answers(damaged: Poison, tmp_path: Path) -> None:
    async with scene.make(damaged.url, tmp_path) as engine, in_request_context(engine) as client:
        refused: dict[str, Any] = {}
        for tool in TOOLS.values():
            needed = tool.input_schema.get("required", [])
            if tool.changes or "source" in tool.input_schema["properties"] or tool.name == "task_result":
                continue
            for each in ids_for(damaged, "/".join(needed), tool.name.split("_")[0] + "s") if needed else [""]:
                values = each.split("/") if len(needed) > 1 else [each][: len(needed)]
                answer = await client.call_tool(tool.name, dict(zip(needed, values, strict=True)))
                text = answer.content[0].text
                if answer.is_error and (damaged.is_healthy(each or "-") or "unreadable_value" not in text):
                    refused[f"{tool.name} {each}"] = text
        for resource in RESOURCES:
            uri = resource.uri.partition("{?")[0]
            names = re.findall(r"{(\w+)}", uri)
            for each in ids_for(damaged, names[0]) if names else [""]:
                try:
                    await client.read_resource(re.sub(r"{\w+}", each, uri))
                except Exception as error:  # the client's own
                    if damaged.is_healthy(each or "-") or "cannot be read" not in str(error):
                        refused[f"{uri} {each}"] = repr(error)
        assert not refused, json.dumps(refused)[:4000]
