"""The MCP catalog matches its snapshot: names, arguments, answers, resources and prompts.

`python -m tests.mcp.test_catalog` writes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.lang import compile_sources
from treadle.mcp.catalog import PROMPTS_BY_NAME, TOOLS
from treadle.mcp.flows import BRIEF
from treadle.mcp.resources import RESOURCES

FILE = Path(__file__).with_name("catalog.json")
EXAMPLES = [part.partition("```")[0] for part in BRIEF.split("```afl\n")[1:]]
NAMED = {
    "afl_compile": {"source"},
    "afl_validate": {"source"},
    "afl_execute_workflow": {"source", "workflow_name", "inputs"},
    "afl_continue_step": {"step_id", "result"},
    "afl_retry_step": {"step_id"},
    "afl_resume_workflow": {"workflow_id", "source", "workflow_name", "inputs"},
    "afl_manage_runner": {"runner_id", "action"},
    "afl_manage_handlers": {
        "action",
        "facet_name",
        "module_uri",
        "entrypoint",
        "version",
        "timeout_ms",
        "requirements",
        "metadata",
    },
}
"""Tools that agents know from elsewhere, with their arguments."""
ANSWERED = {
    "afl_compile": {"success", "json", "errors"},
    "afl_validate": {"valid", "errors"},
    "afl_execute_workflow": {"success", "workflow_id", "status", "iterations", "outputs", "error"},
    "afl_continue_step": {"success", "error"},
    "afl_retry_step": {"success", "error"},
    "afl_resume_workflow": {"success", "workflow_id", "status", "iterations", "outputs", "error"},
    "afl_manage_runner": {"success", "error"},
    "afl_manage_handlers": {"success", "handler", "handlers", "error"},
}
ADDRESSES = {
    "afl://runners",
    "afl://runners/{runner_id}",
    "afl://runners/{runner_id}/steps",
    "afl://runners/{runner_id}/logs",
    "afl://steps/{step_id}",
    "afl://flows",
    "afl://flows/{flow_id}",
    "afl://flows/{flow_id}/source",
    "afl://servers",
    "afl://tasks",
    "afl://handlers",
    "afl://handlers/{facet_name}",
}


def catalog() -> dict[str, Any]:
    """All that clients are told."""
    return {
        "tools": [tool.listed().model_dump(mode="json", by_alias=True, exclude_none=True) for tool in TOOLS.values()],
        "resources": [each.listed_template().model_dump(mode="json", by_alias=True, exclude_none=True) for each in RESOURCES],
        "prompts": [each.listed().model_dump(mode="json", by_alias=True, exclude_none=True) for each in PROMPTS_BY_NAME.values()],
    }


def test_what_is_offered_is_as_the_file_says():
    assert catalog() == json.loads(FILE.read_text()), "if that is meant: python -m tests.mcp.test_catalog"


def test_tools_and_addresses_that_agents_know_are_there():
    for name, arguments in NAMED.items():
        assert arguments <= set(TOOLS[name].input_schema["properties"]), name
        assert ANSWERED[name] <= set(TOOLS[name].output_schema["properties"]), name
    assert {each.bare for each in RESOURCES} >= ADDRESSES


def test_every_argument_and_tool_is_explained():
    for tool in TOOLS.values():
        assert tool.description
        for name, said in tool.input_schema["properties"].items():
            assert said.get("description"), (tool.name, name)


def test_schemas_are_objects_that_need_nothing_outside_them():
    for tool in TOOLS.values():
        for schema in (tool.input_schema, tool.output_schema):
            assert schema["type"] == "object", tool.name
            text = json.dumps(schema)
            assert text.count('"$ref"') == text.count('"$ref": "#/$defs/'), tool.name
        assert tool.input_schema["additionalProperties"] is False


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_the_language_compile_without_a_warning(number: int):
    compiled = compile_sources([("example.afl", EXAMPLES[number])])
    assert compiled.diagnostics == (), compiled.render()


def test_there_are_examples():
    assert len(EXAMPLES) >= 8


if __name__ == "__main__":
    FILE.write_text(json.dumps(catalog(), indent=1, ensure_ascii=False) + "\n")
