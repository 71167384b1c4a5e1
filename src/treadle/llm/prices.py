"""Prices of models, in dollars per million tokens, which equals micro-dollars per token."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.model.errors import InvalidInput

_WRITE, _READ = 1.25, 0.1
"""The price of a token written to the prompt cache, and of one read from it, in input tokens."""

OVERHEAD_TOKENS = 600
"""Maximum overhead of a request in tokens: services add their own instructions for tools."""


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million input and output tokens."""

    input: float
    output: float

    def cost(self, input_tokens: int, output_tokens: int, cache_write_tokens: int = 0, cache_read_tokens: int = 0) -> int:
        """Return the cost in micro-dollars, rounded up."""
        tokens_in = input_tokens + cache_write_tokens * _WRITE + cache_read_tokens * _READ
        return math.ceil(tokens_in * self.input + output_tokens * self.output - 1e-9)


LIST_PRICES: dict[str, Price] = {
    "claude-haiku-4-5": Price(1, 5),
    "claude-sonnet-4-5": Price(3, 15),
    "claude-sonnet-4-6": Price(3, 15),
    "claude-opus-4-5": Price(5, 25),
    "claude-opus-4-6": Price(5, 25),
}
"""Default list prices as of `LIST_PRICES_AS_OF`, for models that are not in `TREADLE_LLM_PRICES`. Prices change."""

LIST_PRICES_AS_OF = "2026-02"


class Prices:
    """Prices by model name; a name also covers its dated versions (`claude-haiku-4-5-20251001`)."""

    def __init__(self, given: Mapping[str, Price] | None = None) -> None:
        self._prices = {**LIST_PRICES, **(given or {})}

    def find(self, model: str) -> Price | None:
        """Return the price of the model, or None if it is unknown."""
        if model in self._prices:
            return self._prices[model]
        name, _, version = model.rpartition("-")
        return self._prices.get(name) if len(version) == 8 and version.isdigit() else None


def parse_prices(text: str) -> dict[str, Price]:
    """Parse prices from JSON such as `{"some-model": [3, 15]}`: dollars per million input and output tokens."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
        prices = {name: Price(float(both[0]), float(both[1])) for name, both in found.items()}
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, OverflowError, RecursionError):
        raise InvalidInput('TREADLE_LLM_PRICES must be JSON like {"some-model": [3, 15]}: dollars per million tokens.') from None
    if any(not math.isfinite(each) or each < 0 for price in prices.values() for each in (price.input, price.output)):
        raise InvalidInput("TREADLE_LLM_PRICES has a price that is negative or not a number.")
    return prices


def most_tokens(request: Mapping[str, object]) -> int:
    """Return an upper bound for the tokens of the request, without a call. A token is at least one byte of text, and usually
    about four."""
    return len(json.dumps(request, ensure_ascii=False, default=str).encode("utf-8", "replace")) + OVERHEAD_TOKENS
