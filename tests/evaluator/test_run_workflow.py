"""run_workflow: for users' tests; blocking, with handlers of both kinds and errors that help."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.evaluator import ScriptRequest
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow

ECHO = """
namespace a { event facet Echo(v: Json = 0) => (r: Json) }
namespace b { workflow W(v: Json) => (x: Json) andThen { e = a.Echo(v = $.v) yield W(x = e.r) } }
"""


def test_async_handlers_are_awaited_in_the_calling_thread() -> None:
    async def echo(payload: dict[str, Any]) -> dict[str, Any]:
        return {"r": payload["v"]}

    assert run_workflow(ECHO, "b.W", {"v": [1]}, {"a.Echo": echo}) == {"x": [1]}


def test_workflows_and_handlers_are_found_by_their_short_names() -> None:
    assert run_workflow(ECHO, "W", {"v": 2}, {"Echo": lambda p: {"r": p["v"]}}) == {"x": 2}


def test_sources_may_be_several_files() -> None:
    files = {
        "one.afl": "namespace a { facet F(v: Long) }",
        "two.afl": "namespace b { workflow W() => (x: Long) andThen { f = a.F(v = 1) yield W(x = f.v) } }",
    }
    assert run_workflow(files, "W") == {"x": 1}
    assert run_workflow(list(files.items()), "W") == {"x": 1}


def test_sources_that_do_not_compile_show_their_diagnostics() -> None:
    with pytest.raises(CompilationFailed, match=r"workflow.afl:1:.*siez"):
        run_workflow("workflow W(size: Long) => (x: Long) andThen { yield W(x = $.siez) }", "W")


def test_an_unknown_workflow_is_rejected_with_the_available_names() -> None:
    with pytest.raises(InvalidInput, match=r"no workflow `Nope`.*Known: b\.W"):
        run_workflow(ECHO, "Nope")


def test_a_missing_handler_is_rejected_with_the_available_names() -> None:
    with pytest.raises(InvalidInput, match=r"No handler for `a\.Echo`. Given: Other"):
        run_workflow(ECHO, "W", {"v": 1}, {"Other": lambda p: {}})


def test_none_from_a_handler_is_an_empty_result_and_anything_else_fails() -> None:
    source = "event facet E()\nworkflow W() andThen { e = E() }"
    assert run_workflow(source, "W", handlers={"E": lambda p: None}) == {}
    bad: Any = lambda p: [1]  # noqa: E731
    with pytest.raises(WorkflowFailed, match="returned list; return a dict") as caught:
        run_workflow(source, "W", handlers={"E": bad})
    assert caught.value.error.type == "unexpected_result"


def test_a_handler_gets_a_copy_that_it_may_change() -> None:
    value = {"list": [1]}
    run_workflow(ECHO, "W", {"v": value}, {"Echo": lambda p: p["v"]["list"].append(2) or {"r": 1}})
    assert value == {"list": [1]}


def test_inputs_and_results_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidInput):
        run_workflow(ECHO, "W", {"v": object()})
    with pytest.raises(WorkflowFailed, match="not JSON"):
        run_workflow(ECHO, "W", {"v": 1}, {"Echo": lambda p: {"r": {1, 2}}})


def test_a_handlers_error_type_is_its_class() -> None:
    def fail(payload: dict[str, Any]) -> dict[str, Any]:
        raise NonRetryable("gone", "gone_for_good")

    with pytest.raises(WorkflowFailed, match=r"^W\.e: handler failed: gone$") as caught:
        run_workflow(ECHO, "W", {"v": 1}, {"Echo": fail})
    assert caught.value.error.type == "NonRetryable"


def test_the_order_of_tasks_can_be_chosen() -> None:
    source = "event facet E(n: Long)\nworkflow W() andThen { a = E(n = 1) b = E(n = 2) c = E(n = 3) }"
    seen: list[int] = []
    run_workflow(source, "W", handlers={"E": lambda p: seen.append(p["n"])}, order=lambda tasks: len(tasks) - 1)
    assert seen == [3, 2, 1]


def test_scripts_can_be_run_by_something_else() -> None:
    def shout(script: ScriptRequest, params: dict[str, Any]) -> dict[str, Any]:
        return {"x": (script.code, script.line, params)}

    source = "workflow W(a: Long) => (x: Json)\nandThen script {\n    anything\n}"
    assert run_workflow(source, "W", {"a": 1}, script_runner=shout) == {"x": ["anything", 3, {"a": 1}]}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("result['x'] = {1, 2}", "not JSON serializable"),
        ("raise KeyError('k')", "'k'"),
        ("import sys; sys.exit(3)", "3"),
        ("x = = 1", "invalid syntax"),
    ],
)
def test_a_script_that_fails_in_any_way_fails_the_step(code: str, message: str) -> None:
    with pytest.raises(WorkflowFailed, match=message):
        run_workflow(f"workflow W() => (x: Json) andThen script {{ {code} }}", "W")


def test_script_output_is_dropped_and_rebinding_result_has_no_effect() -> None:
    source = "workflow W() => (x: Json) andThen script {\n print('noise')\n result['x'] = 1\n result = {'x': 2}\n}"
    assert run_workflow(source, "W") == {"x": 1}
