"""Targets in AFL: sources, expressions, compiled programs."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from tests.properties.test_lang_text import answer, check_formatting

from treadle.evaluator.records import Limits
from treadle.lang import InvalidProgram, Program, compile_sources, graph
from treadle.model.errors import InvalidPayload
from treadle.model.values import decode, encode
from treadle.testing.workflows import CompilationFailed, WorkflowFailed, run_workflow


def text_of(data: bytes) -> str:
    """Any bytes as text; those that are none come out as halves of surrogate pairs, which JSON lets in."""
    return data.decode("utf-8", "surrogateescape")


def afl(data: bytes) -> None:
    """Source text: a program or diagnostics with places, never an exception, however deep it nests.

    Compiling it again gives the same; a program survives JSON; formatting is idempotent and keeps the
    meaning; a program that compiles can be drawn.
    """
    text = text_of(data)
    result = answer(text)
    assert compile_sources([("t.afl", text)]) == result
    check_formatting(text, result)
    if result.ok:
        again = json.loads(json.dumps(result.program))
        assert Program.load(again).dump() == result.program
        graph(Program.load(again))


def expression(data: bytes) -> None:
    """The text of an expression: it does not compile, or its workflow fails, or its value is JSON that a store takes.

    The size of the output is bounded by that of the input. Programs that no store takes, as they hold U+0000 or half of a
    surrogate pair, are refused when they are published, and not run here.
    """
    source = f"workflow W(n: Long, s: String, l: [Json], m: Json) => (x: Json) andThen {{ yield W(x = {text_of(data)}\n) }}"
    inputs = {"n": 7, "s": "a b", "l": [1, "b", None], "m": {"a": {"b": [True]}}}
    try:
        encode(compile_sources([("t.afl", source)]).program, "program", 2**31)
    except InvalidPayload:
        return
    try:
        outputs = run_workflow(source, "W", inputs, {}, script_runner=_no_scripts, limits=Limits())
    except (CompilationFailed, WorkflowFailed):
        return
    text = encode(outputs, "outputs", 2**31)
    assert len(text) < 10_000 + 2_000 * (len(data) + 1)
    assert decode(text) == json.loads(text)


def _no_scripts(*given: Any, **more: Any) -> Any:
    raise AssertionError("an expression has no scripts")


def program(data: bytes) -> None:
    """A compiled program, as JSON: it is loaded, or refused as `InvalidProgram`, however deep it nests.

    That names are names and so on is not looked at: programs come from our own store. `afl` checks that a compiled program loads.
    """
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    with suppress(InvalidProgram):
        Program.load(given)
