"""How long a request waits and when it is given up, with a client that fails by a script and a clock that does not transition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anthropic
import httpx2
import pytest

from treadle.llm.config import LLMConfig
from treadle.llm.exchange import Exchange, SendFailed

REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1/messages")


def refused(status: int, **headers: str) -> Exception:
    response = httpx2.Response(status, headers=headers, request=REQUEST)
    kinds = {429: anthropic.RateLimitError, 400: anthropic.BadRequestError}
    return kinds.get(status, anthropic.InternalServerError)("no", response=response, body={"error": {"message": "no"}})


class Failing:
    """A client whose calls raise what they are told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.messages = SimpleNamespace(create=self.create)

    async def create(self, **_: Any) -> Any:
        raise self.errors.pop(0)


async def waits(*errors: Exception, **options: Any) -> tuple[list[float], SendFailed]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    exchange = Exchange(Failing(*errors), LLMConfig(model="m", **options), sleep, lambda: 0.0)
    with pytest.raises(SendFailed) as raised:
        await exchange.send({})
    return slept, raised.value


async def test_waits_double_up_to_a_limit_and_sends_are_counted():
    slept, error = await waits(*[refused(529)] * 7, max_sends=7)
    assert slept == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert (error.error_code, error.unknown) == ("llm_overloaded", False)


async def test_retry_after_is_obeyed_in_both_forms_and_odd_ones_are_not_understood():
    errors = [
        refused(429, **{"retry-after": "7"}),
        refused(429, **{"retry-after-ms": "1500"}),
        refused(503, **{"retry-after": "soon"}),
    ]
    slept, error = await waits(*errors, refused(400))
    assert slept == [7.0, 1.5, 2.0]
    assert error.error_code == "llm_rejected"


async def test_callers_time_out_before_the_retries_end():
    slept, error = await waits(*[refused(429, **{"retry-after": "40"})] * 6)
    assert slept == [40.0, 40.0, 40.0]
    assert "asks for a delay of 40 s" in str(error)


async def test_timeouts_and_broken_connections_may_have_been_billed():
    for error in (anthropic.APITimeoutError(REQUEST), anthropic.APIConnectionError(request=REQUEST), httpx2.ReadTimeout("x")):
        _, failed = await waits(error, refused(400))
        assert (failed.error_code, failed.unknown) == ("llm_rejected", True)


async def test_an_unexpected_client_error_propagates():
    exchange = Exchange(Failing(RuntimeError("a bug")), LLMConfig(model="m"), lambda _: None, lambda: 0.0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="a bug"):
        await exchange.send({})
