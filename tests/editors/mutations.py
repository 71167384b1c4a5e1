"""Small changes of programs, most of which are wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator

from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.lexer import lex

_WORDS = [
    "facet",
    "with",
    "andThen",
    "yield",
    "=",
    ":",
    ",",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "++",
    "in",
    "when",
    "catch",
    "x",
    "1",
    "$.x",
    "a.b",
]


def mutants(text: str, seed: str, number: int) -> Iterator[str]:
    """Yield texts in which one token was removed, repeated, replaced, or moved to another line or to its neighbour's place."""
    chance = random.Random(seed)
    tokens = [token for token in lex(Source("a", text), Reporter()).tokens if token.start < token.end]
    for _ in range(number):
        at = chance.randrange(len(tokens) - 1)
        one, other = tokens[at], tokens[at + 1]
        before, after = text[: one.start], text[one.end :]
        match chance.randrange(7):
            case 0:
                yield before + after
            case 1:
                yield before + one.text + " " + one.text + after
            case 2:
                yield before + chance.choice(_WORDS) + " " + after
            case 3:
                yield before + "\n" + text[one.start :]
            case 4:
                yield text[: one.end] + " " + text[other.start :]
            case 5:
                yield before + other.text + " " + one.text + text[other.end :]
            case 6:
                yield text[: one.end]
