"""Values are bounded while they are computed: shared parts count at their full size, and nothing huge is ever built."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.evaluator import Limits
from treadle.evaluator.operators import Sizes
from treadle.testing.workflows import WorkflowFailed, run_workflow

DOUBLE = (
    "facet P(v: Json) => (v: Json) andThen {{ yield P(v = $.v) }}\nworkflow W() => (n: Long) andThen {{\n{steps}\nyield W(n = 1) }}"
)


def doubling(expression: str, first: str, steps: int = 40) -> str:
    """A workflow in which each step makes its value at least twice as large."""
    lines = [f"s0 = P(v = {first})", *(f"s{n} = P(v = {expression.replace('X', f's{n - 1}.v')})" for n in range(1, steps))]
    return DOUBLE.format(steps="\n".join(lines))


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("[X, X]", "[1]"),
        ("X + X", "[1, 2]"),
        ("X + X", '"ab"'),
        ("X ++ X", '"ab"'),
        ("[X] ++ [X]", "[1]"),
        ('#{"a": X, "b": X}', "[1]"),
        ("[[[X, X]]]", "[1]"),
    ],
)
def test_a_value_that_doubles_fails_before_it_is_large(expression: str, first: str) -> None:
    with pytest.raises(WorkflowFailed, match="limit is") as caught:
        run_workflow(doubling(expression, first), "W", limits=Limits(value_bytes=100_000))
    assert caught.value.error.type == "value_too_large"
    assert caught.value.error.path.startswith("W.s")


def test_a_value_that_only_gets_deeper_fails_before_it_cannot_be_stored() -> None:
    with pytest.raises(WorkflowFailed, match="nested more than 500 deep") as caught:
        run_workflow(doubling("[X]", "[1]", 600), "W")
    assert caught.value.error.type == "value_too_large"


def test_lists_that_a_foreach_joins_are_bounded() -> None:
    source = """
    workflow W(list: Json, big: Json) => (out: Json) andThen foreach x in $.list { yield W(out = [$.big, $.big]) }
    """
    inputs = {"list": list(range(50)), "big": "x" * 1000}
    assert len(run_workflow(source, "W", inputs)["out"]) == 100
    with pytest.raises(WorkflowFailed, match="limit is 20000") as caught:
        run_workflow(source, "W", inputs, limits=Limits(value_bytes=20_000))
    assert caught.value.error.type == "value_too_large"


def test_the_parameters_of_a_step_are_bounded_together() -> None:
    source = """
    facet P(a: Json, b: Json, c: Json)
    workflow W(big: Json) => (n: Long) andThen { p = P(a = $.big, b = $.big, c = $.big) yield W(n = 1) }
    """
    with pytest.raises(WorkflowFailed, match="limit is 2500"):
        run_workflow(source, "W", {"big": "x" * 1000}, limits=Limits(value_bytes=2_500))
    assert run_workflow(source, "W", {"big": "x" * 1000}, limits=Limits(value_bytes=3_500)) == {"n": 1}


def test_a_call_that_computes_many_values_is_continued_by_another_one_with_the_same_result() -> None:
    source = """
    facet P(v: Json) => (v: Json) andThen { yield P(v = [$.v, $.v]) }
    workflow W(list: Json) => (out: Json) andThen foreach x in $.list { p = P(v = [x, x]) yield W(out = [p.v]) }
    """
    inputs = {"list": list(range(30))}
    assert run_workflow(source, "W", inputs, limits=Limits(slice_bytes=1)) == run_workflow(source, "W", inputs)


def test_a_call_that_computes_too_much_fails_the_step() -> None:
    steps = "\n".join(f"s{n} = P(v = [$.big])" for n in range(20))
    source = f"facet P(v: Json)\nworkflow W(big: Json) => (n: Long) andThen {{ {steps} yield W(n = 1) }}"
    with pytest.raises(WorkflowFailed, match="more than 9000 bytes of values at a time"):
        run_workflow(source, "W", {"big": "x" * 1000}, limits=Limits(call_bytes=9_000))


def test_an_error_message_does_not_carry_a_large_value() -> None:
    source = 'workflow W(key: Json) => (n: Json) andThen { yield W(n = #{"a": 1}[$.key]) }'
    with pytest.raises(WorkflowFailed) as caught:
        run_workflow(source, "W", {"key": "x" * 100_000})
    assert len(caught.value.error.message) < 3_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=5), each, max_size=4),
    max_leaves=30,
)


@settings(max_examples=examples(24))
@given(JSON)
def test_a_size_is_close_to_that_of_the_text_and_repeated_parts_count_again(value: Any) -> None:
    sizes = Sizes(Limits())
    text = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    assert text / 3 - 10 <= sizes.of(value) <= 10 * text + 10
    assert sizes.of([value, value]) == 2 * sizes.of(value) + 18
