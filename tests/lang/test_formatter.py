"""The formatter: uniform blanks and indentation, nothing lost, nothing moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.lang import CannotFormat, compile_sources, format_source

EXAMPLES = sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.afl"))

MESSY = """\
\ufeff/** doc
      * more
 */
event   facet F( a:Long=-1,b : [ String ] = ["a" ,
"b"]  )=>( c:Long )
with   M(x=1 , y = #{ a:1, "b":2 })  as m // trailing


script   {   result["x"]=1  }
andThen{

a=F(a=!true&&-$.x[ 0 ]>=3+ +1)   /* c */ andThen   foreach x in $.y {
    // own line
    q = F(
a=1,
  b=2
  ) ;
 }


   catch = F( )
  yield  F( c=1 )

}
workflow W() andThen script {
          if a:
            b()
      }
"""
TIDY = """\
/** doc
 * more
 */
event facet F(a: Long = -1, b: [String] = ["a",
    "b"]) => (c: Long)
    with M(x = 1, y = #{a: 1, "b": 2}) as m // trailing

script { result["x"]=1 }
andThen {
    a = F(a = !true && -$.x[0] >= 3 + +1) /* c */ andThen foreach x in $.y {
        // own line
        q = F(
            a = 1,
            b = 2
        );
    }

    catch = F()
    yield F(c = 1)
}
workflow W() andThen script {
    if a:
      b()
}
"""


def test_a_messy_source_becomes_tidy() -> None:
    assert format_source(MESSY) == TIDY


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_formatting_keeps_the_meaning_and_is_idempotent(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    once = format_source(text)
    assert format_source(once) == once
    assert compile_sources([("a", once)]).digest == compile_sources([("a", text)]).digest


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_formatted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert format_source(text) == text


@pytest.mark.parametrize("comment", ["// x", "/* x */", "/** x */", "/* a\n   b */"])
@pytest.mark.parametrize(
    "place", ["{c}\nfacet A()", "facet A( {c}\n)", "facet A() {c}\n", "facet A()\n\n{c}\n", "workflow W() andThen {\n{c}\n}"]
)
def test_comments_are_kept_wherever_they_stand(comment: str, place: str) -> None:
    text = format_source(place.replace("{c}", comment))
    assert comment in text
    assert format_source(text) == text


def test_signs_do_not_run_together() -> None:
    text = "facet A(x: Long = 1 - -1 + + +2, y: Long = - - 1)\n"
    once = format_source(text)
    assert compile_sources([("a", once)]).digest == compile_sources([("a", text)]).digest
    assert format_source(once) == once


def test_a_script_with_a_string_over_several_lines_keeps_its_text() -> None:
    text = 'facet A() script {\n        x = """\n    a\n  b\n"""\n}\n'
    assert compile_sources([("a", format_source(text))]).digest == compile_sources([("a", text)]).digest


def test_an_empty_source_is_formatted_as_empty() -> None:
    assert format_source("") == ""
    assert format_source(" \n\n") == ""


def test_text_that_does_not_parse_raises_with_diagnostics() -> None:
    with pytest.raises(CannotFormat) as caught:
        format_source("facet A(", "bad.afl")
    assert caught.value.diagnostics[0].source == "bad.afl"
    assert "bad.afl:1:9" in str(caught.value)
