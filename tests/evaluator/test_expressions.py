"""Expressions: every operator, on operands that fit and on operands that do not."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.testing.workflows import WorkflowFailed, run_workflow


def value_of(expression: str, **inputs: Any) -> Any:
    params = ", ".join(f"{name}: Json" for name in inputs)
    source = f"workflow W({params}) => (x: Json) andThen {{ yield W(x = {expression}) }}"
    return run_workflow(source, "W", inputs)["x"]


def error_of(expression: str, **inputs: Any) -> str:
    with pytest.raises(WorkflowFailed) as caught:
        value_of(expression, **inputs)
    return caught.value.error.message


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("6 / 2", 3.0),
        ("7 % 3", 1),
        ("-7 % 3", 2),
        ("7.5 % 2", 1.5),
        ("2 + 3 * 4", 14),
        ("(2 + 3) * 4", 20),
        ("10 - 2 - 3", 5),
        ("--1", 1),
        ("+5", 5),
        ('"a" ++ 1 + 2', "a3"),
        ("null", None),
        ("[1, [2, null], true]", [1, [2, None], True]),
        ('#{a: 1, "b c": [2]}', {"a": 1, "b c": [2]}),
        ("[10, 20][1]", 20),
        ("[10, 20][-1]", 20),
        ('#{a: 1}["a"]', 1),
        ("[[1, 2], [3]][0][1]", 2),
    ],
)
def test_arithmetic_and_literals(expression: str, expected: Any) -> None:
    found = value_of(expression)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (3.0, "3.0"),
        ("ä\n", "ä\n"),
        ([1, "ä", None, True], '[1, "ä", null, true]'),
        ({"k": [1.5]}, '{"k": [1.5]}'),
    ],
)
def test_concatenation_writes_null_as_an_empty_string_and_containers_as_json(value: Any, expected: str) -> None:
    assert value_of('"" ++ $.a', a=value) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 == 1.0", True),
        ("$.t == 1", False),
        ("null == null", True),
        ("[1, #{a: 2}] == [1, #{a: 2}]", True),
        ("[$.t] == [1]", False),
        ("1 != 2", True),
        ("1 < 2", True),
        ('"b" >= "a"', True),
        ("2 <= 2", True),
        ("3 > 4", False),
        ("!(1 == 2)", True),
        ("1 == 1 && 2 == 2", True),
        ("1 == 2 || 2 == 2", True),
        ("2 in [1, 2]", True),
        ("$.t in [1, 2]", False),
        ("3 not in [1, 2]", True),
        ('"a" in #{a: 1}', True),
        ('"ell" in "hello"', True),
        ("[1, 2] contains 2", True),
        ('"hello" contains "z"', False),
        ('"hello" startsWith "he"', True),
        ('"hello" endsWith "lo"', True),
        ('"a" ++ "b" == "ab"', True),
    ],
)
def test_comparisons_and_booleans(expression: str, expected: bool) -> None:
    assert value_of(expression, t=True) is expected


def test_boolean_operators_do_not_look_at_their_right_side_when_the_left_decides() -> None:
    assert value_of("$.n == 0 || 1 / $.n > 2", n=0) is True
    assert value_of("$.n != 0 && 1 / $.n > 2", n=0) is False


def test_plus_joins_two_texts_or_two_lists_at_run_time() -> None:
    assert value_of("$.a + $.b", a="x", b="y") == "xy"
    assert value_of("$.a + $.b", a=[1], b=[2]) == [1, 2]


@pytest.mark.parametrize(
    ("expression", "inputs", "part"),
    [
        ("1 / $.n", {"n": 0}, "division by zero"),
        ("1 % $.n", {"n": 0}, "division by zero"),
        ("$.a + 1", {"a": "x"}, "operator `+` needs numbers, these are a text and a number"),
        ("$.a * 2", {"a": True}, "needs numbers"),
        ("$.a - 1", {"a": None}, "null"),
        ("-$.a", {"a": "x"}, "operator `-` needs a number"),
        ("!$.a", {"a": 1}, "operator `!` needs a Boolean"),
        ("$.a && true", {"a": 1}, "operator `&&` needs a Boolean"),
        ("$.a < $.a", {"a": True}, "two numbers or two texts"),
        ("$.a < 1", {"a": None}, "two numbers or two texts"),
        ("$.a in $.b", {"a": 1, "b": 2}, "needs a list, a map or a text"),
        ("$.a startsWith $.b", {"a": 1, "b": "x"}, "needs texts"),
        ("$.a[5]", {"a": [1]}, "index 5 is out of range, the length is 1"),
        ("$.a[$.b]", {"a": [1], "b": True}, "must be a whole number"),
        ('$.a["k"]', {"a": {"x": 1}}, 'the map has no key "k"; it has x'),
        ("$.a[0]", {"a": 5}, "a number has no elements to index"),
        ("$.a.b", {"a": {}}, "`$.a` has no `b`; it is empty"),
        ("$.a.b.c", {"a": {"b": None}}, "`$.a.b` is null, it has no `c`"),
        ("$.a * $.a", {"a": 1e200}, "too large"),
    ],
)
def test_mismatched_operands_fail_with_a_clear_message(expression: str, inputs: dict[str, Any], part: str) -> None:
    message = error_of(expression, **inputs)
    assert part in message
    assert message.startswith("yield of `x`: ")


def test_unbounded_integers_fail_before_exhausting_memory() -> None:
    assert "too large" in error_of("$.a * $.a", a=10**1000)


def test_a_value_nested_very_deep_is_compared_without_a_stack() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    assert value_of("$.a == $.a", a=deep) is True
