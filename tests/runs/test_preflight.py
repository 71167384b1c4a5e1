"""Inputs against the parameters of a workflow: everything that does not fit is named, with its place."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.kernel.runs.flows import check_inputs
from treadle.model.errors import InvalidInput
from treadle.testing.workflows import compile_program

PROGRAM = compile_program(
    """
namespace in {
    schema Line { sku: String, qty: Long }
    schema Order { lines: [Line], note: String }
    workflow W(text: String, n: Long, x: Double, yes: Boolean, list: [Long], order: Order, any: Json, more: Long = 1) andThen { }
    workflow Scripted(a: Long) script { result["b"] = 1 } andThen { }
}
"""
)
GOOD: dict[str, Any] = {
    "text": "t", "n": 1, "x": 1, "yes": True, "list": [1, 2], "order": {"lines": [{"sku": "a", "qty": 1}], "note": ""}, "any": None,
}  # fmt: skip


def problems(given: dict[str, Any], workflow: str = "in.W") -> str:
    facet = PROGRAM.find_workflow(workflow)
    assert facet is not None
    try:
        check_inputs(PROGRAM, facet, given)
    except InvalidInput as error:
        return str(error) if error.code == "invalid_inputs" else error.code
    return ""


def test_a_matching_payload_is_accepted() -> None:
    assert problems(GOOD) == ""
    assert problems({**GOOD, "any": [{"x": [1]}], "x": 2.5, "more": 3}) == ""
    assert problems({**GOOD, "order": {**GOOD["order"], "extra": 1}}) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": 1}, "text must be a String, not a number"),
        ({"n": 1.0}, "n must be a Long, not a number"),
        ({"n": True}, "n must be a Long, not a boolean"),
        ({"x": True}, "x must be a Double, not a boolean"),
        ({"yes": 1}, "yes must be a Boolean, not a number"),
        ({"list": {"a": 1}}, "list must be a list, not an object"),
        ({"list": [1, "2", 3]}, "list[1] must be a Long, not a string"),
        ({"order": []}, "order must be a Order (an object), not a list"),
        ({"order": {"lines": []}}, "order.note is missing"),
        ({"order": {"lines": [{"sku": 1}], "note": ""}}, "order.lines[0].qty is missing; order.lines[0].sku must be a String"),
        ({"text": None}, "text must be a String, not null"),
        ({"tetx": "t"}, "tetx is not a parameter; did you mean text?"),
    ],
)
def test_each_mismatch_is_named(change: dict[str, Any], said: str) -> None:
    assert said in problems({**GOOD, **change})


def test_all_problems_are_reported_together_and_lists_are_cut() -> None:
    said = problems({"n": "1", "list": ["x"] * 100, "other": 1})
    assert all(f"{name} (" in said for name in ("text", "x", "yes", "order", "any"))
    assert said.count("must be a Long") == 1 + 5
    assert "other is not a parameter" in said
    assert "It takes text: String, n: Long, x: Double, yes: Boolean, list: [Long]" in said


def test_a_pre_script_may_take_more() -> None:
    assert problems({"a": 1, "b": 2}, "in.Scripted") == ""
    assert "a (Long) is missing" in problems({"b": 2}, "in.Scripted")
