"""Diagnostics show the line, mark the place and say what to do."""

from __future__ import annotations

from tests.lang.programs import compiled, error, tree_of

from treadle.lang import Severity, nodes
from treadle.lang.diagnostics import Edit, Source
from treadle.lang.nodes import Span


def test_a_rendered_diagnostic_shows_the_line_with_a_marker() -> None:
    assert error("facet A(\n  x: Lnog)").render() == (
        "s1.afl:2:6: error[unknown-type]: unknown type `Lnog`\n"
        " 2 |   x: Lnog)\n"
        "   |      ^^^^\n"
        "   = did you mean `Long`?\n"
        "   = valid here: Boolean, Double, Int, Json, Long, String"
    )


def test_tabs_keep_the_marker_in_its_column() -> None:
    lines = error("facet A(\n\tx: Lnog)").render().split("\n")
    assert lines[1] == " 2 | \tx: Lnog)"
    assert lines[2] == "   | \t   ^^^^"


def test_only_a_part_of_a_very_long_line_is_shown() -> None:
    found = error(f"facet A({', '.join(f'p{n}: Long' for n in range(5000))}, x: Lnog)")
    lines = found.render().split("\n")
    assert len(lines[1]) < 150
    assert lines[1][lines[2].index("^") :].startswith("Lnog")


def test_many_alternatives_are_cut_short() -> None:
    params = ", ".join(f"p{n:03}: Long" for n in range(100))
    found = error(f"facet F(a: Long) workflow W({params}) andThen {{ s = F(a = $.p0001) }}")
    assert len(found.valid) == 13
    assert found.valid[-1] == "and 88 more"
    assert found.suggestion in {"p000", "p001"}


def test_a_diagnostic_can_be_given_out_as_json() -> None:
    found = error("facet A(x: Lnog)").as_json()
    assert (found["rule"], found["severity"], found["line"], found["suggestion"]) == ("unknown-type", "error", 1, "Long")


def test_warnings_alone_leave_a_program() -> None:
    result = compiled("facet A() => (x: Long)")
    assert result.ok
    assert result.program
    assert [each.severity for each in result.diagnostics] == [Severity.WARNING]
    assert result.warnings == result.diagnostics
    assert result.errors == ()


def test_the_same_finding_is_reported_once() -> None:
    assert len(compiled("facet A(x: Lnog)\nfacet B() andThen { s = A(x = 1) t = A(x = 2) }").errors) == 1


def test_a_suggestion_for_a_name_is_also_a_fix() -> None:
    text = "facet F(a: Long)\nworkflow W(size: Long) andThen { s = F(a = 1 + $.siez) }"
    found = error(text)
    assert [fix.title for fix in found.fixes] == ["Change `siez` to `size`"]
    assert Source("s", text).apply(found.fixes[0].edits) == text.replace("siez", "size")
    assert found.as_json()["fixes"] == [
        {
            "title": "Change `siez` to `size`",
            "edits": [{"line": 2, "column": 50, "end_line": 2, "end_column": 54, "text": "size"}],
        }
    ]


def test_edits_find_their_places_after_a_byte_order_mark_and_in_any_order() -> None:
    source = Source("s", "\ufeffab\r\ncd\n")
    edits = [Edit(Span(2, 3, 2, 3), "!"), Edit(Span(1, 1, 1, 2), "A"), Edit(Span(2, 1, 2, 2), "")]
    assert source.apply(edits) == "\ufeffAb\r\nd!\n"
    assert source.part(Span(1, 2, 2, 2)) == "b\r\nc"


def test_every_part_of_a_dotted_name_and_of_a_reference_has_its_span() -> None:
    text = "facet A(x: Json = $.ab.cd[s.tu])"
    item = tree_of(text).items[0]
    assert isinstance(item, nodes.Facet)
    default = item.params[0].default
    assert isinstance(default, nodes.Index)
    assert isinstance(default.target, nodes.InputRef)
    assert isinstance(default.index, nodes.Ref)
    parts = [*default.target.parts, *default.index.parts]
    assert [(part.text, Source("s", text).part(part.span)) for part in parts] == [(word, word) for word in ("ab", "cd", "s", "tu")]
    assert item.params[0].span == Span(1, 9, 1, 32)
