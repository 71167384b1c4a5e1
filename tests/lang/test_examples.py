"""The worked examples of the language compile; the rejected ones name what they must."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lang.programs import compiled

from treadle.lang import compile_sources

EXAMPLES = sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.afl"))

WARNINGS = {"later": ["return-not-always", "yield-owner"]}
"""It yields to the workflow in a step's catch, as the reference implementation allows; the values never reach the workflow."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_compiles_without_diagnostics(path: Path) -> None:
    result = compile_sources([(path.name, path.read_text(encoding="utf-8"))])
    assert [each.rule for each in result.diagnostics] == WARNINGS.get(path.stem, []), result.render()
    assert len(result.digest) == 64


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        ("facet A(x: Lnog)", 1, ["Lnog"]),
        ("workflow W(size: Long) andThen { a = F(n = $.siez) }", 1, ["siez", "size"]),
        ("workflow W() => (x: Long) andThen { yield W(x = 1) yield W(x = 2) }", 1, ["W"]),
        ("namespace a { use b.c }", 1, ["b.c"]),
        ('facet A(x: Long = "a"', 1, []),
        ("facet F()\nworkflow W() andThen {\n  one = F()\n  one = F()\n}", 4, ["one", "line 3"]),
    ],
)
def test_e17_rejected_programs_name_the_line_and_the_names(text: str, line: int, names: list[str]) -> None:
    result = compiled(text)
    assert not result.ok
    assert len(result.errors) == 1
    assert result.errors[0].line == line
    for name in names:
        assert name in result.errors[0].render()
