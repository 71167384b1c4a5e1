"""The catalogue of errors: each at the right place, naming what must be named."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, compiled, error, rules

P = "facet F(a: Json = null)\n"
CASES = [
    # text, rule, line, column, words that the message must contain
    ("facet A()\nevent facet A()", "duplicate-declaration", 2, 13, ["`A`", "s1.afl:1"]),
    ("namespace n { schema A { x: Long }\nworkflow A() }", "duplicate-declaration", 2, 10, ["`A`", "s1.afl:1"]),
    (P + "workflow W() andThen {\n s = F()\n s = F() }", "duplicate-step", 4, 2, ["`s`", "line 3"]),
    ("namespace n { schema S { a: Long,\n a: Long } }", "duplicate-field", 2, 2, ["`a`", "line 1"]),
    ("facet A(a: Long,\n a: Long)", "duplicate-parameter", 2, 2, ["`a`", "line 1"]),
    ("event facet A(a: Long,\n _b: Long)", "reserved-parameter", 2, 2, ["`_b`", "runner"]),
    ("event facet A() => (a: Long,\n a: Long)", "duplicate-return", 2, 2, ["`a`", "line 1"]),
    (P + "workflow W() andThen { s = F(a = 1,\n a = 2) }", "duplicate-argument", 3, 2, ["`a`", "line 2"]),
    ("namespace a { use b.c }", "unknown-namespace", 1, 19, ["`b.c`"]),
    ("workflow W() andThen { s = x.F() }", "unknown-facet", 1, 28, ["`x.F`"]),
    ("facet A(x: n.S)", "unknown-type", 1, 12, ["`n.S`"]),
    (P + "workflow W() andThen {\n yield F() }", "yield-target", 3, 8, ["`F`"]),
    ("workflow W() => (x: Long) andThen { yield W(x = 1)\nyield W(x = 2) }", "duplicate-yield", 2, 7, ["`W`", "line 1"]),
    ("workflow W() => (x: Long) andThen { yield W(x = 1,\n y = 2) }", "unknown-return", 2, 2, ["`y`", "`W`"]),
    (
        "namespace n { schema S { a: Long }\nworkflow W() andThen { s = S(a = 1, b = 2) } }",
        "unknown-field", 2, 37, ["`b`", "`n.S`"],
    ),
    (
        "namespace n { facet M() schema S { a: Long }\nworkflow W() andThen { s = S(a = 1) with M() } }",
        "mixin-on-schema", 2, 37, ["`n.S`"],
    ),
    ("facet Mail(host: String)\nimplicit i = Mail(hots = 1)", "implicit-parameter", 2, 19, ["`i`", "`hots`", "`Mail`"]),
    ('event facet A(x: Long)\nprompt { model "m" }', "prompt-template", 2, 1, ["`A`"]),
    ('event facet A(x: Long) prompt {\n template "{y} {x}" }', "unknown-placeholder", 2, 2, ["{y}", "`A`"]),
    ('event facet A(x: Long) prompt { template "t"\n system "{y}" }', "unknown-placeholder", 2, 2, ["{y}", "`system`"]),
    ("facet A()\nscript { }", "empty-script", 2, 1, []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "line", "column", "words"), CASES, ids=[f"{case[1]}-{n}" for n, case in enumerate(CASES)])
def test_an_error_of_the_catalogue(text: str, rule: str, line: int, column: int, words: list[str]) -> None:
    found = error(text)
    assert (found.rule, found.line, found.column) == (rule, line, column)
    for word in words:
        assert word in found.message


def test_the_same_facet_in_two_files_names_both_sources() -> None:
    found = error("namespace n { facet A() }", "namespace n {\n facet A() }")
    assert (found.rule, found.source, found.line) == ("duplicate-declaration", "s2.afl", 2)
    assert "s1.afl:1" in found.message
    assert "s2.afl" in found.message


def test_the_same_name_in_two_namespaces_is_fine() -> None:
    assert_clean("facet A() namespace n { facet A() } namespace m { schema A { x: Long } }")


@pytest.mark.parametrize("name", ["W", "M", "n.W"])
def test_a_yield_may_go_to_the_container_or_its_signature_mixins(name: str) -> None:
    assert_clean(
        f"namespace n {{ event facet M() => (y: Long) workflow W() => (x: Long = 0) with M() andThen {{ yield {name}() }} }}"
    )


def test_a_yield_in_a_step_body_may_also_go_to_the_facet_of_the_step() -> None:
    text = "event facet E() => (x: Long) workflow W() => (x: Long) andThen { s = E() andThen { yield {t}(x = 1) } }"
    text = text.replace("=> (x: Long) andThen", "=> (x: Long = 0) andThen")
    assert_clean(text.replace("{t}", "E"))
    found = error(text.replace("{t}", "V"))
    assert (found.rule, found.valid) == ("yield-target", ("E",))
    assert error("event facet E() => (x: Long) workflow W() andThen { s = E() yield E(x = 1) }").rule == "yield-target"


def test_a_yield_in_a_step_body_that_names_the_enclosing_declaration_goes_to_the_step() -> None:
    found = compiled(
        "event facet E() => (x: Long) workflow W() => (x: Long) andThen {\n s = E() andThen {\n yield W(x = 1) }\n}"
    ).warnings
    assert [(each.rule, each.line) for each in found] == [("yield-owner", 3)]
    assert found[0].valid == ("E",)
    assert found[0].help == "yield to `E` here, and to `W` after the step with values of `s`"


def test_placeholders_are_exactly_identifiers_in_braces() -> None:
    assert_clean('event facet A(x: Long) prompt { template "{x} {} {1} { y } {\\"json\\": 1}" model "{z}" }')


def test_all_errors_are_reported_in_source_order() -> None:
    text = "facet A(x: Lnog)\nfacet A()\nworkflow W() andThen {\n yield V()\n s = A(y = $.q)\n}\n"
    text += "implicit i = A(z = 1)\nfacet B(y: Bool)"
    assert [(each.rule, each.line) for each in compiled(text).errors] == [
        ("unknown-type", 1),
        ("duplicate-declaration", 2),
        ("yield-target", 4),
        ("step-after-yield", 5),
        ("unknown-input", 5),
        ("implicit-parameter", 7),
        ("unknown-type", 8),
    ]


def test_errors_of_several_files_follow_the_order_of_the_files() -> None:
    found = compiled("facet B(x: X1)", "facet A(x: X2)\nfacet C(x: X3)")
    assert [(each.source, each.line) for each in found.errors] == [("s1.afl", 1), ("s2.afl", 1), ("s2.afl", 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("facet A(", ["end of the file", "a name", "`)`"]),
        ("facet A() )", ["`)`", "a declaration"]),
        ("facet A(x Long)", ["`Long`", "`:`"]),
        ("workflow W() andThen { s = F(a = ) }", ["`)`", "a value"]),
        ("workflow W() andThen { s = F(a = 1 2) }", ["`2`", "an operator", "`,`"]),
        ("workflow W() andThen { yield W(a = x.y }", ["`}`", "an operator", "`)`"]),
        ("namespace a {", ["end of the file", "a declaration", "`}`"]),
        ("facet A() script 3", ["`3`", "a string in double quotes"]),
        ("workflow W() andThen { s = F() x }", ["`}`", "`=`"]),
    ],
)
def test_a_syntax_error_names_the_token_and_the_expected_ones(text: str, words: list[str]) -> None:
    found = error(text)
    assert found.rule == "syntax-error"
    for word in words:
        assert word in found.message
    assert not any(name in found.message for name in ("LPAR", "RBRACE", "NAME", "_COMMA", "$END", "ANDTHEN", "DOTTED", "something"))


def test_a_syntax_error_hides_semantic_errors() -> None:
    assert rules("facet A(x: Lnog)", "facet") == ["syntax-error"]
