"""Size and depth: a result or a clean diagnostic, in time that grows with the size and no faster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from tests.lang.programs import compiled, program, rules

from treadle.lang import Program, format_source

DEEP = {
    "minus signs": ("facet A(x: Long = ", "-", "1", "", ")"),
    "lists": ("facet A(x: Json = ", "[", "1", "]", ")"),
    "maps": ("facet A(x: Json = ", "#{a:", "1", "}", ")"),
    "list types": ("facet A(x: ", "[", "Long", "]", ")"),
    "indexes": ("facet A(v: Json, x: Json = $.v", "[0]", "", "", ")"),
    "blocks": ("facet F() workflow W() andThen {", "a = F() andThen {", "", "}", "}"),
    "cases": ("facet F() workflow W() andThen {", "a = F() andThen when { case _ => {", "", "}}", "}"),
    "catches": ("facet F() workflow W() andThen {", "a = F() catch {", "", "}", "}"),
}


@pytest.mark.parametrize("depth", [500, 2000, 5000])
@pytest.mark.parametrize("shape", DEEP)
def test_nesting_that_is_too_deep_is_one_clean_error(shape: str, depth: int) -> None:
    before, opening, middle, closing, after = DEEP[shape]
    text = before + opening * depth + middle + closing * depth + after
    assert rules(text) == ["too-deep"]
    assert format_source(text)


@pytest.mark.parametrize("shape", DEEP)
def test_reasonable_nesting_compiles_loads_and_dumps(shape: str) -> None:
    before, opening, middle, closing, after = DEEP[shape]
    depth = 24 if shape in ("blocks", "cases", "catches") else 99
    result = compiled(before + opening * depth + middle + closing * depth + after)
    assert result.ok, result.render()
    assert Program.load(result.program).dump() == result.program


def test_the_deepest_program_fits_the_stack_with_room_to_spare() -> None:
    blocks, depth = 24, 99
    text = "facet F(a: Json = null) workflow W() andThen {" + "a = F() andThen when { case _ => {" * blocks
    text += f"b = F(a = {'#{k:' * depth}1{'}' * depth})" + "}}" * blocks + "}"

    def below(frames: int) -> bool:
        if frames:
            return below(frames - 1)
        result = compiled(text)
        return result.ok and Program.load(json.loads(json.dumps(result.program))).dump() == result.program

    assert below(200)


def test_parentheses_may_nest_to_any_depth() -> None:
    assert program(f"facet A(x: Long = {'(' * 20_000}1{')' * 20_000})")


def test_unclosed_nesting_is_a_syntax_error() -> None:
    for sign in "([{":
        assert rules(f"facet A(x: Json = {sign * 20_000}") == ["syntax-error"]


def test_a_long_concatenation_is_not_deep() -> None:
    assert program(f"facet A(x: String = {' ++ '.join(['1'] * 20_000)})")


@pytest.mark.parametrize("operator", ["+", "-", "*", "&&", "||"])
@pytest.mark.parametrize("count", [33, 101, 5000])
def test_a_long_flat_chain_of_operators_is_not_deep(operator: str, count: int) -> None:
    value = "true" if operator in ("&&", "||") else "1"
    result = compiled(f"facet A(x: Json = {f' {operator} '.join([value] * count)})")
    assert result.ok, result.render()
    assert Program.load(json.loads(json.dumps(result.program))).dump() == result.program


def test_ten_thousand_declarations_compile() -> None:
    count = 10_000
    loaded = program("".join(f"facet F{n}(a: Long) andThen {{ s = F{(n + 1) % count}(a = $.a) }}\n" for n in range(count)))
    assert len(loaded.facets) == count


def test_ten_thousand_errors_are_all_reported() -> None:
    found = compiled("".join(f"facet F{n}(a: Lnog{n})\n" for n in range(10_000)))
    assert len(found.errors) == 10_000
    assert [each.line for each in found.errors] == list(range(1, 10_001))


def test_a_megabyte_in_one_string_script_or_comment_compiles() -> None:
    big = "x " * 500_000
    assert compiled(f'facet A(x: String = "{big}") // {big}').ok
    assert compiled(f"facet A() script {{\n# {big}\nx = 1\n}} /* {big} */").ok


def test_hostile_scripts_take_linear_time() -> None:
    for part in ('\\"""', "\\'", '"a\\', "'''", "{"):
        assert not compiled(f"facet A() script {{ {part * 100_000}").ok


def work(text: str) -> int:
    """How many calls it takes to compile a text: a measure of time that no other process disturbs."""
    count = 0

    def tally(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tally)
    try:
        compiled(text)
    finally:
        sys.setprofile(None)
    return count


def _steps(count: int) -> str:
    rest = "".join(f"s{n} = N(v = s{n - 1}.v + $.x)\n" for n in range(1, count))
    return f"facet N(v: Long)\nworkflow W(x: Long) andThen {{\ns0 = N(v = 1)\n{rest}}}"


def _parameters(count: int) -> str:
    params = ", ".join(f"p{n}: Long" for n in range(count))
    return f"facet F({params}) andThen {{ {' '.join(f's{n} = F(p{n} = $.p{n})' for n in range(count))} }}"


SHAPES: dict[str, Callable[[int], str]] = {
    "declarations": lambda n: "".join(f"facet F{i}(a: Long) andThen {{ s = F{(i + 1) % n}(a = $.a) }}\n" for i in range(n)),
    "steps": _steps,
    "namespaces": lambda n: "".join(
        f"namespace n{i} {{ use n{(i + 1) % n}\nfacet F()\nworkflow W() andThen {{ a = F() }} }}\n" for i in range(n)
    ),
    "parameters": _parameters,
    "errors": lambda n: "".join(
        f"facet F{i}(a: Lnog{i}) andThen {{ s = G{i}(a = $.b, c = t.x) yield H{i}() }}\n" for i in range(n)
    ),
    "ambiguous names": lambda n: "".join(
        f"namespace n{i} {{ facet F() }} namespace m{i} {{ workflow W{i}() andThen {{ s = F() }} }}\n" for i in range(n)
    ),
    "files of one line": lambda n: " ".join(f"facet F{i}(a: Lnog)" for i in range(n)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_size_takes_twice_the_work(shape: str) -> None:
    make = SHAPES[shape]
    assert work(make(800)) < 2.2 * work(make(400))
