"""Types: which exist, and what operators make of those that are known."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, error, facet

from treadle.lang import nodes as p

PRELUDE = (
    "namespace n { schema Inner { flag: Boolean, count: Long } schema S { name: String, in: Inner, many: [String] }\n"
    "event facet E(a: Json = null) => (text: String, num: Long, ok: Boolean, any: Json, s: S)\n"
    "workflow W(t: String, b: Boolean, i: Int, d: Double, j: Json, s: S, ss: [S], ts: [String]) andThen {\n"
    "    e = E()\n    x = E(a = {expression})\n} }"
)


def source(expression: str) -> str:
    return PRELUDE.replace("{expression}", expression)


def test_built_in_types_lists_and_schemas_are_types() -> None:
    assert_clean(
        "namespace n { schema S { a: Long } facet F(a: String, b: Long, c: Int, d: Double, e: Boolean, f: Json, g: [S], h: n.S) }"
    )


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("facet A(x: Lnog)", 12),
        ("event facet A() => (x: Lnog)", 24),
        ("namespace n { schema S { x: [Lnog] } }", 30),
        ("facet A(x: a.Lnog)", 12),
        ("facet A(x: string)", 12),
        ("facet A(x: [[Lnog]])", 14),
    ],
)
def test_any_other_type_is_an_error_at_the_type(text: str, column: int) -> None:
    found = error(text)
    assert (found.rule, found.line, found.column) == ("unknown-type", 1, column)


def test_an_unknown_type_names_the_alternatives_and_the_nearest() -> None:
    found = error("facet A(x: Lnog)")
    assert "`Lnog`" in found.message
    assert found.suggestion == "Long"
    assert found.valid == ("Boolean", "Double", "Int", "Json", "Long", "String")


def test_the_type_of_a_schema_is_compiled_as_its_qualified_name() -> None:
    found = facet("namespace n { schema S { a: Long } facet F(x: [S]) }", "n.F").params[0]
    assert (found.type, found.reference) == (p.ListType(p.NamedType("n.S")), False)


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%"])
@pytest.mark.parametrize(
    "operand",
    ['"a"', "true", "$.t", "$.b", "e.text", "e.ok", "$.s.name", "$.s.in.flag", "e.s.name", "$.ts[0]", '("a" ++ 1)', "(1 == 2)"],
)
def test_arithmetic_with_a_known_text_or_boolean_is_an_error(operator: str, operand: str) -> None:
    for expression in (f"{operand} {operator} 1", f"1.5 {operator} {operand}"):
        found = error(source(expression))
        assert found.rule == "operator-type"
        assert f"`{operator}`" in found.message
        assert (found.line, found.column) == (5, 16 if expression.startswith("(") else 15)


def test_the_error_about_text_hints_at_concatenation() -> None:
    assert error(source('"a" + 1')).help == "use `++` to join text"
    assert error(source("true + 1")).help is None


@pytest.mark.parametrize("place", ["[{x}]", "#{k: {x}}", "$.j[{x}]", "({x})", "-({x})", "1 ++ ({x})"])
def test_operators_are_checked_at_any_depth(place: str) -> None:
    assert error(source(place.replace("{x}", '"a" - 1'))).rule == "operator-type"


def test_operators_are_checked_in_defaults_mixins_yields_and_implicits() -> None:
    for text in (
        'facet A(x: Long = "a" - 1)',
        'event facet A() => (x: Long = "a" - 1)',
        'facet M(x: Long) facet F() with M(x = "a" - 1)',
        'facet M(x: Long) facet F() workflow W() andThen { s = F() with M(x = "a" - 1) }',
        'workflow W() => (x: Long) andThen { yield W(x = "a" - 1) }',
        'facet M(x: Long) implicit i = M(x = "a" - 1)',
        'workflow W() andThen { sys.log(x = "a" - 1) }',
    ):
        assert error(text).rule == "operator-type"


@pytest.mark.parametrize("operand", ['"a"', "true", "$.t", "e.ok"])
def test_minus_on_a_known_text_or_boolean_is_an_error(operand: str) -> None:
    assert error(source(f"-{operand}")).rule == "operator-type"


@pytest.mark.parametrize("operator", ["<", ">", "<=", ">="])
def test_booleans_have_no_order(operator: str) -> None:
    assert error(source(f"$.b {operator} 1")).rule == "operator-type"
    assert_clean(source(f'$.t {operator} "b"'))


@pytest.mark.parametrize(
    "expression", ["$.t && true", "true || 1", "!$.t", "!1", "$.d && $.b", "$.ts || true", "$.s.in.count && $.b"]
)
def test_boolean_operators_need_booleans(expression: str) -> None:
    assert error(source(expression)).rule == "operator-type"


@pytest.mark.parametrize(
    "expression",
    [
        "$.i + $.d * 2",
        "$.j + 1",
        "e.any - 1",
        "e.num % 2",
        "$.j && $.b",
        "!$.j",
        '$.t ++ $.b ++ 1 ++ ["x"]',
        "$.j.deep.path + 1",
        "$.ss[0]",
        "null == $.t",
        "$.s.in.flag && e.ok",
        '$.t in $.ts && $.ts contains "a" || $.t startsWith "a"',
    ],
)
def test_matching_and_unknown_types_are_accepted(expression: str) -> None:
    assert_clean(source(expression))
