"""Language-model spending of a run: one row per request, inserted before the call and completed after it."""

from __future__ import annotations

import math

import msgspec

from treadle.model.errors import InvalidInput
from treadle.model.values import shown

RESERVED, SETTLED = "reserved", "settled"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model: the reserved amount while `reserved`, the actual cost once `settled`.

    The key is (task, attempt, request number). Money is in millionths of a dollar.
    """

    id: str
    run_id: str
    step_id: str | None
    task_id: str
    attempt: int
    request_no: int
    model: str
    state: str = RESERVED
    reserved_micros: int = 0
    cost_micros: int = 0
    """The amount that counts against the budget: the reservation, then the actual cost."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    interrupted: int = 0
    """Number of workers lost between reserving and settling; the next attempt took over the reservation."""
    at: int = 0


class Budget(msgspec.Struct, frozen=True):
    """The spending limit of a run (None: no limit), and the amount spent or reserved so far."""

    limit_micros: int | None
    committed_micros: int = 0


class Reservation(msgspec.Struct, frozen=True):
    """The response to a reservation: the row, or None if the budget does not allow it; and the current budget."""

    usage: Usage | None
    budget: Budget


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens and their cost in millionths of a dollar."""

    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_micros: int


class UsageSums(TokenCounts, frozen=True):
    """Sums over model requests; money in millionths of a dollar."""

    requests: int
    unsettled: int
    """Requests whose end was not recorded; counted with their full reservation."""


def total(rows: list[Usage]) -> UsageSums:
    """Sum the rows."""
    return UsageSums(
        requests=len(rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cache_write_tokens=sum(row.cache_write_tokens for row in rows),
        cache_read_tokens=sum(row.cache_read_tokens for row in rows),
        cost_micros=sum(row.cost_micros for row in rows),
        unsettled=sum(row.state == RESERVED for row in rows),
    )


_MAX_DOLLARS = 1_000_000_000


def micros(dollars: float, what: str = "budget") -> int:
    """Convert dollars to millionths; raise `InvalidInput` for an invalid amount."""
    if isinstance(dollars, bool) or not isinstance(dollars, int | float) or not 0 <= dollars < math.inf:
        raise InvalidInput(f"{what} must be an amount in dollars, zero or more, not {shown(dollars)}.")
    if dollars > _MAX_DOLLARS:
        raise InvalidInput(f"{what} must be at most {_MAX_DOLLARS} dollars, not {shown(dollars)}.")
    return round(dollars * 1_000_000)
