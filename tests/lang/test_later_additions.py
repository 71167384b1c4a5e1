"""Later additions to the language: when, catch, step references, signature aliases, sys statements."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, block, error, facet, program, step

from treadle.lang import nodes as p

P = "facet F(a: Json = null)\nevent facet E(a: Json = null) => (out: Long)\n"


def test_when_has_cases_and_a_default_on_declarations_and_steps() -> None:
    text = P + "workflow W(n: Long) andThen when { case $.n > 1 => { s = F() } case _ => { } }\n"
    text += "andThen { t = E() andThen when { case _ => { } } }"
    found = facet(text, "W")
    assert [case.condition is None for case in found.blocks[0].when] == [False, True]
    assert [case.block.id for case in found.blocks[0].when] == ["W/block-0/when-case-0", "W/block-0/when-case-1"]
    body = found.blocks[1].steps[0].body
    assert body is not None
    assert len(body.when) == 1


@pytest.mark.parametrize(
    "cases",
    ["", "case $.b => { }", "case _ => { } case $.b => { }", "case _ => { } case _ => { }"],
    ids=["none", "no default", "not last", "two"],
)
def test_when_needs_exactly_one_default_at_its_end(cases: str) -> None:
    assert error(f"workflow W(b: Boolean) andThen when {{ {cases} }}").rule == "when-default"


def test_a_condition_of_a_known_type_must_be_boolean() -> None:
    assert error("workflow W(n: Long) andThen when { case $.n => { } case _ => { } }").rule == "condition-type"
    assert_clean("workflow W(j: Json) andThen when { case $.j => { } case _ => { } }")


def test_cases_see_their_enclosing_scope_but_not_each_other() -> None:
    head = P + "workflow W() andThen { s = E() t = E() andThen when "
    assert_clean(head + "{ case s.out == t.out => { u = F(a = s.out) } case _ => { v = F(a = t.out) } } }")
    assert error(head + "{ case s.out == 1 => { u = F() } case _ => { v = F(a = u.a) } } }").rule == "step-of-other-block"


def test_a_step_depends_on_the_references_in_the_conditions_of_its_cases() -> None:
    assert step(
        P + "workflow W() andThen { s = E() t = E() andThen when { case s.out == 1 => { } case _ => { } } }", "t"
    ).depends == ("s",)


def test_catch_belongs_to_a_step_or_to_a_declaration() -> None:
    found = facet(P + "workflow W() andThen { s = E() andThen { } catch { t = F(a = s.error) } } catch when { case _ => { } }", "W")
    assert found.catch is not None
    assert found.catch.id == "W/catch"
    assert len(found.catch.when) == 1
    caught = found.blocks[0].steps[0].catch
    assert caught is not None
    assert caught.id == "W/block-0/s/catch"
    assert facet("event facet X() => (a: Long) catch { }", "X").catch is not None
    assert facet("facet X() script { a = 1 } catch { }", "X").catch is not None


def test_the_error_can_be_read_where_it_is_caught() -> None:
    assert_clean(P + "workflow W() andThen { s = E() catch { t = F(a = s.error ++ s.error_type ++ $.error) } u = F(a = s.error) }")
    assert_clean(P + "workflow W() => (e: String = null) andThen { } catch { yield W(e = $.error ++ $.error_type) }")
    assert error(P + "workflow W() andThen { s = E() t = F(a = s.error) }").rule == "unknown-attribute"
    assert error(P + "workflow W() andThen { t = F(a = $.error) } catch { }").rule == "unknown-input"


def test_a_parameter_of_a_facet_type_takes_a_bare_step() -> None:
    text = P + "facet G(src: E) => (x: Long) andThen { yield G(x = $.src.out) } workflow W() andThen { s = E() g = G(src = s) }"
    found = step(text, "g")
    assert found.call.args[0].value == p.StepRef(("s",))
    assert found.depends == ("s",)
    assert facet(text, "G").params[0] == p.Param("src", p.NamedType("E"), None, True)


@pytest.mark.parametrize("value", ["1", '"s"', "s.out", "f", "[s.out]", "$.n"])
def test_a_step_reference_must_be_a_step_of_that_facet(value: str) -> None:
    text = P + f"facet G(src: E) workflow W(n: Long) andThen {{ s = E() f = F() g = G(src = {value}) }}"
    found = error(text)
    assert found.rule == "step-reference"
    assert "`E`" in found.message


def test_a_step_that_mixes_the_facet_in_may_be_referred_to() -> None:
    assert_clean(
        P
        + "facet G(src: E) facet H() with E() workflow W() andThen { s = F() with E() as e t = H() g = G(src = s) h = G(src = t) }"
    )


def test_a_step_reference_can_be_passed_on() -> None:
    assert_clean(P + "facet G(src: E) facet H(src: E) andThen { g = G(src = $.src) }")


def test_reading_through_a_step_reference_is_checked() -> None:
    found = error(P + "facet G(src: E) => (x: Long) andThen { yield G(x = $.src.nope) }")
    assert (found.rule, found.valid) == ("unknown-attribute", ("a", "out"))


def test_a_signature_alias_is_read_and_written_by_its_name() -> None:
    text = (
        "facet M(x: Long = 0) => (y: Long) andThen { yield M(y = $.x) }\n"
        "facet F(a: Long) => (r: Long) with M(x = $.a) as m andThen { yield m(y = 2) yield F(r = $.m.y) }"
    )
    found = facet(text, "F")
    assert (found.mixins[0].alias, found.mixins[0].resolved) == ("m", "M")
    assert [(each.into, each.call.resolved) for each in found.blocks[0].yields] == [("m", "M"), (None, "F")]


def test_a_yield_with_a_mixin_writes_to_its_alias() -> None:
    text = "event facet M() => (y: Long) facet F() => (r: Long) with M() as m andThen { yield F(r = 1) with M(y = 2) }"
    found = block(text, "F").yields[0]
    assert found.into is None
    assert (found.call.mixins[0].into, found.call.mixins[0].resolved) == ("m", "M")


def test_an_alias_must_not_clash_and_two_make_the_bare_target_ambiguous() -> None:
    head = "event facet M() => (y: Long) "
    assert error(head + "facet F(m: Long) with M() as m").rule == "alias-clash"
    assert error(head + "facet F() with M() as m with M() as m").rule == "alias-clash"
    found = error(head + "facet F() with M() as a with M() as b andThen { yield M(y = 1) }")
    assert (found.rule, found.valid) == ("ambiguous-yield", ("a", "b"))


def test_sys_statements_are_kept_with_their_text() -> None:
    found = block("workflow W(n: Long) andThen { sys.log(a = $.n, b = 1) sys.assert($.n > 0 && true) }").sys
    assert [(each.kind, each.id) for each in found] == [(p.SysKind.LOG, "W/block-0/sys-0"), (p.SysKind.ASSERT, "W/block-0/sys-1")]
    assert [arg.name for arg in found[0].args] == ["a", "b"]
    assert found[1].text == "$.n > 0 && true"


def test_sys_assert_needs_a_boolean() -> None:
    assert error('workflow W() andThen { sys.assert("x") }').rule == "condition-type"


def test_workflows_need_no_namespace() -> None:
    assert program("workflow W()").find_workflow("W") is not None
