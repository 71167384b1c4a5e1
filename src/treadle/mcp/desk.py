"""What a tool is given: the contract as its caller may use it, and a patience that ends when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from treadle.api.face import Api
from treadle.model.access import Scope

T = TypeVar("T")

LONGEST_WAIT = 50.0
"""Seconds that a tool may wait for something to happen: many hosts give a call no more than a minute."""


@dataclass(frozen=True, slots=True)
class Desk:
    """One for each request."""

    api: Api
    scopes: frozenset[Scope] | None = None
    """All that the caller may do; None where only a server far away knows that."""
    closing: asyncio.Event | None = None
    """Set when the server stops."""

    def may(self, scope: Scope) -> bool:
        """Whether it makes sense to offer what needs that scope; whether it is allowed is decided by the contract."""
        return self.scopes is None or scope in self.scopes

    async def patiently(self, call: Callable[[float], Awaitable[T]], wait_for: float) -> T:
        """What `call(wait_for)` comes to, or `call(0)` if the server stops meanwhile. The call must only look."""
        wait_for = min(max(wait_for, 0.0), LONGEST_WAIT)
        if self.closing is None or wait_for == 0:
            return await call(wait_for)
        calling = asyncio.ensure_future(call(wait_for))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({calling, closing}, return_when=asyncio.FIRST_COMPLETED)
            if calling.done():
                return calling.result()
        finally:
            for each in (calling, closing):
                each.cancel()
            await asyncio.wait({calling, closing})
        return await call(0)
