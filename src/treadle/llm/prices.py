"""What models cost: a price for each, in dollars for a million tokens, which is the same as millionths for one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.model.errors import InvalidInput

_WRITE, _READ = 1.25, 0.1
"""A token written to the prompt cache, and one read from it, in input tokens."""

OVERHEAD_TOKENS = 600
"""What a request costs beside its own text, at most: services add instructions of their own for the use of tools."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for a million tokens in and out."""

    input: float
    output: float

    def cost(self, input_tokens: int, output_tokens: int, cache_write_tokens: int = 0, cache_read_tokens: int = 0) -> int:
        """Millionths of a dollar, rounded up."""
        tokens_in = input_tokens + cache_write_tokens * _WRITE + cache_read_tokens * _READ
        return math.ceil(tokens_in * self.input + output_tokens * self.output - 1e-9)


LIST_PRICES: dict[str, Price] = {
    "claude-haiku-4-5": Price(1, 5),
    "claude-sonnet-4-5": Price(3, 15),
    "claude-sonnet-4-6": Price(3, 15),
    "claude-opus-4-5": Price(5, 25),
    "claude-opus-4-6": Price(5, 25),
}
"""Defaults, for models that `TREADLE_LLM_PRICES` says nothing of: list prices as of `LIST_PRICES_AS_OF`. Prices change."""

LIST_PRICES_AS_OF = "2026-02"


class Prices:
    """Prices by name of the model; a name also stands for its dated versions (`claude-haiku-4-5-20251001`)."""

    def __init__(self, given: Mapping[str, Price] | None = None) -> None:
        self._prices = {**LIST_PRICES, **(given or {})}

    def find(self, model: str) -> Price | None:
        """The price of the model, or None if nobody said one."""
        if model in self._prices:
            return self._prices[model]
        name, _, version = model.rpartition("-")
        return self._prices.get(name) if len(version) == 8 and version.isdigit() else None


def parse_prices(text: str) -> dict[str, Price]:
    """Prices from JSON such as `{"some-model": [3, 15]}`: dollars for a million tokens in and out."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
        prices = {name: Price(float(both[0]), float(both[1])) for name, both in found.items()}
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, OverflowError, RecursionError):
        raise InvalidInput('TREADLE_LLM_PRICES must be JSON like {"some-model": [3, 15]}: dollars per million tokens.') from None
    if any(not math.isfinite(each) or each < 0 for price in prices.values() for each in (price.input, price.output)):
        raise InvalidInput("TREADLE_LLM_PRICES has a price that is negative or no number.")
    return prices


def most_tokens(request: Mapping[str, object]) -> int:
    """How many tokens the request has at most; needs no call. A token is at least one byte of text, and usually about four."""
    return len(json.dumps(request, ensure_ascii=False, default=str).encode("utf-8", "replace")) + OVERHEAD_TOKENS
