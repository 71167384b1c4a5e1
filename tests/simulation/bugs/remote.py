"""Bugs in what comes from outside: words of workers, signals, requests, callbacks, issues, files."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation.bugs.bug import Plants
from tests.simulation.faults import Fault

from treadle.api.external_jobs import ExternalJob
from treadle.dispatch import coordinator
from treadle.dispatch.held_jobs import HeldJobs
from treadle.kernel.access.requests import RequestDocument, Requests
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.functions.service import Functions
from treadle.kernel.remote_workers.claim_waiters import ClaimWaiters
from treadle.kernel.remote_workers.held_work import HeldWork
from treadle.kernel.store.records import PutItems
from treadle.kernel.store.units import RunGuard, Unit
from treadle.kernel.watchers.scan import WatcherScanner
from treadle.model.outcomes import Outcome
from treadle.model.tasks import Claim
from treadle.workers.functions import driver


def late_words_count(patch: pytest.MonkeyPatch) -> None:
    """A report on a lost claim is accepted as if the current holder had sent it."""

    async def end(self: HeldWork, claim: Claim, outcome: Outcome, *transitions: str) -> str | None:
        task = await self._store.tasks.find(claim.task_id)
        if task is None or task.finished:
            return None
        return await self._finish(self._settle(task, task.claim, outcome, *transitions))

    patch.setattr(HeldWork, "_end", end)


def claim_waiters_hear_nothing(patch: pytest.MonkeyPatch) -> None:
    """Claims that wait look once, and then never again."""
    patch.setattr(ClaimWaiters, "on_ready", lambda self, queue_ids: None)


def what_is_seen_is_stored_before_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """The snapshot of a scan is committed before the work that it starts, not with it."""
    real = WatcherScanner._write

    async def write(self: WatcherScanner, look: Any, chunk: Any) -> None:
        if chunk.puts:
            await self.commit(Unit(look.task.claim, rows=(PutItems(look.record.id, tuple(chunk.puts)),)))
        await real(self, look, chunk)

    patch.setattr(WatcherScanner, "_write", write)


def keys_of_signals_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A signal that is sent again is another one."""
    real = Functions.signal

    async def signal(self: Functions, *said: Any, idempotency_key: str | None = None, **more: Any) -> bool:
        return await real(self, *said, **more)

    patch.setattr(Functions, "signal", signal)


def functions_park_whatever_has_come(patch: pytest.MonkeyPatch) -> None:
    """A function goes to sleep without looking whether something came while its code executed."""
    patch.setattr(driver, "RunGuard", lambda run_id, version: RunGuard(run_id, None))


def answers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A request that has an answer is carried out again."""
    patch.setattr(Requests, "load", lambda self, record: RequestDocument())


def callbacks_are_acknowledged_and_dropped(patch: pytest.MonkeyPatch) -> None:
    """A service hears that all is well, and nothing is."""

    async def resolve(self: ExternalJobs, callback_token: str, outcome: Any, *, actor: str = "callback") -> ExternalJob:
        return await self.get((await self._job_of(await self._called_back(callback_token))).stored.id)

    patch.setattr(ExternalJobs, "resolve", resolve)


def agents_forget_what_they_lost(patch: pytest.MonkeyPatch) -> None:
    """An agent that lost a job ends it all the same, whoever has it now."""
    patch.setattr(HeldJobs, "lose", HeldJobs.drop)
    patch.setattr(coordinator, "check_worker", lambda task, worker_id, actor: None)


PLANTS: Plants = {
    late_words_count: ((Fault.STALL,), ("far",), ()),
    claim_waiters_hear_nothing: ((), ("far",), ()),
    what_is_seen_is_stored_before_it_is_told: ((Fault.CRASH_AFTER, Fault.CRASH_AT), ("watch",), ()),
    keys_of_signals_are_forgotten: ((), ("collect",), ()),
    functions_park_whatever_has_come: ((), ("collect",), ()),
    answers_are_forgotten: ((), ("request",), ()),
    callbacks_are_acknowledged_and_dropped: ((), ("call_back",), ()),
    agents_forget_what_they_lost: ((Fault.STALL,), ("issue",), ()),
}
