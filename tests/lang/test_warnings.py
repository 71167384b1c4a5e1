"""Constructs that cause a warning but do not reject a program that others accept."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, warning

CASES = {
    "unknown unqualified facet": ("workflow W() andThen { s = Nope() }", "external-facet", ["`Nope`"]),
    "missing argument": (
        "facet F(a: Long, b: Long, c: Long = 1) workflow W() andThen { s = F(a = 1) }",
        "missing-argument",
        ["`b`"],
    ),
    "unknown argument": ("facet F(a: Long = 0) workflow W() andThen { s = F(aa = 1) }", "unknown-argument", ["`aa`", "`F`"]),
    "unknown mixin": ("facet F() workflow W() andThen { s = F() with Nope(a = 1) }", "unknown-mixin", ["`Nope`"]),
    "unknown mixin of a signature": ("facet F() with Nope()", "unknown-mixin", ["`Nope`"]),
    "returns without a body": ("facet F() => (x: Long)", "returns-without-body", ["`F`"]),
    "schema call that omits a field": (
        "namespace n { schema S { a: Long, b: Long } workflow W() andThen { s = S(a = 1) } }",
        "missing-field",
        ["`b`"],
    ),
    "prompt of a plain facet": ('facet F() prompt { template "t" }', "prompt-without-event", ["`F`"]),
    "prompt of a workflow": ('workflow F() prompt { template "t" }', "prompt-without-event", ["`F`"]),
    "repeated directive": ('event facet F() prompt { template "t" template "u" }', "duplicate-directive", ["`template`"]),
    "yield of an undeclared name": ("workflow W() andThen { yield W(x = 1) }", "undeclared-return", ["`x`"]),
    "loop over a scalar": ("workflow W(n: Long) andThen foreach x in $.n { }", "foreach-type", ["`x`"]),
}


@pytest.mark.parametrize(("text", "rule", "words"), CASES.values(), ids=CASES.keys())
def test_a_warning_is_not_an_error(text: str, rule: str, words: list[str]) -> None:
    found = warning(text)
    assert found.rule == rule
    for word in words:
        assert word in found.message


@pytest.mark.parametrize(
    "call", ["F(a = 1)", "F() with M(a = 1)", "G()", "H()"], ids=["argument", "call mixin", "signature mixin", "implicit"]
)
def test_an_argument_is_not_missing_when_something_supplies_it(call: str) -> None:
    assert_clean(
        "facet F(a: Long) facet M(a: Long = 0) facet G(a: Long) with M(a = 1) facet H(a: Long) implicit i = H(a = 1)\n"
        f"workflow W() andThen {{ s = {call} }}"
    )


def test_event_facets_and_facets_with_bodies_may_declare_returns() -> None:
    assert_clean("event facet E() => (x: Long) facet F() => (x: Long) andThen { yield F(x = 1) }")
    assert_clean("facet G() => (x: Long) script { y = 1 } andThen script { result['x'] = 1 }")


def test_the_timeout_mixin_needs_no_declaration() -> None:
    assert_clean(
        "event facet E() => (x: Long) with Timeout(minutes = 1) workflow W() andThen { s = E() with Timeout(minutes = 5) }"
    )


def test_a_mixin_may_pass_parameters_of_the_facet_it_is_attached_to() -> None:
    assert_clean('facet B(limit: Long) facet T(city: String) workflow W() andThen { t = T() with B(limit = 1, city = "Rome") }')


@pytest.mark.parametrize(
    ("mixin", "message"),
    [
        ("times = 3, maxAttempts = 1", "`Retry` has no `times`"),
        ("delay = 3", "`Retry` needs `maxAttempts`"),
        ("maxAttempts = 0", "must be from 1 to"),
        ("maxAttempts = 2, jitter = 3", "must be from 0 to 1"),
    ],
)
def test_the_arguments_of_a_retry_are_checked(mixin: str, message: str) -> None:
    found = warning(f"event facet E() workflow W() andThen {{ s = E() with Retry({mixin}) }}")
    assert (found.rule, message in found.message) == ("mixin-argument", True)


def test_a_retry_of_a_plain_facet_has_no_effect() -> None:
    assert warning("facet E() workflow W() andThen { s = E() with Retry(maxAttempts = 2) }").rule == "mixin-without-effect"
    assert_clean(
        "event facet E() with Retry(maxAttempts = 2) workflow W() andThen { s = E() with Retry(maxAttempts = 3, delay = 0.5) }"
    )
