"""Workflows in programs as JSON objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treadle.lang.codec import DECLARATION_LISTS, declarations_of


def normalize_program_ast(program: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the program, or of a namespace, with all its declarations in one list."""
    declarations = declarations_of(program)
    parts = [normalize_program_ast(part) if part.get("type") == "Namespace" else part for part in declarations]
    return {**{name: value for name, value in program.items() if name not in DECLARATION_LISTS}, "declarations": parts}


def find_all_workflows(program: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the declarations of all workflows."""
    return [workflow for _, workflow in _workflows(normalize_program_ast(program), "")]


def find_workflow(program: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return the declaration of a workflow, by qualified or short name; None if there is none."""
    workflows = list(_workflows(normalize_program_ast(program), ""))
    exact = [workflow for qualified_name, workflow in workflows if qualified_name == name]
    return next(iter([*exact, *(workflow for _, workflow in workflows if workflow["name"] == name)]), None)


def _workflows(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in node["declarations"]:
        if part.get("type") == "Namespace":
            yield from _workflows(part, f"{prefix}{part['name']}.")
        elif part.get("type") == "WorkflowDecl":
            yield prefix + part["name"], part
