"""Fixes of semantic diagnostics: applying one removes the diagnostic."""

from __future__ import annotations

import pytest
from tests.lang.programs import compiled

from treadle.lang.diagnostics import Source

TWO = "namespace a { schema S { x: Long } facet F() } namespace b { schema S { x: Long } facet F() }\n"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (TWO + "namespace c {\n  facet G(s: S)\n}", "Change `S` to `a.S`"),
        (TWO + "namespace c {\n  facet G(s: S)\n}", "Add `use b`"),
        (TWO + "workflow W() andThen { f = F() }", "Change `F` to `b.F`"),
        (TWO + "workflow W() andThen { f = c.F() }", "Change `c.F` to `a.F`"),
        ("namespace bank { facet Pay() } workflow W() andThen { p = shop.Pay() }", "Change `shop.Pay` to `bank.Pay`"),
        ("facet Pay() workflow W() andThen { p = Pya() }", "Change `Pya` to `Pay`"),
        ("facet F(amount: Long) workflow W() andThen { f = F(amout = 1) }", "Change `amout` to `amount`"),
        ("namespace n { schema S { sku: String } workflow W(s: S) => (x: String) andThen { yield W(x = $.s.skuu) } }",
         "Change `skuu` to `sku`"),
        ("facet F(n: Long) workflow W() andThen { f = F(n = \"12\") }", "Write it as a number"),
        ("facet F(s: String) workflow W() andThen { f = F(s = 12) }", "Write it as text"),
        ("workflow W(ns: [Long]) => (out: [Long]) andThen foreach n in $.ns { yield W(out = n) }", "Make it a list of one element"),
        ("event facet F() workflow W() andThen { f = F() with Timeout(minuts = 1) }", "Change `minuts` to `minutes`"),
    ],
)  # fmt: skip
def test_a_fix_removes_the_diagnostic(text: str, title: str) -> None:
    (found,) = compiled(text).diagnostics
    titles = {fix.title: fix for fix in found.fixes}
    assert title in titles, found.render()
    fixed = Source("s1.afl", text).apply(titles[title].edits)
    assert compiled(fixed).diagnostics == (), fixed
