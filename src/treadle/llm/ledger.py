"""Accounting: each request is reserved in the store before it is sent, and settled afterwards, under its task and attempt."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from treadle.kernel.store.ports import Store
from treadle.llm.config import LLMError
from treadle.model.errors import InvalidInput
from treadle.model.ids import Ids
from treadle.model.tasks import Task
from treadle.model.usage import SETTLED, Usage, micros
from treadle.settings import Settings

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
        document = json.loads(text)
        prices = {name: Price(float(both[0]), float(both[1])) for name, both in document.items()}
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, OverflowError, RecursionError):
        raise InvalidInput('TREADLE_LLM_PRICES must be JSON like {"some-model": [3, 15]}: dollars per million tokens.') from None
    if any(not math.isfinite(amount) or amount < 0 for price in prices.values() for amount in (price.input, price.output)):
        raise InvalidInput("TREADLE_LLM_PRICES has a price that is negative or not a number.")
    return prices


def most_tokens(request: Mapping[str, object]) -> int:
    """Return an upper bound for the tokens of the request, without a call. A token is at least one byte of text, and usually
    about four."""
    return len(json.dumps(request, ensure_ascii=False, default=str).encode("utf-8", "replace")) + OVERHEAD_TOKENS


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The usage of one request. Tokens of the prompt cache are not among the input tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0

    @classmethod
    def of_total(cls, total: int, output: int, cache_write: int, cache_read: int) -> TokenCounts:
        """Return the counts of a service whose input tokens include those of the prompt cache."""
        return cls(max(total - cache_write - cache_read, 0), output, cache_write, cache_read)


class TaskMeter:
    """The requests of one attempt at a task of a run, numbered from 1."""

    def __init__(
        self, store: Store, new_id: Callable[[], str], prices: Prices, task: Task, default_limit: int | None = None
    ) -> None:
        self._store = store
        self._new_id = new_id
        self._prices = prices
        self._task = task
        self._default_limit = default_limit
        self._number = 0

    async def reserve(self, model: str, request: dict[str, Any]) -> Usage | None:
        """Reserve the maximum cost of the request, or raise `budget_exhausted`; durable when this returns."""
        price = self._prices.find(model)
        if price is None and await self.limit() is not None:
            raise LLMError(
                "price_unknown", f"The run has a budget, but the price of {model} is unknown: set TREADLE_LLM_PRICES for it."
            )
        amount = (price or Price(0, 0)).cost(most_tokens(request), int(request["max_tokens"]))
        while True:
            self._number += 1
            reserved = Usage(
                id=self._new_id(),
                run_id=self._task.run_id or self._task.root_id,
                step_id=self._task.step_id,
                task_id=self._task.id,
                attempt=self._task.attempt,
                request_no=self._number,
                model=model,
                reserved_micros=amount,
            )
            answer = await self._store.usage.reserve(reserved, self._default_limit)
            if answer.usage is None:
                limit, spent = answer.budget.limit_micros or 0, answer.budget.committed_micros
                raise LLMError(
                    "budget_exhausted",
                    f"The run may spend {_dollars(limit)} and has spent or reserved {_dollars(spent)}; "
                    f"the next request could cost {_dollars(amount)}.",
                )
            if answer.usage.state != SETTLED:  # a settled one was sent before this worker was interrupted: use the next number
                return answer.usage

    async def settle(self, usage: Usage | None, tokens: TokenCounts) -> None:
        """Record the actual cost; idempotent."""
        if usage is not None:
            counts = asdict(tokens)
            cost = (self._prices.find(usage.model) or Price(0, 0)).cost(**counts)
            await self._store.usage.settle(msgspec.structs.replace(usage, cost_micros=cost, **counts))

    async def give_back(self, usage: Usage | None) -> None:
        """Release the reservation: the service rejected the request."""
        if usage is not None:
            await self._store.usage.settle(msgspec.structs.replace(usage, cost_micros=0))

    async def limit(self) -> int | None:
        """Return the budget of the run in millionths of a dollar; None if it has none."""
        budget = await self._store.usage.find_budget(self._task.run_id or self._task.root_id)
        return self._default_limit if budget is None else budget.limit_micros


class NoMeter:
    """Counts usage for handlers outside runs, without a budget."""

    def __init__(self) -> None:
        self.requests = 0
        self.input_tokens = 0
        self.output_tokens = 0

    async def reserve(self, model: str, request: dict[str, Any]) -> Usage | None:
        """Do nothing."""
        return None

    async def settle(self, usage: Usage | None, tokens: TokenCounts) -> None:
        """Add the usage."""
        self.requests += 1
        self.input_tokens += tokens.input_tokens
        self.output_tokens += tokens.output_tokens

    async def give_back(self, usage: Usage | None) -> None:
        """Do nothing."""


Meter = TaskMeter | NoMeter
"""Pays for requests."""


def meter_of_task(settings: Settings, store: Store, ids: Ids, task: Task) -> TaskMeter:
    """Return the meter of an attempt at a task, with the prices and the default budget of the settings."""
    limit = None if settings.llm_budget is None else micros(settings.llm_budget, "TREADLE_LLM_BUDGET")
    return TaskMeter(store, ids.new_id, Prices(parse_prices(settings.llm_prices)), task, limit)


def _dollars(micros: int) -> str:
    return f"${micros / 1_000_000:.6f}".rstrip("0").rstrip(".")
