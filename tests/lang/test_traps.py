"""Regression tests for the traps that the language reference lists, as far as they concern the compiler."""

from __future__ import annotations

from tests.lang.programs import compiled, default, error, facet, program, step

from treadle.lang import compile_sources
from treadle.lang import nodes as p


def test_t1_non_ascii_text_survives_in_strings_prompts_and_scripts() -> None:
    assert default('"Grüße \\n 日本 😀"') == p.Literal("Grüße \n 日本 😀")
    prompt = facet('event facet A() prompt { template "é\\t日" }', "A").prompt
    assert prompt is not None
    assert prompt.template == "é\t日"
    script = facet("facet A() script { x = 'é\\n' }", "A").pre_script
    assert script is not None
    assert script.code == "x = 'é\\n'"


def test_t1_a_bad_escape_is_a_diagnostic() -> None:
    assert error('facet A(x: String = "\\x")').rule == "bad-escape"


def test_t2_calls_mixins_and_implicits_carry_the_resolved_name() -> None:
    loaded = program(
        "namespace north { facet Greet() facet M() }\n"
        "namespace south { facet Greet() facet M() implicit i = Greet()\nworkflow Hello() andThen { g = Greet() with M() } }"
    )
    call = loaded.facets["south.Hello"].blocks[0].steps[0].call
    assert (call.target, call.resolved, call.name) == ("Greet", "south.Greet", "south.Greet")
    assert call.mixins[0].resolved == "south.M"
    assert loaded.list_implicits("north.Greet", "north") == ()
    assert len(loaded.list_implicits("south.Greet", "south")) == 1


def test_t3_errors_carry_file_line_column_and_plain_words() -> None:
    result = compiled("facet A()", "facet B(x: Lnog)")
    found = result.errors[0]
    assert (found.source, found.line, found.column, found.end_column) == ("s2.afl", 1, 12, 16)
    assert found.render().startswith("s2.afl:1:12: error[unknown-type]: ")


def test_t4_ids_and_digest_are_the_same_for_every_compilation() -> None:
    text = "facet F() workflow W() andThen { s = F() andThen { t = F() } yield W() }"
    assert compiled(text).program == compiled(text).program
    moved = compile_sources([("x.afl", "\n\n// moved\n" + text)])
    assert set(program(text).nodes) == set(program("\n\n" + text).nodes)
    assert moved.digest == compiled(text).digest


def test_t7_a_reference_below_a_minus_is_a_dependency() -> None:
    assert step("facet F(v: Json) workflow W() andThen { a = F(v = 1) b = F(v = -a.v) }", "b").depends == ("a",)


def test_t8_non_literal_defaults_are_compiled_as_expressions() -> None:
    assert default("-3") == p.Unary("-", p.Literal(3))
    assert default("[1, null]") == p.ArrayLiteral((p.Literal(1), p.Literal(None)))


def test_t10_a_loop_over_a_step_makes_a_dependency() -> None:
    text = "facet F(v: Json) workflow W() andThen { a = F(v = [1]) b = F(v = 1) andThen foreach x in a.v { c = F(v = x.y) } }"
    assert step(text, "b").depends == ("a",)


def test_t21_a_facet_with_several_blocks_keeps_them_all() -> None:
    assert [each.id for each in facet("facet A() andThen { } andThen { }", "A").blocks] == ["A/block-0", "A/block-1"]
