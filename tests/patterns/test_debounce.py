"""Debounce: the changes of a burst give one execution, with the last value."""

from __future__ import annotations

from typing import Any

import pytest
from tests.patterns.programs import load

from treadle.testing import Environment


@pytest.fixture
def program() -> Any:
    loaded = load("debounce")
    loaded.QUIET, loaded.MAX_WAIT, loaded.indexed = 5, 30, []
    loaded.print = lambda _, document, text: loaded.indexed.append((document, text))
    return loaded


async def test_the_changes_of_a_burst_are_one_execution_with_the_last_value(program: Any):
    async with Environment(program.engine) as env:
        for text in "abc":
            await program.changed("notes", text)
            await program.changed("other", text.upper())
            await env.advance(4.9)
        assert not program.indexed
        await env.advance(0.2)
        assert sorted(program.indexed) == [("notes", "c"), ("other", "C")]
        await env.advance(hours=1)
        await program.changed("notes", "d")  # the next burst
        await env.advance(6)
    assert program.indexed[2:] == [("notes", "d")]


async def test_changes_without_a_pause_are_indexed_after_the_longest_wait(program: Any):
    async with Environment(program.engine) as env:
        for number in range(9):
            await program.changed("notes", number)
            await env.advance(4)
        assert program.indexed == [("notes", 7)]
        await env.advance(6)
    assert program.indexed == [("notes", 7), ("notes", 8)]


async def test_a_change_during_the_execution_is_not_lost(program: Any):
    changes: list[Any] = []

    def note(_: str, document: str, text: str) -> None:
        program.indexed.append(text)
        if text == "a":
            changes.append(program.changed("notes", "b"))

    program.print = note
    async with Environment(program.engine) as env:
        await program.changed("notes", "a")
        await env.advance(6)
        assert program.indexed == ["a"]
        await changes[0]
        await env.advance(6)
    assert program.indexed == ["a", "b"]


async def test_a_change_before_a_retry_is_an_execution_of_its_own(program: Any):
    broken = True

    def note(_: str, document: str, text: str) -> None:
        if broken:
            raise ConnectionError("no index")
        program.indexed.append(text)

    program.print = note
    async with Environment(program.engine) as env:
        await program.changed("notes", "a")
        await env.advance(6)  # it has failed, and waits for its next attempt
        broken = False
        await program.changed("notes", "b")
        await env.advance(hours=1)
    assert sorted(program.indexed) == ["a", "b"]
