"""Models are told tools, never commands: every command that the engine names has a tool with valid arguments, or is a person's."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

import pytest
from tests.docs.test_named_commands import ROOT, SOURCES, texts_of
from tests.mcp.transports import in_request_context, shop_engine, told

from treadle.interfaces.mcp.advice import SHELL_ONLY, TOOLS_OF_COMMANDS, Advisor, find_action
from treadle.interfaces.mcp.catalog import TOOLS, get_tool
from treadle.interfaces.mcp.prompts import PROMPTS_BY_NAME
from treadle.interfaces.mcp.resources import RESOURCES
from treadle.interfaces.mcp.server import INSTRUCTIONS

_SPAN = re.compile(r"`treadle ([a-z][^`]*)`")
SAMPLES = {"string": "x", "integer": 1, "number": 1.0, "array": ["x"], "object": {}, "boolean": True}


def _docstrings(text: str) -> set[str]:
    """Docstrings, of attributes too, and what tables of the command line say without rows: no client reads them."""
    return {
        node.value.value
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "empty"))
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _recommended() -> Iterator[tuple[str, str]]:
    """Every command in a text of the engine outside the command line, with its file."""
    for path in SOURCES.rglob("*.py"):
        inside = set(path.relative_to(SOURCES).parts)
        text = path.read_text("utf-8")
        if inside & {"cli", "lsp", "testing"} or path.stem in ("settings", "metric_table", "docs_page") or "`treadle" not in text:
            continue
        for found in set(texts_of(path)) - _docstrings(text):
            for span in _SPAN.findall(found):
                yield " ".join(span.split()), str(path.relative_to(ROOT))


def schema_of(name: str) -> dict[str, object] | None:
    return TOOLS[name].input_schema if name in TOOLS else None


NOBODY = "01935b8e-7c3a-7000-8000-000000000000"


def sample(tool: str, name: str) -> object:
    if name.split("_")[-1] in ("id", "ids"):
        return NOBODY
    schema = TOOLS[tool].input_schema["properties"][name]
    kinds = [schema, *schema.get("anyOf", ())]
    if enum := next((each["enum"] for each in kinds if "enum" in each), None):
        return enum[0]
    if enum := next((each["items"]["enum"] for each in kinds if "enum" in each.get("items", {})), None):
        return enum[:1]
    return SAMPLES[next(each["type"] for each in kinds if "type" in each)]


def test_every_recommended_command_is_a_tool_with_valid_arguments_or_a_persons():
    named = dict(_recommended())
    assert len(named) > 60
    persons = set()
    for command, place in named.items():
        action = find_action(command.replace("runs 1", "runs cancel"), schema_of)
        if action is None:
            persons |= {each for each in SHELL_ONLY if f"{command} ".startswith(f"{each} ")} or {f"{command} ({place})"}
            continue
    assert persons <= SHELL_ONLY, persons - SHELL_ONLY


async def test_every_recommended_call_is_accepted_with_its_missing_arguments():
    async with shop_engine() as engine, in_request_context(engine) as client:
        refused = []
        for command in sorted({command for command, _ in _recommended()}):
            action = find_action(command.replace("runs 1", "runs cancel"), schema_of)
            if action is None or action.tool == "worker_start":
                continue
            tool, names = action.tool, [each.split("|")[0] for each in action.missing]
            given = action.arguments | {name: sample(tool, name) for name in names}
            given = {name: NOBODY if name.split("_")[-1] == "id" else each for name, each in given.items()}
            TOOLS[tool].arguments.model_validate(given)
            if "cron" in names:
                given["cron"] = "0 3 * * *"
            said = (await client.call_tool(tool, given)).structured_content
            if said.get("code") in ("invalid_input", "invalid_request", "internal_error"):
                refused.append((command, given, said["error"]))
        assert refused == []


async def test_a_recommended_call_works_as_it_is_given_through_the_tool_that_calls_others():
    async with shop_engine() as engine, in_request_context(engine) as client:
        error = (await client.call_tool("run_show", {"run_id": NOBODY})).structured_content
        assert told(await client.call_tool("tool_call", error["actions"][0]))["result"] == {
            "runs": [],
            "complete": True,
            "next_before": None,
        }
        both = (await client.call_tool("tool_call", {"name": "run_list", "tool": "task_list"})).structured_content
        assert both["code"] == "invalid_input"


async def test_tools_are_found_by_words_and_errors_name_the_arguments():
    async with shop_engine() as engine, in_request_context(engine) as client:
        found = told(await client.call_tool("tool_find", {"query": "silence alerts"}))["tools"]
        assert [each["name"] for each in found] == ["alert_silence"]
        assert told(await client.call_tool("tool_find", {"query": "zeppelin"}))["tools"] == []
        wrong = (await client.call_tool("tool_find", {"q": "alerts"})).structured_content
        assert wrong["error"].endswith("It has the arguments name, toolset, query.")


def test_every_row_of_the_table_names_a_tool_and_its_arguments():
    for command, row in TOOLS_OF_COMMANDS.items():
        tool, *names = row.split()
        found = get_tool(tool).input_schema["properties"]
        for name in names:
            assert name.partition("=")[0] in found, command
            if "=" in name:
                get_tool(tool).arguments.__pydantic_validator__.validate_assignment(
                    get_tool(tool).arguments.model_construct(), *name.split("=")
                )


def test_no_description_names_a_command():
    listed = [each.listed().model_dump_json(by_alias=True) for each in TOOLS.values()]
    others = [each.description for each in (*RESOURCES, *PROMPTS_BY_NAME.values())]
    for text in (*listed, *others, INSTRUCTIONS):
        assert "`treadle " not in text


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("lists resume imports", '`list_manage {"action": "resume", "task_list": "imports"}`'),
        ("lists resume 'a b'", '`list_manage {"action": "resume", "task_list": "a b"}`'),
        ("lists limit --handler a.B --list x --none rate", '`limit_set {"handler": "a.B", "task_list": "x", "remove": ["rate"]}`'),
        ("lists limit --key k --max N", '`limit_set {"key": "k", "max_running": "?"}`'),
        ("functions adopt 7 --version 2", '`function_adopt {"run_id": "7", "version": 2}`'),
        ("worker --handlers MODULE --list gpu", '`worker_start {"task_list": "gpu"}`'),
        ("tasks list --state paused", '`task_list {"state": ["paused"]}`'),
        ("external list --all", '`external_job_list {"every": true}`'),
        ("runs rerun", '`run_rerun {"run_id": "?"}`'),
        ("dlq retry", "`dead_letter_retry`"),
        ("store migrate", "a shell command of the operator (store migrate)"),
        ("worker --topology FILE", "a shell command of the operator (worker --topology FILE)"),
    ],
)
def test_a_command_is_rewritten(command: str, told: str):
    advisor = Advisor(schema_of, lambda name: True)
    assert advisor.text(f"do `treadle {command}` now") == f"do {told} now"


CHANGES = "arguments." + "|".join(
    each for each in TOOLS["watcher_edit"].input_schema["properties"] if each not in ("name", "clear")
)


def test_tools_outside_the_list_are_recommended_through_the_tool_that_calls_them():
    advisor = Advisor(schema_of, lambda name: name != "watcher_edit")
    value = advisor.value({"remedy": "`treadle watchers edit w`, `treadle watchers look w`", "payload": {"why": "`treadle up`"}})
    assert value["actions"] == [
        {"tool": "tool_call", "arguments": {"name": "watcher_edit", "arguments": {"name": "w"}}, "missing": [CHANGES]},
        {"tool": "watcher_manage", "arguments": {"action": "look", "name": "w"}},
    ]
    assert value["payload"] == {"why": "`treadle up`"}, "values of users stay as they are"


async def test_errors_and_resources_name_tools():
    async with shop_engine() as engine, in_request_context(engine) as client:
        error = (await client.call_tool("run_show", {"run_id": "01935b8e-7c3a-7000-8000-000000000000"})).structured_content
        assert error["actions"] == [{"tool": "run_list", "arguments": {}}]
        assert "`run_list` shows the existing ones" in error["error"]
        task = await engine.enqueue("shop.Price", {"note": "`treadle up`"}, task_list="gpu")
        shown = told(await client.call_tool("task_show", {"task_id": task.id}))
        assert shown["actions"] == [{"tool": "worker_start", "arguments": {"task_list": "gpu"}}]
        assert shown["payload"] == {"note": "`treadle up`"}
        read = json.loads((await client.read_resource("afl://tasks")).contents[0].text)
        assert "`treadle " not in json.dumps(read["tasks"][0])
