"""No mutant of a right program changes its meaning silently.

A mutant is rejected when it is compiled or when it is started with the inputs of the original, or produces a warning, or gives
the same outputs as the original. A silent change is a mutant that compiles without a diagnostic, starts, and gives other outputs
or fails.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from tests.golden.afl.mutations import Mutator
from tests.golden.afl.programs import Case, read
from tests.sizes import left_out

from treadle.evaluator import ScriptRequest
from treadle.kernel.runs.flows import check_inputs
from treadle.lang import Program, compile_sources
from treadle.lang.declare import built_in_facets
from treadle.lang.nodes import Facet, ListType, OptionalType, Type
from treadle.model.errors import InvalidInput
from treadle.testing.workflows import WorkflowFailed, run_workflow

RIGHT = read("right.txt")
RUNNABLE = [case for case in RIGHT if "workflow " in case.text]


def value(program: Program, type_: Type, seed: str) -> Any:
    """A value of a type, which only depends on the seed."""
    number = zlib.crc32(seed.encode())
    if isinstance(type_, OptionalType):
        return value(program, type_.element, seed)
    if isinstance(type_, ListType):
        return [value(program, type_.element, f"{seed}{index}") for index in range(3)]
    schema = program.find_schema(type_.name)
    if schema is not None:
        return {field.name: value(program, field.type, f"{seed}.{field.name}") for field in schema.fields}
    if type_.name == "Boolean":
        return number % 2 == 0
    if type_.name == "Double":
        return number % 1000 / 8
    return number % 1000 if type_.name in ("Long", "Int") else f"text {number % 1000}"


def handler(program: Program, facet: Facet, now: Program) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A handler whose results depend on the whole payload; `Broken` fails. It never gives what the facet's body yields.

    Its values have the types of the original program, and the names that the program of `now` declares.
    """
    found = now.find_facet(facet.qualified_name)
    names = [] if found is None else [each.name for each in found.returns]
    own = {arg.name for block in facet.blocks for each in block.yields for arg in each.call.args}

    def handle(payload: dict[str, Any]) -> dict[str, Any]:
        if facet.name == "Broken":
            raise ValueError("it is broken")
        seed = facet.name + json.dumps(payload, sort_keys=True)
        given = zip(names, facet.returns, strict=False)
        return {name: value(program, each.type, seed + each.name) for name, each in given if each.name not in own}

    return handle


def run_script(script: ScriptRequest, params: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    exec(script.code, {"params": params, "result": result})
    return result


@pytest.mark.parametrize("half", [0, left_out(1)])
@pytest.mark.parametrize("case", RUNNABLE, ids=[case.title for case in RUNNABLE])
def test_no_mutant_changes_its_meaning_silently(case: Case, half: int) -> None:
    program = Program.load(compile_sources([("x.afl", case.text)]).program)
    workflow = program.workflows[-1]
    inputs = {each.name: value(program, each.type, each.name) for each in workflow.params if each.default is None}

    def outputs(text: str, now: Program) -> object:
        handlers = {
            facet.qualified_name: handler(program, facet, now) for facet in (*program.event_facets, *built_in_facets().values())
        }
        try:
            return run_workflow(text, workflow.qualified_name, inputs, handlers, script_runner=run_script)
        except WorkflowFailed as error:
            return f"failed: {error}"

    original = outputs(case.text, program)
    assert isinstance(original, dict), original
    assert original or not workflow.returns
    silent = []
    for mutant in islice(Mutator(case.text).mutants(), half, None, 2):
        compiled = compile_sources([("x.afl", mutant.text)])
        if compiled.diagnostics:
            continue
        loaded = Program.load(compiled.program)
        started = loaded.find_workflow(workflow.qualified_name)
        try:
            if started is None:
                continue
            check_inputs(loaded, started, inputs)
        except InvalidInput:
            continue
        found = outputs(mutant.text, loaded)
        if found != original and "returned a wrong value" not in str(found):  # reported at the handler, whose facet has changed
            silent.append(f"{mutant.kind}: {found} instead of {original}\n{mutant.text}")
    assert not silent, "\n\n".join(silent)
