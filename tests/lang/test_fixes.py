"""All fixes together, round by round, lead from a wrong program to a correct one."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tests.golden.afl.programs import read
from tests.lang.test_hints import CASES

from treadle.lang import Compiled, compile_sources, fix_sources
from treadle.lang.diagnostics import Source
from treadle.lang.rules import RULES

WRONG = (
    {f"golden: {case.title}": case.text for case in read("wrong.txt")}
    | {f"hint: {name}": case[0] for name, case in CASES.items()}
    | {f"rule: {name}": rule.wrong for name, rule in RULES.items()}
)


def errors_of(result: Compiled) -> Counter[tuple[str, str]]:
    return Counter((each.rule, each.message) for each in result.errors)


def orderings(text: str) -> int:
    """Return how many names follow `after`, anywhere but behind a yield, which needs none."""
    lists = (names for line in text.splitlines() if "yield" not in line for names in re.findall(r"\bafter (\w+(?:, \w+)*)", line))
    return sum(names.count(",") + 1 for names in lists)


def dependencies(result: Compiled) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}

    def collect(node: object) -> None:
        if isinstance(node, dict):
            if "depends" in node:
                found[str(node.get("id"))] = set(node["depends"])
            for each in node.values():
                collect(each)
        elif isinstance(node, list | tuple):
            for each in node:
                collect(each)

    collect(result.program)
    return found


@pytest.mark.parametrize("name", WRONG)
def test_every_fix_alone_removes_its_diagnostic_and_adds_no_error(name: str) -> None:
    text = WRONG[name]
    before = compile_sources([("a.afl", text)])
    for each in before.diagnostics:
        for fix in each.fixes:
            changed = Source("a.afl", text).apply(fix.edits)
            after = compile_sources([("a.afl", changed)])
            left = Counter((other.rule, other.message) for other in after.diagnostics)[each.rule, each.message]
            told = f"{fix.title}\n{changed}\n{after.render()}"
            assert left < sum((other.rule, other.message) == (each.rule, each.message) for other in before.diagnostics), told
            assert not errors_of(after) - errors_of(before), told
            assert orderings(changed) >= orderings(text), told
            if before.ok and after.ok:
                found = dependencies(after)
                assert all(found.get(step, needed) >= needed for step, needed in dependencies(before).items()), told


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


def test_a_program_without_mistakes_is_unchanged() -> None:
    fixed = fix_sources([("a.afl", "facet A(x: Long)\n")])
    assert (fixed.sources, fixed.applied) == ((("a.afl", "facet A(x: Long)\n"),), ())
