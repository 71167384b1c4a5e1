"""The keys of an effect: `idempotency_key` is the same for every attempt, `attempt_key` is the one of the outcome record (D78)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle import Engine, RetryPolicy
from treadle.model.errors import EffectFailed
from treadle.testing import Environment

RETRY = RetryPolicy.of(5, first=1)
ERRORS: dict[str, Callable[[], BaseException]] = {
    "unknown": lambda: TimeoutError("no answer"),
    "failed": lambda: EffectFailed("declined"),
}
KINDS = ("handler", "sync handler", "function", "function that catches")


class Service:
    """Notes the keys of each call, and breaks in the first two."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error
        self.keys: list[tuple[str, str, str]] = []

    def call(self, ctx: Any) -> str:
        self.keys.append((ctx.idempotency_key, ctx.dedupe_key, ctx.attempt_key))
        if len(self.keys) < 3:
            raise self.error()
        return "paid"


def register(engine: Engine, kind: str, service: Service) -> None:
    if kind == "handler":

        @engine.handler("pay", retry=RETRY)
        async def pay(payload: Any, ctx: Any) -> dict[str, Any]:
            return {"paid": await ctx.effect("charge", lambda: service.call(ctx), payload)}

    elif kind == "sync handler":

        @engine.handler("pay", retry=RETRY)
        def pay_sync(payload: Any, ctx: Any) -> dict[str, Any]:
            return {"paid": ctx.effect_blocking("charge", lambda: service.call(ctx), payload)}

    elif kind == "function":

        @engine.function("pay")
        async def pay_in_steps(payload: Any, ctx: Any) -> Any:
            return await ctx.effect("charge", lambda: service.call(ctx), payload, retry=RETRY)

    else:

        @engine.function("pay")
        async def pay_again(payload: Any, ctx: Any) -> Any:
            while True:
                try:
                    return await ctx.effect("charge", lambda: service.call(ctx), payload)
                except Exception:
                    await ctx.sleep(1)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_attempt_has_one_idempotency_key_and_a_recorded_attempt_key(kind: str, error: str) -> None:
    engine, service = Engine("memory://"), Service(ERRORS[error])
    register(engine, kind, service)
    async with Environment(engine) as env:
        is_function = kind.startswith("function")
        work = await (engine.start_function if is_function else engine.enqueue)("pay", {"amount": 5})
        await env.result(work)
        attempt_keys = [key for _, _, key in service.keys]
        rows = {row.idempotency_key: row.status for row in await engine.kernel.store.records.find_outcomes(attempt_keys)}
    if (kind, error) != ("function that catches", "failed"):  # another effect, as it is known that the first did not happen
        assert len({key for key, _, _ in service.keys}) == 1
    assert all(key == other for key, other, _ in service.keys)
    assert [rows[key] for key in attempt_keys] == [error, error, "succeeded"]
