"""Which declaration a name means."""

from __future__ import annotations

from tests.lang.programs import assert_clean, compiled, error, program, warning

from treadle.lang import Program, compile_sources
from treadle.lang import nodes as p


def callee(*texts: str, workflow: str = "W") -> str | None:
    found = program(*texts).find_workflow(workflow)
    assert found is not None
    return found.blocks[0].steps[0].call.resolved


CALL = "workflow W() andThen { s = F() }"


def test_a_qualified_name_must_match_exactly() -> None:
    assert callee("namespace a.b { facet F() }", "workflow W() andThen { s = a.b.F() }") == "a.b.F"
    found = error("namespace a.b { facet F() }", "workflow W() andThen {\n s = b.F() }")
    assert (found.rule, found.source, found.line, found.column) == ("unknown-facet", "s2.afl", 2, 6)
    assert "`b.F`" in found.message
    assert found.suggestion == "a.b.F"


def test_the_current_namespace_wins_without_an_ambiguity_check() -> None:
    text = f"facet F() namespace a {{ facet F() }} namespace b {{ use a\n facet F() {CALL} }}"
    assert callee(text) == "b.F"


def test_a_declaration_may_stand_in_another_opening_or_file_of_its_namespace() -> None:
    assert callee(f"namespace b {{ {CALL} }}", "namespace a { facet F() }", "namespace b { facet F() }") == "b.F"


def test_an_import_is_found() -> None:
    assert callee(f"namespace a {{ facet F() }} namespace b {{ use a\n {CALL} }}") == "a.F"


def test_the_top_level_is_visible_everywhere() -> None:
    assert callee(f"facet F() namespace b {{ {CALL} }}") == "F"


def test_two_imports_with_the_name_are_ambiguous() -> None:
    found = error(f"namespace a {{ facet F() }} namespace c {{ facet F() }} namespace b {{ use a\n use c\n {CALL} }}")
    assert (found.rule, found.line, found.column) == ("ambiguous-facet", 3, 29)
    assert found.valid == ("a.F", "c.F")
    assert "`F`" in found.message


def test_an_import_is_ambiguous_if_the_name_is_declared_anywhere_else() -> None:
    found = error(f"namespace a {{ facet F() }} namespace c {{ facet F() }} namespace b {{ use a\n {CALL} }}")
    assert (found.rule, found.valid) == ("ambiguous-facet", ("a.F", "c.F"))


def test_top_level_code_has_no_namespace_of_its_own() -> None:
    found = error(f"facet F() namespace a {{ facet F() }} {CALL}")
    assert (found.rule, found.valid) == ("ambiguous-facet", ("F", "a.F"))


def test_the_only_declaration_in_the_program_is_found_without_an_import() -> None:
    assert callee(f"namespace a {{ facet F() }} namespace b {{ {CALL} }}") == "a.F"


def test_several_declarations_without_an_import_are_ambiguous() -> None:
    assert error(f"namespace a {{ facet F() }} namespace c {{ facet F() }} {CALL}").rule == "ambiguous-facet"


def test_an_unknown_short_name_is_an_external_facet_with_a_warning() -> None:
    found = warning("facet Frob() workflow W() andThen { s = Frop() }")
    assert (found.rule, found.suggestion) == ("external-facet", "Frob")
    call = program("workflow W() andThen { s = Nowhere() }").facets["W"].blocks[0].steps[0].call
    assert (call.resolved, call.name) == (None, "Nowhere")


def test_mixins_and_implicits_resolve_like_calls() -> None:
    loaded = program(
        "namespace a { facet M(n: Long) } namespace b { facet M(n: Long) facet F() with M(n = 1)\n implicit i = M(n = 2)\n"
        "workflow W() andThen { s = F() with a.M(n = 1) with M(n = 2) as m } }"
    )
    assert loaded.facets["b.F"].mixins[0].resolved == "b.M"
    assert [mixin.resolved for mixin in loaded.facets["b.W"].blocks[0].steps[0].call.mixins] == ["a.M", "b.M"]
    assert [each.name for each in loaded.list_implicits("b.M", "b")] == ["i"]
    assert loaded.list_implicits("a.M", "b") == ()


def test_implicits_of_the_own_namespace_take_precedence() -> None:
    loaded = program("namespace a { facet M(n: Long)\n implicit x = M(n = 1) } namespace b { use a\n implicit y = M(n = 2) }")
    assert [each.name for each in loaded.list_implicits("a.M", "b")] == ["y", "x"]
    assert [each.name for each in loaded.list_implicits("a.M", "a")] == ["x", "y"]


def test_a_single_imported_schema_is_enough_even_if_the_name_exists_elsewhere() -> None:
    text = "namespace a { schema S { x: Long } } namespace c { schema S { x: Long } } namespace b { use a\n facet F(s: S) }"
    assert program(text).facets["b.F"].params[0].type == p.NamedType("a.S")


def test_schemas_can_be_called_also_under_a_qualified_name() -> None:
    assert callee("namespace a { schema S { x: Long } } workflow W() andThen { s = a.S(x = 1) }") == "a.S"
    assert callee("namespace a { schema S { x: Long } workflow W() andThen { s = S(x = 1) } }") == "a.S"


def test_a_call_prefers_a_facet_even_if_a_schema_is_nearer() -> None:
    other = "namespace a { facet S(x: Long) }"
    call = "workflow W() andThen { s = S(x = 1) }"
    assert callee(f"{other} namespace b {{ schema S {{ x: Long }} }} namespace c {{ {call} }}") == "a.S"
    assert callee(f"{other} namespace b {{ schema S {{ x: Long }} {call} }}") == "a.S"
    assert callee(f"namespace b {{ schema S {{ x: Long }} {call} }}") == "b.S"


def test_a_workflow_can_be_called() -> None:
    assert callee("workflow V() workflow W() andThen { s = V() }") == "V"


def test_types_may_be_qualified_or_short_and_ambiguous_ones_are_errors() -> None:
    two = "namespace a { schema S { x: Long } } namespace b { schema S { x: Long } }"
    assert_clean(f"{two} facet F(s: [a.S])")
    found = error(f"{two}\nfacet F(s: [S])")
    assert (found.rule, found.line, found.column, found.valid) == ("ambiguous-type", 2, 13, ("a.S", "b.S"))


def test_libraries_are_compiled_along_and_their_warnings_are_kept_quiet() -> None:
    library = "namespace lib { facet F() => (x: Long) }"
    result = compile_sources(
        [("main.afl", "namespace m { use lib\n workflow W() andThen { s = F() } }")], libraries=[("lib.afl", library)]
    )
    assert result.diagnostics == ()
    loaded = Program.load(result.program)
    assert loaded.facets["m.W"].blocks[0].steps[0].call.resolved == "lib.F"
    assert [each.rule for each in compiled(library).diagnostics] == ["returns-without-body"]
    broken = compile_sources([], libraries=[("lib.afl", "facet A(x: Lnog)")])
    assert [each.source for each in broken.errors] == ["lib.afl"]
