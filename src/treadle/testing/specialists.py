"""A specialist without a service: a test scripts the results of its polls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle, Production
from treadle.workers.context import Context
from treadle.workers.specialists import Specialist

Said = Production | dict[str, Any] | ExternalProductionHandle | ExternalProductionFailure | BaseException | object


class StubExternalSpecialist(Specialist):
    """Returns a handle from `start`, and the given outcomes from successive polls; exceptions are raised.

    `started` has the payload and token of each start, `polled` the job of each poll. Productions are appended, as in a real
    specialist. After the last outcome, a poll raises. A test may change `outcomes` and `start_outcome`.
    """

    def __init__(
        self,
        poll_outcomes: Sequence[Said] = (),
        *,
        external_job_id: str = "job-1",
        initial_polling_interval_seconds: float = 1,
        start_outcome: Said | None = None,
    ) -> None:
        self.outcomes = list(poll_outcomes)
        self.start_outcome = start_outcome or ExternalProductionHandle(external_job_id, initial_polling_interval_seconds)
        self.started: list[tuple[dict[str, Any], str | None]] = []
        self.polled: list[str] = []
        self.canceled: list[str] = []

    async def start(self, payload: dict[str, Any], ctx: Context) -> Any:
        """Return the handle, or the scripted outcome."""
        self.started.append((payload, ctx.dispatch_token))
        return self._come_to(self.start_outcome, ctx)

    async def poll(self, external_job_id: str, ctx: Context) -> Any:
        """Return the next outcome."""
        self.polled.append(external_job_id)
        if not self.outcomes:
            raise LookupError("The stub has no more outcomes.")
        return self._come_to(self.outcomes.pop(0), ctx)

    async def cancel(self, external_job_id: str) -> None:
        """Record the cancellation."""
        self.canceled.append(external_job_id)

    @staticmethod
    def _come_to(outcome: Said, ctx: Context) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return ctx.append_produced(outcome) if isinstance(outcome, Production) else outcome


StubExternalRenderSpecialist = StubExternalSpecialist
