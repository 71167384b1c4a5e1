"""The examples of the AFL reference run: every workflow, with a value of the right type for each input and each result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from treadle.lang import Program, compile_sources
from treadle.lang import nodes as p
from treadle.lang.nodes import FacetKind
from treadle.testing import run_workflow

PAGE = (Path(__file__).parents[2] / "docs/reference/afl.md").read_text("utf-8")
EXAMPLES = [match[1] for match in re.finditer(r"^```afl\n(.*?)^```$", PAGE, re.S | re.M)]
PLAIN = {"String": "a", "Long": 1, "Int": 1, "Double": 1.5, "Boolean": True, "Json": {}}

DECISION = {"by": "ada", "at": 0, "reason": None, "edited": False, "votes": [], "decision": "approved", "approval_id": "1"}


def value_of(kind: p.Type, program: Program) -> Any:
    match kind:
        case p.ListType(element):
            return [value_of(element, program)]
        case p.OptionalType(element):
            return value_of(element, program)
        case p.NamedType(name):
            schema = program.schemas.get(name)
            return PLAIN.get(name) if schema is None else {each.name: value_of(each.type, program) for each in schema.fields}


def runnable() -> list[tuple[str, str]]:
    found = []
    for text in EXAMPLES:
        program = Program.load(compile_sources([("example.afl", text)]).program)
        found += [(text, each.qualified_name) for each in program.facets.values() if each.kind is FacetKind.WORKFLOW]
    return found


@pytest.mark.parametrize(("text", "workflow"), runnable(), ids=lambda value: value if "\n" not in value else "")
def test_a_workflow_of_the_reference_runs(text: str, workflow: str):
    program = Program.load(compile_sources([("example.afl", text)]).program)
    facets = {each.qualified_name: each for each in program.facets.values()}
    handlers = {
        name: lambda _, facet=each: {out.name: value_of(out.type, program) for out in facet.returns}
        for name, each in facets.items()
        if each.is_event
    }
    handlers["sys.approval"] = lambda payload: {**DECISION, "context": payload["context"]}
    inputs = {each.name: value_of(each.type, program) for each in facets[workflow].params if each.default is None}
    result = run_workflow(text, workflow, inputs, handlers)
    assert set(result) <= {each.name for each in facets[workflow].returns}
