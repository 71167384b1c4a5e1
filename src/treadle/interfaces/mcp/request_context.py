"""The context of a request: the contract for its caller, and waiting that ends when the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from treadle.api.facade import Api
from treadle.model.access import Access, Scope
from treadle.model.errors import TreadleError

T = TypeVar("T")

MAX_WAIT = 50.0
"""Maximum seconds that a tool waits: many hosts limit a call to one minute."""


_EVERY = 2.0
"""Seconds between progress notifications."""


Report = Callable[[float, float | None, str | None], Awaitable[None]]
"""Sends a progress notification to the client, if it asked for them: the progress, the total and a message."""

Patience = Callable[[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs the first call; if the server stops meanwhile, returns the result of the second one. Refuses if too many callers wait."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of one request."""

    api: Api
    access: Access | None = None
    """The caller's access; None if only a remote server knows it."""
    patience: Patience | None = None
    """How the server lets its callers wait; None: without limit."""
    report: Report | None = None
    """Reports the progress of a wait."""
    toolsets: frozenset[str] = frozenset()
    """Toolsets that are listed; empty: the default ones."""
    start_worker: Callable[[str], Awaitable[bool]] | None = None
    """Starts a worker for a task list in this process and returns whether it was needed; None: this process cannot."""

    def may(self, scope: Scope) -> bool:
        """Whether the caller has the scope, or only a remote server knows."""
        return self.access is None or self.access.may(scope)

    async def patiently(
        self, call: Callable[[float], Awaitable[T]], wait_for: float, describe: Callable[[], Awaitable[str]] | None = None
    ) -> T:
        """Return `call(wait_for)`, or `call(0)` if the server stops meanwhile. The call must be read-only.

        While it waits, the client receives progress notifications with the text of `describe`. If the client cancels, only the wait
        ends.
        """
        wait_for = min(max(wait_for, 0.0), MAX_WAIT)
        if wait_for == 0:
            return await call(wait_for)
        reports = None if self.report is None else asyncio.create_task(self._reports(self.report, wait_for, describe))
        try:
            if self.patience is None:
                return await call(wait_for)
            result: T = await self.patience(partial(call, wait_for), partial(call, 0.0))
            return result
        finally:
            if reports is not None:
                reports.cancel()
                await asyncio.wait({reports})

    async def _reports(self, report: Report, wait_for: float, describe: Callable[[], Awaitable[str]] | None) -> None:
        waited = 0.0
        while True:
            try:
                await report(waited, wait_for, None if describe is None else await describe())
            except TreadleError:  # the call itself reports it
                return
            await asyncio.sleep(_EVERY)
            waited += _EVERY
