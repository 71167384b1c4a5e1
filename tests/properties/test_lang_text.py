"""For any text, the compiler returns a program or diagnostics, and the formatter keeps the meaning."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.lang import CannotFormat, Compiled, Program, compile_sources, format_source

EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.afl"))]
PIECES = [
    "facet",
    "event facet",
    "workflow",
    "W",
    "F",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "#{",
    "=>",
    "=",
    ":",
    ",",
    ";",
    ".",
    "andThen",
    "foreach",
    "in",
    "when",
    "case",
    "_",
    "catch",
    "yield",
    "with",
    "as",
    "script",
    "prompt",
    "template",
    "namespace",
    "use",
    "schema",
    "implicit",
    "$.x",
    "x.y",
    "x",
    '"s"',
    '"',
    "1",
    "1.5",
    "++",
    "+",
    "-",
    "*",
    "==",
    "&&",
    "!",
    "not",
    "true",
    "null",
    "Long",
    "\n",
    "//",
    "/*",
    "*/",
    "/**",
    "sys.log",
    "sys.assert",
    "'",
    "\\",
    "\u00e9",
    "\x00",
    "\ud800",
]


@st.composite
def exchanges(draw: st.DrawFn) -> str:
    """An example in which a few words have taken each other's places: it mostly parses, and means nonsense."""
    text = draw(st.sampled_from(EXAMPLES))
    parts = re.split(r"([A-Za-z_$][A-Za-z0-9_.$]*)", text)
    words = range(1, len(parts), 2)
    for _ in range(draw(st.integers(1, 5))):
        parts[draw(st.sampled_from(words))] = parts[draw(st.sampled_from(words))]
    return "".join(parts)


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """An example with a few pieces cut, doubled, moved or put in."""
    text = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.text(max_size=4), st.just(text[start:end] * 2), st.just("")))
        text = text[:start] + piece + text[end:]
    return text


def answer(text: str) -> Compiled:
    """Compile, and check what every answer must keep."""
    result = compile_sources([("t.afl", text)])
    assert result.ok == bool(result.program) == bool(result.digest)
    assert result.ok != bool(result.errors)
    places = [(each.line, each.column) for each in result.diagnostics]
    assert places == sorted(places)
    for diagnostic in result.diagnostics:
        assert diagnostic.line >= 1
        assert diagnostic.column >= 1
        assert (diagnostic.end_line, diagnostic.end_column) >= (diagnostic.line, diagnostic.column)
        assert diagnostic.render().startswith("t.afl:")
    if result.ok:
        assert Program.load(result.program).dump() == result.program
    return result


def check_formatting(text: str, result: Compiled) -> None:
    """Formatting keeps meaning and is idempotent, or says why it cannot."""
    try:
        once = format_source(text)
    except CannotFormat:
        once = None
    if once is None:
        assert not result.ok
        return
    assert format_source(once) == once
    assert compile_sources([("t.afl", once)]).digest == result.digest


@settings(max_examples=examples(60), deadline=None)
@given(mutations())
def test_mutated_examples_never_raise_and_formatting_keeps_their_meaning(text: str) -> None:
    check_formatting(text, answer(text))


@settings(max_examples=examples(60), deadline=None)
@given(exchanges())
def test_examples_with_exchanged_words_never_raise(text: str) -> None:
    check_formatting(text, answer(text))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(" ".join))
def test_random_tokens_never_raise(text: str) -> None:
    check_formatting(text, answer(text))


@settings(max_examples=examples(40), deadline=None)
@given(st.text(max_size=80))
def test_random_text_never_raises(text: str) -> None:
    check_formatting(text, answer(text))
