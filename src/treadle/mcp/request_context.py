"""The context of a request: the contract for its caller, and waiting that ends when the server stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from treadle.api.facade import Api
from treadle.model.access import Scope

T = TypeVar("T")

LONGEST_WAIT = 50.0
"""Maximum seconds that a tool waits: many hosts limit a call to one minute."""


class Patience(Protocol):
    """How a server lets its callers wait."""

    async def __call__(self, call: Callable[[], Awaitable[T]], at_once: Callable[[], Awaitable[T]], /) -> T:
        """Run the call; if the server stops, return the result of `at_once` instead. Refuses if too many callers wait."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of one request."""

    api: Api
    scopes: frozenset[Scope] | None = None
    """The caller's scopes; None if only a remote server knows them."""
    patience: Patience | None = None
    """How the server lets its callers wait; None: without limit."""

    def may(self, scope: Scope) -> bool:
        """Whether to offer tools of that scope; the contract enforces permissions."""
        return self.scopes is None or scope in self.scopes

    async def patiently(self, call: Callable[[float], Awaitable[T]], wait_for: float) -> T:
        """Return `call(wait_for)`, or `call(0)` if the server stops meanwhile. The call must be read-only."""
        wait_for = min(max(wait_for, 0.0), LONGEST_WAIT)
        if self.patience is None or wait_for == 0:
            return await call(wait_for)
        return await self.patience(partial(call, wait_for), partial(call, 0.0))
