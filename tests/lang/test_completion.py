"""Programs as the reference compiles them, without what only this compiler adds, are completed to the same program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.lang import InvalidProgram, Program

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.json"))
ADDED = ("resolved", "depends", "into", "reference")


def complete_program(given: dict[str, Any]) -> dict[str, Any]:
    return Program.load(given).dump()


def as_reference(node: Any, drop: tuple[str, ...] = ("id",)) -> Any:
    """The node as the reference would have compiled it: names as written, loop variables as step references."""
    if isinstance(node, list):
        return [as_reference(each, drop) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: as_reference(value, drop) for key, value in node.items() if key not in (*ADDED, *drop)}
    if node.get("type") == "LoopRef":
        found["type"] = "StepRef"
    if isinstance(found.get("type"), str):
        found["type"] = found["type"].rpartition(".")[2]
    return found


def _without_ids(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_ids(each) for each in node]
    return {key: _without_ids(value) for key, value in node.items() if key != "id"} if isinstance(node, dict) else node


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_program_of_this_compiler_is_unchanged(path: Path) -> None:
    program = json.loads(path.read_text())["program"]
    assert complete_program(program) == program


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_program_without_ids_resolved_names_and_dependencies_is_completed(path: Path) -> None:
    program = json.loads(path.read_text())["program"]
    completed = complete_program(as_reference(program))
    assert _without_ids(completed) == _without_ids(program)
    assert len(Program.load(completed).nodes) == len(Program.load(program).nodes)
    assert complete_program(completed) == completed


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_ids_of_the_reference_are_kept(path: Path) -> None:
    program = json.loads(path.read_text())["program"]
    numbered = iter(range(10**6))

    def renamed(node: Any) -> Any:
        if isinstance(node, list):
            return [renamed(each) for each in node]
        if not isinstance(node, dict):
            return node
        return {key: f"id-{next(numbered)}" if key == "id" else renamed(value) for key, value in node.items()}

    given = renamed(as_reference(program, ()))
    loaded = Program.load(complete_program(given))
    assert all(node_id.startswith("id-") for node_id in loaded.nodes)
    assert len(loaded.nodes) == len(Program.load(program).nodes)


def test_declarations_grouped_by_kind_are_the_same_program() -> None:
    facet = {"type": "EventFacetDecl", "name": "Ask", "params": [{"name": "q"}]}
    step = {"type": "StepStmt", "name": "s", "call": {"type": "CallExpr", "target": "Ask", "args": []}}
    flow = {"type": "WorkflowDecl", "name": "W", "body": {"type": "AndThenBlock", "steps": [step]}}
    listed = {"type": "Program", "declarations": [{"type": "Namespace", "name": "n", "declarations": [facet, flow]}]}
    grouped = {"type": "Program", "namespaces": [{"type": "Namespace", "name": "n", "eventFacets": [facet], "workflows": [flow]}]}
    assert complete_program(grouped) == complete_program(listed)
    (workflow,) = Program.load(complete_program(grouped)).workflows
    assert workflow.blocks[0].steps[0].call.name == "n.Ask"


@pytest.mark.parametrize(
    "given", [{"type": "Program", "declarations": 7}, {"type": "Program", "declarations": [{}]}, {"type": "X"}]
)
def test_other_json_is_not_a_program(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidProgram):
        Program.load(complete_program(given))
