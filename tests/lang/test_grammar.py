"""Every construct of the grammar means what the language says."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, block, compiled, default, error, facet, program, rules

from treadle.lang import nodes as p


def num(value: int) -> p.Literal:
    return p.Literal(value)


@pytest.mark.parametrize(
    ("written", "same_as"),
    [
        ('"a" ++ 1 + 2', '"a" ++ (1 + 2)'),
        ("1 - 2 - 3", "(1 - 2) - 3"),
        ("1 / 2 * 3 % 4", "((1 / 2) * 3) % 4"),
        ("1 + 2 * 3", "1 + (2 * 3)"),
        ("-1 * 2", "(-1) * 2"),
        ("- $.v[0]", "-($.v[0])"),
        ("1 == 2 || 3 < 4 && true", "(1 == 2) || ((3 < 4) && true)"),
        ('"a" ++ "b" == "ab"', '("a" ++ "b") == "ab"'),
        ("!true == false", "(!true) == false"),
        ("1 + 2 in [3]", "(1 + 2) in [3]"),
        ("true || false || true", "(true || false) || true"),
        ("+1", "1"),
    ],
)
def test_operators_bind_by_the_precedence_of_the_reference(written: str, same_as: str) -> None:
    assert default(written, "v: Json") == default(same_as, "v: Json")


def test_concatenation_is_one_flat_list_of_operands() -> None:
    assert default("1 ++ 2 ++ 3") == p.Concat((num(1), num(2), num(3)))
    assert default("1 ++ (2 ++ 3)") == p.Concat((num(1), p.Concat((num(2), num(3)))))


def test_only_one_comparison_per_expression() -> None:
    assert error("facet A(x: Boolean = 1 < 2 < 3)").rule == "syntax-error"
    assert_clean("facet A(x: Boolean = (1 < 2) == true)")


@pytest.mark.parametrize("operator", ["==", "!=", "<", ">", "<=", ">=", "in", "not in", "contains", "startsWith", "endsWith"])
def test_every_comparison_is_a_binary_expression(operator: str) -> None:
    assert default(f"$.v {operator} $.w", "v: Json, w: Json") == p.Binary(operator, p.InputRef(("v",)), p.InputRef(("w",)))


def test_maps_take_strings_and_names_as_keys() -> None:
    entries = (p.Arg(p.Name("a"), num(1)), p.Arg(p.Name("b c"), p.MapLiteral(())))
    assert default('#{a: 1, "b c": #{}}') == p.MapLiteral(entries)


def test_index_binds_tightest_and_repeats() -> None:
    assert default("$.v[0][1]", "v: Json") == p.Index(p.Index(p.InputRef(("v",)), num(0)), num(1))


@pytest.mark.parametrize("written", ["$.v[0].a", "($.v).a", "$. v", "$", "a.", "1 +", "()", "[1 2]", "#{1: 2}", "++1", "a b"])
def test_an_invalid_expression_is_a_syntax_error(written: str) -> None:
    assert error(f"facet A(v: Json, x: Json = {written})").rule == "syntax-error"


def test_types_nest_in_lists() -> None:
    found = facet("facet A(x: [[Long]])", "A").params[0].type
    assert found == p.ListType(p.ListType(p.NamedType("Long")))


def test_the_three_kinds_of_facets() -> None:
    loaded = program("facet A()\nevent facet B()\nworkflow C()")
    assert [each.kind for each in loaded.facets.values()] == [p.FacetKind.FACET, p.FacetKind.EVENT, p.FacetKind.WORKFLOW]
    assert [each.name for each in loaded.workflows] == ["C"]
    assert [each.name for each in loaded.event_facets] == ["B"]


def test_a_declaration_takes_any_number_of_blocks_and_a_step_one() -> None:
    found = facet("workflow W(v: Json) andThen { } andThen foreach x in $.v { } andThen script { y = 1 } andThen { }", "W")
    assert [bool(each.foreach) for each in found.blocks] == [False, True, False, False]
    assert found.blocks[2].script is not None
    assert error("facet F() workflow W() andThen { s = F() andThen { } andThen { } }").rule == "syntax-error"


def test_a_leading_script_may_be_followed_by_blocks() -> None:
    found = facet("facet A() script { x = 1 } andThen { } andThen script { y = 2 }", "A")
    assert found.pre_script is not None
    assert found.pre_script.code == "x = 1"
    assert len(found.blocks) == 2


@pytest.mark.parametrize(
    "text",
    [
        'event facet A() prompt { template "t" } andThen { }',
        "facet A() andThen { } script { x = 1 }",
        "facet A() script { x = 1 } script { y = 1 }",
        "facet F() workflow W() andThen { s = F() andThen script { x = 1 } }",
        "workflow W() andThen foreach x in [1, 2] { }",
        "namespace a { namespace b { } }",
        "facet A(x)",
        "facet A(x: Long = )",
        "facet A() => x",
        "event A()",
        "implicit i",
        "facet F() workflow W() andThen { F() }",
        "workflow W() andThen { yield }",
        "facet A() andThen",
    ],
)
def test_an_invalid_declaration_is_a_syntax_error(text: str) -> None:
    assert error(text).rule == "syntax-error"


def test_steps_precede_yields() -> None:
    found = error("facet F() workflow W() andThen {\n yield W()\n a = F() }")
    assert (found.rule, found.line) == ("step-after-yield", 3)
    assert "`a`" in found.message


def test_use_and_uses_import_namespaces() -> None:
    loaded = program("namespace a.b { facet F() }\nnamespace c { use a.b\n uses a.b }")
    namespace = loaded.declarations[1]
    assert isinstance(namespace, p.Namespace)
    assert namespace.uses == ("a.b",)


def test_a_namespace_may_be_opened_several_times_and_in_several_files() -> None:
    loaded = program("namespace a { facet F() }\nnamespace a { facet G() }", "namespace a { facet H() }")
    assert set(loaded.facets) == {"a.F", "a.G", "a.H"}
    assert len({each.id for each in loaded.declarations}) == 3


def test_a_file_scoped_namespace_takes_the_rest_of_the_file() -> None:
    loaded = program(
        "facet Top()\n/** d */\nnamespace billing.eu\nuse billing.eu\nschema S { a: Long }\nworkflow W()", "namespace x\n"
    )
    assert set(loaded.facets) == {"Top", "billing.eu.W"}
    assert set(loaded.schemas) == {"billing.eu.S"}


def test_a_file_scoped_namespace_needs_the_end_of_the_line() -> None:
    assert error("namespace a facet F()").rule == "syntax-error"
    assert_clean("namespace a\n{ facet F() }")


def test_a_file_scoped_namespace_stands_alone_in_its_file() -> None:
    for text in ("namespace a\nnamespace b\n", "namespace a\nnamespace b { }", "namespace b { }\nnamespace a\n"):
        found = error(text)
        assert found.rule == "mixed-namespaces"
        assert "`a`" in found.message
        assert "`b`" in found.message


def test_schemas_and_imports_outside_a_namespace_are_semantic_errors() -> None:
    assert rules("use b\nschema S { a: Long }\nfacet A(x: Lnog)") == [
        "use-outside-namespace",
        "schema-outside-namespace",
        "unknown-type",
    ]


def test_a_prompt_keeps_its_directives() -> None:
    prompt = facet('event facet A(x: Long) prompt { system "s {x}" template "t {x}" model "m" }', "A").prompt
    assert prompt is not None
    assert (prompt.system, prompt.template, prompt.model) == ("s {x}", "t {x}", "m")


def test_call_mixins_may_have_an_alias() -> None:
    mixins = (
        block("facet F() facet M(n: Long) workflow W() andThen { s = F() with M(n = 1) with M(n = 2) as m }").steps[0].call.mixins
    )
    assert [(mixin.target, mixin.alias) for mixin in mixins] == [("M", None), ("M", "m")]


def test_one_syntax_error_is_reported_for_every_file() -> None:
    found = compiled("facet", "facet A()", "workflow W( andThen")
    assert [(each.source, each.rule) for each in found.diagnostics] == [("s1.afl", "syntax-error"), ("s3.afl", "syntax-error")]
    assert found.program == {}
    assert found.digest == ""
