"""Short ways to compile a text in a test and to look at what came out."""

from __future__ import annotations

from treadle.lang import Compiled, Diagnostic, Program, compile_sources
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.nodes import Arg, Block, Expr, Facet, File, Step
from treadle.lang.parse import parse


def compiled(*texts: str) -> Compiled:
    """Compile texts as `s1.afl`, `s2.afl`, ..."""
    return compile_sources([(f"s{number}.afl", text) for number, text in enumerate(texts, 1)])


def program(*texts: str) -> Program:
    """Compile texts that must be free of errors."""
    result = compiled(*texts)
    assert result.ok, result.render()
    return Program.load(result.program)


def facet(text: str, name: str) -> Facet:
    """One facet of a program."""
    found = program(text).find_facet(name)
    assert found is not None
    return found


def default(expression: str, params: str = "") -> Expr:
    """The compiled form of an expression, as the default of a parameter."""
    found = facet(f"facet A({params}{', ' if params else ''}x: Json = {expression})", "A").params[-1].default
    assert found is not None
    return found


def block(text: str, name: str = "W", number: int = 0) -> Block:
    """One block of a facet."""
    return facet(text, name).blocks[number]


def step(text: str, name: str, workflow: str = "W") -> Step:
    """One step of the first block of a facet."""
    return next(each for each in block(text, workflow).steps if each.name == name)


def values(args: tuple[Arg, ...]) -> dict[str, Expr]:
    """Arguments by name."""
    return {arg.name: arg.value for arg in args}


def rules(*texts: str) -> list[str]:
    """The rules that the texts break, errors and warnings, in source order."""
    return [each.rule for each in compiled(*texts).diagnostics]


def error(*texts: str) -> Diagnostic:
    """The only error of the texts."""
    errors = compiled(*texts).errors
    assert len(errors) == 1, compiled(*texts).render()
    return errors[0]


def warning(*texts: str) -> Diagnostic:
    """The only diagnostic of the texts, which must be a warning."""
    result = compiled(*texts)
    assert result.ok, result.render()
    assert len(result.diagnostics) == 1, result.render()
    return result.diagnostics[0]


def assert_clean(*texts: str) -> None:
    """The texts compile without any diagnostic."""
    result = compiled(*texts)
    assert result.diagnostics == (), result.render()


def tree_of(text: str) -> File:
    """The syntax tree of a text that parses."""
    reporter = Reporter()
    file = parse(Source("t.afl", text), reporter).file
    assert file is not None, "\n".join(each.render() for each in reporter.sorted())
    return file
