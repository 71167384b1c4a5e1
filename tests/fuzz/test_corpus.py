"""The promises of every fuzz target hold for the whole corpus and for inputs drawn by its grammar.

`make fuzz SECONDS=60` looks for more; see docs/explanation/fuzzing.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from tests.fuzz.harness import CORPUS, corpus_of, play
from tests.fuzz.stage import THEATRE
from tests.fuzz.strategies import GRAMMARS, WORDS, inputs_for
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.xdist_group("fuzz")

EXAMPLES = {"afl": 60, "expression": 60, "schedule": 40, "github": 30, "callback": 30, "request": 60}
"""How many inputs are drawn here, where others cost less."""


@pytest.fixture(scope="module", autouse=True)
def theatre() -> Iterator[None]:
    """The server that some targets ask is taken down at the end."""
    yield
    THEATRE.close()


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_harmless(name: str) -> None:
    kept = corpus_of(name)
    assert kept
    found = {path.name: find for path in kept if (find := play(name, TARGETS[name], path.read_bytes())) is not None}
    assert not found, "\n\n".join(f"{path}: {find.text()}" for path, find in found.items())


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_from_the_grammar_are_harmless(name: str) -> None:
    @settings(max_examples=EXAMPLES.get(name, 80), derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs_for(name))
    def drawn(data: bytes) -> None:
        find = play(name, TARGETS[name], data)
        assert find is None, find.text()

    drawn()


def test_every_target_has_a_docstring_words_grammar_and_corpus() -> None:
    assert TARGETS.keys() == WORDS.keys() == GRAMMARS.keys() == {path.name for path in CORPUS.iterdir()}
    assert all(target.__doc__ for target in TARGETS.values())
