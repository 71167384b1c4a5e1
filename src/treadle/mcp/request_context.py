"""What a tool is given: the contract as its caller may use it, and a patience that ends when the server stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from treadle.api.facade import Api
from treadle.model.access import Scope

T = TypeVar("T")

LONGEST_WAIT = 50.0
"""Seconds that a tool may wait for something to happen: many hosts give a call no more than a minute."""


class Patience(Protocol):
    """How a server lets its callers wait."""

    async def __call__(self, call: Callable[[], Awaitable[T]], at_once: Callable[[], Awaitable[T]], /) -> T:
        """What the call comes to; when the server stops, what the same comes to `at_once`. Refuses where too many wait."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One for each request."""

    api: Api
    scopes: frozenset[Scope] | None = None
    """All that the caller may do; None where only a server far away knows that."""
    patience: Patience | None = None
    """How a server lets its callers wait; None: as long as they want to."""

    def may(self, scope: Scope) -> bool:
        """Whether it makes sense to offer what needs that scope; whether it is allowed is decided by the contract."""
        return self.scopes is None or scope in self.scopes

    async def patiently(self, call: Callable[[float], Awaitable[T]], wait_for: float) -> T:
        """What `call(wait_for)` comes to, or `call(0)` if the server stops meanwhile. The call must only look."""
        wait_for = min(max(wait_for, 0.0), LONGEST_WAIT)
        if self.patience is None or wait_for == 0:
            return await call(wait_for)
        return await self.patience(partial(call, wait_for), partial(call, 0.0))
