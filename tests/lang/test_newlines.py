"""Positions of allowed and forbidden line breaks."""

from __future__ import annotations

import itertools

import pytest
from tests.lang.programs import assert_clean, compiled, error, program

from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.expressions import LEVELS
from treadle.lang.lexer import lex

PRELUDE = "facet F(a: Json = null, b: Json = null) facet M(x: Json = null)\n"
ALLOWED = {
    "around declarations": "\n\nfacet A()\n\n\nfacet B()\n",
    "inside parameter lists": "facet A(\n a: Long\n ,\n b: Long\n)",
    "inside argument lists": "workflow W() andThen { s = F(\n a = 1\n ,\n b = 2\n ) }",
    "after = of an argument": "workflow W() andThen { s = F(a =\n 1) }",
    "after a binary operator": "workflow W() andThen { s = F(a = 1 +\n 2 *\n 3, b = 1 ==\n 2 &&\n true) }",
    "inside lists and maps": "workflow W() andThen { s = F(a = [\n1\n,\n2\n+ 3\n], b = #{\n a: 1\n,\n b: 2\n}) }",
    "inside an index": "workflow W(v: Json) andThen { s = F(a = $.v[\n0\n]) }",
    "inside braces": "workflow W()\nandThen\n{\n\ns = F()\n\n}\n",
    "before a script tail": "facet A()\nscript { x = 1 }",
    "before a prompt tail": 'event facet A()\nprompt\n{\ntemplate\n"x"\n}',
    "between andThen clauses": "workflow W() andThen { }\nandThen { }\n\nandThen { }",
    "between andThen and script": "workflow W() andThen\nscript { x = 1 }",
    "around =>": "event facet A()\n=>\n(x: Long)",
    "before with": "facet A()\nwith M(x = 1)\nwith M(x = 2) as m",
    "before with of a call": "workflow W() andThen { s = F()\nwith M(x = 1)\nwith M() as m\n}",
    "before the first andThen": "workflow W()\nandThen { }",
    "before a step's andThen": "workflow W() andThen { s = F()\nandThen { }\n}",
    "between andThen and the brace": "workflow W() andThen\n{ s = F() andThen\n{ } }",
    "before catch": "workflow W() andThen { s = F()\ncatch\n{ } }\ncatch { }",
}
FORBIDDEN = {
    "before a binary operator": "workflow W() andThen { s = F(a = 1\n + 2) }",
    "before a comparison": "workflow W() andThen { s = F(a = 1\n == 2) }",
    "before ++": 'workflow W() andThen { s = F(a = "a"\n ++ "b") }',
    "between facet and its name": "facet\nA()",
    "between a name and its parenthesis": "facet A\n()",
    "between a call and its parenthesis": "workflow W() andThen { s = F\n() }",
    "before a colon": "facet A(a\n: Long)",
    "after a colon": "facet A(a:\nLong)",
    "before = of a step": "workflow W() andThen { s\n= F() }",
    "after yield": "workflow W() andThen { yield\nW() }",
}


EVERYTHING = """namespace n { use n
schema S { a: Long, b: [Long] }
facet M(x: Json = null) facet F(a: Json = null, b: Json = null) with M(x = 1) as m
event facet E(x: Long = -1) => (y: Long) prompt { template "x" }
implicit i = F(a = 1)
workflow W(v: Json, l: [Long] = [1, 2 + 3]) => (q: Json) script python { x = 1 } andThen foreach x in $.l {
s = F(a = 1 + 2 * (3 - 1), b = #{k: 1, l: 2 + 3}) with M(x = 2) as m andThen { t = F() catch { sys.log(a = s.a) } }
sys.assert($.v[0] == 1 && true) yield W(q = "a" ++ s.a) }
andThen when { case $.v not in $.l => { yield W(q = 1) } case _ => { } } catch { yield W(q = 2) } }
"""
JOINED = ["namespace", "use", "facet", "event", "workflow", "schema", "implicit", "yield", "with", "as", "foreach"]


def test_lines_may_be_broken_exactly_where_the_reference_allows() -> None:
    """The section "Layout" of docs/reference/afl.md, for every pair of tokens."""
    source = Source("x.afl", EVERYTHING)
    digest = compiled(EVERYTHING).digest
    tokens = lex(source, Reporter()).tokens
    openers: list[str] = []
    for before, after in itertools.pairwise(tokens):
        if before.kind in ("(", "[", "{", "#{"):
            openers.append(before.kind)
        elif before.kind in (")", "]", "}"):
            openers.pop()
        value_ended = before.kind in ("name", "dotted", "input", "integer", "string", ")", "]") and before.text not in (
            "not",
            "foreach",
        )
        forbidden = (
            (after.text in LEVELS and value_ended and before.text != "x" and openers[-1] not in ("[", "#{"))
            or (after.kind == "(" and before.kind in ("name", "dotted"))
            or (after.kind == "=")
            or (":" in (before.kind, after.kind) and openers[-1] != "#{")
            or before.text in JOINED
        )
        broken = f"{EVERYTHING[: before.end]}\n{EVERYTHING[before.end :]}"
        assert (compiled(broken).digest != digest) == forbidden, (before.text, after.text)


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED.keys())
def test_a_line_may_be_broken(text: str) -> None:
    result = compiled(PRELUDE + text)
    assert result.ok, result.render()
    assert compiled(PRELUDE + text.replace("\n", "\r\n")).digest == result.digest


@pytest.mark.parametrize("text", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_line_may_not_be_broken(text: str) -> None:
    found = error(PRELUDE + text)
    assert found.rule == "syntax-error"
    assert found.line == 3


def test_an_operator_at_the_start_of_a_line_gets_a_hint_about_its_place() -> None:
    assert error(PRELUDE + FORBIDDEN["before a binary operator"]).help == "end the previous line with `+` instead"


def test_a_sign_may_begin_a_line_where_a_value_is_expected() -> None:
    assert_clean(PRELUDE + "workflow W() andThen { s = F(\n-1 ) }".replace("-1", "a =\n-1"))


def test_semicolons_separate_declarations_and_statements() -> None:
    assert_clean(
        "namespace n { use n; facet F();; implicit i = F(); schema S { a: Long };\n"
        "workflow W() andThen { a = F(); b = F(); yield W(); }; };"
    )


def test_declarations_and_statements_need_no_separator() -> None:
    assert_clean("facet F() facet G() workflow W() andThen { a = F() b = G() yield W() }")


def test_trailing_commas_are_accepted() -> None:
    assert_clean(
        "namespace n { schema S { a: Long, } event facet F(a: Json,) => (b: Long,)\n"
        "workflow W() andThen { a = F(a = [1, 2,],) b = F(a = #{k: 1,}) } }"
    )


def test_schema_fields_may_be_separated_by_newlines_alone() -> None:
    schema = program("namespace n { schema S {\n a: Long\n b: [Long]\n\n c: String,\n d: Json\n , e: Int } }").schemas["n.S"]
    assert [field.name for field in schema.fields] == ["a", "b", "c", "d", "e"]


def test_schema_fields_on_one_line_need_a_comma() -> None:
    found = error("namespace n { schema S { a: Long b: Long } }")
    assert (found.message, found.column) == ("a comma is missing here", 33)
