"""Programs compiled by the reference implementation run: with its ids, without ids, with short names."""

from __future__ import annotations

import copy
import uuid
from typing import Any

import pytest
from tests.evaluator.examples import EXAMPLES
from tests.evaluator.test_examples import CASES
from tests.lang.test_completion import as_reference

from treadle.agents import Evaluator, MemoryStore, Persistence, ToolRegistry
from treadle.lang import compile_sources


def with_ids(node: Any) -> Any:
    """The node with a random id in each part, as the reference makes them."""
    if isinstance(node, list):
        return [with_ids(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: with_ids(value) for key, value in node.items()}
    return {**found, "id": str(uuid.uuid4())} if "id" in node else found  # noqa: TID251


def workflow_of(program: dict[str, Any], name: str) -> dict[str, Any]:
    """The declaration of a workflow, taken out of the program as the reference's examples do."""
    for each in program["declarations"]:
        for inner in each.get("declarations", [each]):
            if inner["type"] == "WorkflowDecl" and name in (inner["name"], f"{each['name']}.{inner['name']}"):
                return copy.deepcopy(inner)
    raise LookupError(name)


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no-ids"])
@pytest.mark.parametrize(("name", "workflow", "inputs", "outputs", "handlers"), CASES, ids=[case[0] for case in CASES])
def test_a_program_of_the_reference_gives_its_outputs(
    memory: MemoryStore, name: str, workflow: str, inputs: Any, outputs: Any, handlers: Any, ids: bool
) -> None:
    compiled = compile_sources([("x.afl", EXAMPLES[name])]).program
    program = with_ids(as_reference(compiled, ())) if ids else as_reference(compiled)
    tools = ToolRegistry()
    for facet, handler in handlers.items():
        tools.register(facet, handler)
    chosen = workflow_of(program, workflow)
    result = Evaluator(memory).execute(chosen, inputs=inputs, program_ast=program, dispatcher=tools)
    assert (result.error, result.outputs) == (None, outputs)
    if ids:
        assert chosen["id"] in {step.statement_id for step in memory.get_steps_by_workflow(result.workflow_id)}


WORKFLOW: dict[str, Any] = {
    "type": "WorkflowDecl",
    "name": "Count",
    "params": [{"name": "x", "type": "Long"}],
    "returns": [{"name": "n", "type": "Long"}],
    "body": {
        "type": "AndThenBlock",
        "steps": [
            {
                "type": "StepStmt",
                "id": "step-1",
                "name": "s",
                "call": {
                    "type": "CallExpr",
                    "target": "CountDocuments",
                    "args": [{"name": "input", "value": {"type": "InputRef", "path": ["x"]}}],
                },
            }
        ],
        "yield": {
            "type": "YieldStmt",
            "id": "yield-1",
            "call": {
                "type": "CallExpr",
                "target": "Count",
                "args": [{"name": "n", "value": {"type": "StepRef", "path": ["s", "output"]}}],
            },
        },
    },
}
FACETS: dict[str, Any] = {
    "type": "Program",
    "declarations": [
        {
            "type": "EventFacetDecl",
            "name": "CountDocuments",
            "params": [{"name": "input", "type": "Long"}],
            "returns": [{"name": "output", "type": "Long"}],
        }
    ],
}


@pytest.mark.postgres
def test_a_program_without_the_workflow_accepts_it_as_an_argument(persistence: Persistence) -> None:
    evaluator = Evaluator(persistence)
    paused = evaluator.execute(WORKFLOW, inputs={"x": 4}, program_ast=FACETS)
    assert paused.status == "PAUSED"
    task = persistence.claim_task(["CountDocuments"])
    assert task is not None
    assert task.data == {"input": 4}
    evaluator.continue_step(task.step_id, {"output": 5})
    assert evaluator.resume(paused.workflow_id, WORKFLOW, FACETS).outputs == {"n": 5}
    steps = {step.statement_name: step.statement_id for step in persistence.get_steps_by_workflow(paused.workflow_id)}
    assert steps["s"] == "step-1"


def test_an_ambiguous_workflow_name_resolves_to_the_passed_workflow(memory: MemoryStore) -> None:
    text = "namespace a { workflow W() => (x: Long) andThen { yield W(x = 1) } }\n"
    program = as_reference(compile_sources([("x.afl", text + text.replace("a {", "b {").replace("= 1", "= 2"))]).program)
    given = program["declarations"][1]["declarations"][0]
    assert Evaluator(memory).execute(given, program_ast=program).outputs == {"x": 2}
