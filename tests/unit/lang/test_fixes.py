"""All fixes together, round by round, lead from a wrong program to a correct one."""

from __future__ import annotations

from tests.unit.lang.test_hints import CASES

from treadle.lang import compile_sources, fix_sources


def test_fixes_of_several_files_are_applied_until_none_is_left() -> None:
    library = "namespace lib {\n    evnt facet F(x: Float) -> (y: Long)\n}\n"
    main = "workflow W(size: Long) => (y: Long) andThen {\n    # go\n    f = lib.F(x: $.siez)\n    yield = W(y = f.y)\n}\n"
    fixed = fix_sources([("lib.afl", library), ("main.afl", main)])
    assert fixed.compiled.ok, fixed.compiled.render()
    assert dict(fixed.sources) == {
        "lib.afl": "namespace lib {\n    event facet F(x: Double) => (y: Long)\n}\n",
        "main.afl": main.replace("# go", "// go").replace("x: $.siez", "x = $.size").replace("yield =", "yield"),
    }
    assert {each.source for each in fixed.applied} == {"lib.afl", "main.afl"}


def test_fixing_ends_and_never_leaves_a_fix_behind() -> None:
    for text, *_ in CASES.values():
        fixed = fix_sources([("a.afl", text)])
        assert not any(each.fixes for each in fixed.compiled.errors), fixed.compiled.render()
        assert fixed.compiled == compile_sources(fixed.sources)


def test_a_program_without_mistakes_is_left_alone() -> None:
    fixed = fix_sources([("a.afl", "facet A(x: Long)\n")])
    assert (fixed.sources, fixed.applied) == ((("a.afl", "facet A(x: Long)\n"),), ())
