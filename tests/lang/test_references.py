"""Targets of `$.name` and `step.attribute`, and the dependencies of a statement."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, block, error, facet, step, values, warning

from treadle.lang import nodes as p

PRELUDE = (
    "facet F(a: Json = null, b: Json = null)\nfacet R(a: Json = null) => (r: Long, s: Long) andThen { yield R(r = 1, s = 2) }\n"
    "event facet E(a: Json = null) => (out: String)\nfacet M(m: Json = null)\n"
)


def test_dollar_reads_the_parameters_of_the_declaration() -> None:
    assert_clean(PRELUDE + "workflow W(x: Json) andThen { s = F(a = $.x, b = $.x.deep.path) }")
    found = error(PRELUDE + "workflow W(size: Json) andThen {\n s = F(a = $.siez) }")
    assert (found.rule, found.line, found.column) == ("unknown-input", 6, 12)
    assert "siez" in found.message
    assert (found.valid, found.suggestion) == (("size",), "size")


def test_dollar_reads_the_owner_its_results_and_outward_in_a_step_body() -> None:
    assert_clean(PRELUDE + "workflow W(x: Json) andThen { s = E(a = 1) andThen { t = F(a = $.a, b = $.out) u = F(a = $.x) } }")
    found = error(PRELUDE + "workflow W(x: Json) andThen { s = E(a = 1) andThen { t = F(a = $.nope) } }")
    assert found.valid == ("a", "out", "x")


def test_dollar_accepts_any_name_below_a_step_with_unknown_attributes() -> None:
    assert_clean("event facet E() facet F(a: Json) workflow W() andThen { s = E() andThen { t = F(a = $.anything) } }")
    assert_clean(
        "facet P() script { result['n'] = 1 } facet F(a: Json) workflow W() andThen { s = P() andThen { t = F(a = $.n) } }"
    )


def test_dollar_reads_the_results_of_a_pre_script() -> None:
    assert_clean(PRELUDE + 'workflow W(x: Json) script { result["n"] = 1 } andThen { s = F(a = $.n) }')
    found = error(PRELUDE + 'workflow W(x: Json) script { result["n"] = 1 } andThen { s = F(a = $.m) }')
    assert (found.rule, found.valid) == ("unknown-input", ("n", "x"))


@pytest.mark.parametrize("code", ["result[params['x']] = 1", "f = result.update", "print(result)", "result.update(params)"])
def test_dollar_accepts_any_name_after_a_pre_script_that_may_write_any(code: str) -> None:
    assert_clean(PRELUDE + f"workflow W(x: Json) script {{ {code} }} andThen {{ s = F(a = $.n) }}")


def test_dollar_reads_the_loop_variable_and_it_shadows_a_parameter() -> None:
    assert_clean(PRELUDE + "workflow W(xs: [Long], x: String) andThen foreach x in $.xs { s = F(a = $.x + 1) }")


def test_the_loop_variable_can_be_written_in_three_ways() -> None:
    found = block(PRELUDE + "workflow W(xs: Json) andThen foreach x in $.xs { s = F(a = $.x.f, b = x.f) t = F(a = x) }")
    assert values(found.steps[0].call.args) == {"a": p.InputRef(("x", "f")), "b": p.LoopRef(("x", "f"))}
    assert values(found.steps[1].call.args) == {"a": p.LoopRef(("x",))}
    assert found.steps[0].depends == ()


def test_the_loop_variable_is_unknown_outside_its_block() -> None:
    text = "workflow W(xs: Json) andThen foreach x in $.xs { s = F(a = 1) } andThen { t = F(a = {r}) }"
    assert error(PRELUDE + text.replace("{r}", "$.x")).rule == "unknown-input"
    assert error(PRELUDE + text.replace("{r}", "x.f")).rule == "unknown-step"


def test_an_inner_block_sees_the_loop_variable_of_an_outer_one() -> None:
    assert_clean(
        PRELUDE
        + "workflow W(xs: Json) andThen foreach x in $.xs { s = F(a = 1) andThen foreach y in x.ys { t = F(a = x, b = y) } }"
    )


def test_a_loop_may_run_over_inputs_steps_and_loop_variables_in_scope() -> None:
    found = block(PRELUDE + "workflow W(xs: Json) andThen { s = F(a = $.xs) t = F() andThen foreach y in s.a { u = F(a = y) } }")
    assert found.steps[1].depends == ("s",)
    assert error(PRELUDE + "workflow W() andThen foreach x in s.a { }").rule == "unknown-step"
    assert error(PRELUDE + "workflow W() andThen foreach x in $.nope { }").rule == "unknown-input"


def test_a_step_reads_returns_parameters_aliases_and_flat_mixin_arguments() -> None:
    text = "workflow W() andThen { s = R(a = 1) with M(m = 2) with M() as n t = F(a = s.{name}) }"
    for name in ("r", "s", "a", "m", "n", "a.deep"):
        assert_clean(PRELUDE + text.replace("{name}", name))
    found = error(PRELUDE + text.replace("{name}", "zz"))
    assert (found.rule, found.valid) == ("unknown-attribute", ("a", "m", "n", "r", "s"))
    assert "`zz`" in found.message
    assert "`s`" in found.message


def test_an_external_facet_accepts_any_attribute_and_an_event_facet_without_returns_warns() -> None:
    found = warning(PRELUDE + "event facet Any() workflow W() andThen { s = Any() t = F(a = s.anything) }")
    assert (found.rule, found.help) == (
        "unknown-attribute",
        "declare what its handler returns, as in `event facet Any() => (anything: Json)`",
    )
    assert step(PRELUDE + "workflow W() andThen { s = Ext() t = F(a = s.anything) }", "t").depends == ("s",)


def test_a_record_has_only_its_parameters_and_arguments() -> None:
    found = warning(PRELUDE + "workflow W() andThen { s = F() t = F(a = s.anything) }")
    assert (found.rule, found.valid) == ("unknown-attribute", ("a", "b"))
    assert_clean(PRELUDE + "workflow W() andThen { s = F() with M(m = 1) t = F(a = s.b, b = s.m) }")


def test_a_schema_step_has_the_fields_of_the_schema() -> None:
    text = "namespace n { schema S { x: Long } facet F(a: Long) workflow W() andThen { s = S(x = 1) t = F(a = s.{name}) } }"
    assert_clean(text.replace("{name}", "x"))
    assert error(text.replace("{name}", "y")).valid == ("x",)


def test_unknown_forward_self_and_foreign_references_are_distinguished() -> None:
    def found(body: str) -> tuple[str, str]:
        diagnostic = error(PRELUDE + body)
        return diagnostic.rule, diagnostic.message

    rule, message = found("workflow W() andThen { s = F() t = F(a = sss.a) }")
    assert rule == "unknown-step"
    assert "`t`" in message
    assert "`sss`" in message
    rule, message = found("workflow W() andThen { s = F(a = t.a) t = F() }")
    assert rule == "forward-reference"
    assert "`s`" in message
    assert "`t`" in message
    rule, message = found("workflow W() andThen { s = F(a = s.a) }")
    assert rule == "self-reference"
    rule, message = found("workflow W() andThen { s = F() } andThen { t = F(a = s.a) }")
    assert rule == "step-of-other-block"
    rule, message = found("workflow W() andThen { s = F() andThen { t = F() } u = F(a = t.a) }")
    assert rule == "step-of-other-block"
    assert "`u`" in message
    assert "`t`" in message


def test_a_body_may_not_use_later_steps_of_the_outer_block() -> None:
    found = error(PRELUDE + "workflow W() andThen { s = F() andThen { t = F(a = u.a) } u = F() }")
    assert found.rule == "forward-reference"


def test_a_reference_to_an_input_without_its_dollar_gets_a_hint() -> None:
    found = error(PRELUDE + "workflow W(size: Long) andThen { s = F(a = size.x) }")
    assert found.help == "write `$.size.x` for an input"


def test_a_bare_step_is_not_a_value() -> None:
    assert error(PRELUDE + "workflow W() andThen { s = F() t = F(a = s) }").rule == "bare-step"
    assert error(PRELUDE + "workflow W() andThen { t = F(a = nothing) }").rule == "unknown-step"


@pytest.mark.parametrize(
    "expression",
    ["s.a", "-s.a", "!(s.a == 1)", "[1, s.a]", "#{k: s.a}", "1 + s.a", "$.x[s.a]", "s.a[0]", '"t" ++ s.a', "1 in s.a", "-(-s.a)"],
)
def test_a_dependency_is_found_in_every_kind_of_expression(expression: str) -> None:
    assert step(PRELUDE + f"workflow W(x: Json) andThen {{ s = F() t = F(a = {expression}) }}", "t").depends == ("s",)


def test_mixin_arguments_make_dependencies_too() -> None:
    assert step(PRELUDE + "workflow W() andThen { s = F() t = F() with M(m = s.a) }", "t").depends == ("s",)


def test_a_step_depends_on_the_references_in_its_body_and_catch() -> None:
    text = (
        "workflow W() andThen { s = F() q = F() r = F() t = F() andThen { u = F(a = s.a) v = F(a = u.a, b = t.a) } "
        "catch when { case q.a == 1 => { w = F(a = r.a) } case _ => { } } }"
    )
    found = step(PRELUDE + text, "t")
    assert found.depends == ("s", "q", "r")
    assert found.body is not None
    assert [each.depends for each in found.body.steps] == [(), ("u",)]


def test_yields_and_sys_statements_list_their_dependencies() -> None:
    found = block(
        PRELUDE + "workflow W() => (x: Json) andThen { s = F() t = F() sys.log(a = s.a) sys.assert(t.a == 1) yield W(x = t.a) }"
    )
    assert [each.depends for each in found.sys] == [("s",), ("t",)]
    assert found.yields[0].depends == ("t",)


def test_an_inner_step_shadows_an_outer_one() -> None:
    assert_clean(PRELUDE + "workflow W() andThen { s = R() t = F() andThen { s = E() u = F(a = s.out) } }")


def test_defaults_and_implicits_cannot_refer_to_steps() -> None:
    assert error("facet A(x: Json = s.a)").rule == "unknown-step"
    assert error("facet A(x: Json) implicit i = A(x = s.a)").rule == "unknown-step"
    assert facet("facet A(x: Long, y: Json = $.x + 1)", "A").params[1].default is not None
