"""Retry policies of agents' tools that select exceptions, and the number of calls that each allows."""

from __future__ import annotations

from collections.abc import Callable

from treadle import RetryPolicy


class Busy(ConnectionError):
    """The failure of a tool, which succeeds when it is called again."""


def policy(
    on: tuple[type, ...] = (), never: tuple[type, ...] = (), should_retry: Callable[[Exception], bool] | None = None
) -> RetryPolicy:
    return RetryPolicy.of(2, first=0, on=on, never=never, should_retry=should_retry)


POLICIES = {
    "any": (policy(), 2),
    "on its class": (policy(on=(Busy,)), 2),
    "on a base class": (policy(on=(OSError,)), 2),
    "on another class": (policy(on=(TimeoutError,)), 1),
    "never its base class": (policy(never=(ConnectionError,)), 1),
    "never another class": (policy(never=(ValueError,)), 2),
    "should_retry": (policy(should_retry=lambda error: isinstance(error, Busy) and "full" in str(error)), 2),
    "should_retry refuses": (policy(should_retry=lambda error: False), 1),
}


class Tool:
    """The code of a tool: it fails when it is called first."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self) -> str:
        self.calls += 1
        if self.calls == 1:
            raise Busy("full")
        return "tea"
