"""The MCP catalog matches its snapshot: names, arguments, answers, resources and prompts.

`python -m tests.mcp.test_catalog` writes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.interfaces.mcp.catalog import BUDGET, DEFAULT, TOOLS, TOOLSET_OF
from treadle.interfaces.mcp.flows import BRIEF
from treadle.interfaces.mcp.prompts import PROMPTS_BY_NAME
from treadle.interfaces.mcp.resources import RESOURCES
from treadle.lang import compile_sources

FILE = Path(__file__).with_name("catalog.json")
EXAMPLES = [part.partition("```")[0] for part in BRIEF.split("```afl\n")[1:]]
NAMED = {
    "afl_compile": {"source"},
    "afl_validate": {"source"},
    "afl_execute_workflow": {"source", "workflow_name", "inputs"},
    "afl_continue_step": {"step_id", "result"},
    "afl_retry_step": {"step_id"},
    "afl_resume_workflow": {"run_id", "source", "workflow_name", "inputs"},
    "afl_manage_runner": {"run_id", "action"},
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
    "afl_execute_workflow": {"success", "run_id", "status", "iterations", "outputs", "error"},
    "afl_continue_step": {"success", "error"},
    "afl_retry_step": {"success", "error"},
    "afl_resume_workflow": {"success", "run_id", "status", "iterations", "outputs", "error"},
    "afl_manage_runner": {"success", "error"},
    "afl_manage_handlers": {"success", "handler", "error"},
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


def test_the_catalog_matches_the_golden_file():
    assert catalog() == json.loads(FILE.read_text()), "if that is meant: python -m tests.mcp.test_catalog"


def test_tools_and_addresses_that_agents_know_are_there():
    for name, arguments in NAMED.items():
        assert arguments <= set(TOOLS[name].input_schema["properties"]), name
        assert ANSWERED[name] <= set(TOOLS[name].output_schema["properties"]), name
    assert {each.bare for each in RESOURCES} >= ADDRESSES


def test_the_default_list_costs_no_more_than_its_budget():
    listed = [each for each in catalog()["tools"] if TOOLSET_OF[each["name"]] in DEFAULT]
    size = len(json.dumps({"tools": listed}, separators=(",", ":"), ensure_ascii=False).encode()) / 4
    assert size <= BUDGET, f"{size:.0f} tokens: move a tool to another toolset, or shorten descriptions"
    names = {each["name"] for each in listed}
    assert {"why", "system_status", "tool_find", "tool_call", "afl_validate", "afl_execute_workflow"} <= names


READ_ONLY = frozenset(
    {
        *("afl_compile", "afl_validate", "flow_format", "flow_graph", "store_verify", "system_status", "tool_find", "why"),
        "debug",
        *(
            "dead_letter_groups",
            "list_desired",
            "run_fork_preview",
            "run_logs",
            "run_outputs",
            "run_query",
            "run_steps",
            "schedule_preview",
            "task_result",
        ),
        *("watcher_seen", "worker_abilities"),
    }
)
"""Tools that change nothing, in addition to those named `_list` and `_show`."""
DESTRUCTIVE = frozenset(
    {
        *("afl_manage_handlers", "afl_manage_runner", "alert_remove", "dead_letter_discard", "external_job_manage", "list_policy"),
        *(
            "run_fork",
            "run_bulk",
            "schedule_delete",
            "store_keep",
            "store_prune",
            "task_cancel",
            "tool_call",
            "watcher_delete",
        ),
    }
)
"""Tools that can end or remove something permanently."""
REPEATED = frozenset(
    {
        *("afl_continue_step", "afl_fail_step", "afl_manage_handlers", "afl_manage_runner", "afl_resume_workflow", "alert_silence"),
        *("dead_letter_discard", "external_job_manage", "external_job_rebuild", "flow_publish", "function_adopt", "limit_set"),
        "objective_edit",
        *("list_manage", "list_policy", "schedule_edit", "schedule_manage", "store_keep", "task_cancel", "watcher_edit"),
        *("watcher_manage", "worker_start"),
    }
)
"""Tools that change something, and do nothing more when they are repeated."""


@pytest.mark.parametrize("name", TOOLS)
def test_hints_match_the_table(name: str):
    hints = TOOLS[name].listed().annotations
    assert hints is not None
    reads = name in READ_ONLY or name.endswith(("_list", "_show"))
    expected = (reads, name in DESTRUCTIVE, reads or name in REPEATED, False)
    assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint) == expected


IDS = {"run_id", "task_id", "step_id", "approval_id", "job_id", "objective_id", "id", "root_id", "entity_id", "trace_id"}


def test_each_id_has_one_name_and_each_state_is_an_enum():
    for tool in TOOLS.values():
        for name, said in TOOLS[tool.name].listed().input_schema["properties"].items():
            assert not name.endswith("_id") or name in IDS, (tool.name, name)
            if name in ("state", "status", "activity", "action", "toolset"):
                assert "enum" in said.get("items", said), (tool.name, name)


def test_every_argument_and_tool_is_explained():
    for tool in TOOLS.values():
        assert tool.description
        for name, said in tool.input_schema["properties"].items():
            assert said.get("description"), (tool.name, name)


def test_schemas_are_self_contained_objects():
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


def test_examples_exist():
    assert len(EXAMPLES) >= 8


if __name__ == "__main__":
    FILE.write_text(json.dumps(catalog(), indent=1, ensure_ascii=False) + "\n")
