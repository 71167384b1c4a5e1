"""Bugs in claims, commits, effects, time and limits."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.simulation.bugs.bug import Plants, rewrite
from tests.simulation.faults import Fault

from treadle.kernel.effects.decide import Begin, EffectKeys
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.waker import Waker
from treadle.kernel.recovery import RecoveringServer, Recovery
from treadle.kernel.runs import advancer
from treadle.kernel.schedules import fire as firing
from treadle.kernel.schedules.decide import Due
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.queries import Woken
from treadle.kernel.store.records import PutOutcome
from treadle.kernel.store.units import DONE, RunGuard, Unit, UnitAnswer
from treadle.model.tasks import Claim, Server
from treadle.model.values import Json
from treadle.stores import commit
from treadle.stores.rules import units
from treadle.stores.sqlite import SqliteStore
from treadle.stores.sqlite.tasks import SqliteTasks
from treadle.workers.effects import AttemptEffects


def settling_needs_no_claim(patch: pytest.MonkeyPatch) -> None:
    """A former holder of the task can settle or requeue it."""
    guard = "where t.claim_version = r.value ->> 1 and t.owner_id is r.value ->> 2"
    rewrite(patch, "finish", guard, "where t.claim_version >= r.value ->> 1")
    patch.setattr(units, "matches", lambda guard, row: row.claim_version >= getattr(guard, "version", 0))


def checkpoints_need_no_claim(patch: pytest.MonkeyPatch) -> None:
    """A former holder of the task can write checkpoints, as long as it does not settle the task."""
    rewrite(patch, "put_checkpoints", "where t.claim_version = r.value ->> 2 and t.owner_id = r.value ->> 3", "where true")


def leases_never_run_out(patch: pytest.MonkeyPatch) -> None:
    """A dead worker holds its tasks forever."""
    real = SqliteTasks.wake

    async def wake(self: SqliteTasks, limit: int, *, expire_leases: bool = True, find_ready: bool = False) -> Woken:
        return replace(await real(self, limit, expire_leases=False, find_ready=find_ready), overdue=False)

    async def expire_leases_of(self: SqliteTasks, owner_ids: Sequence[str]) -> None:
        return None

    patch.setattr(SqliteTasks, "wake", wake)
    patch.setattr(SqliteTasks, "expire_leases_of", expire_leases_of)


def results_are_left_and_nobody_looks(patch: pytest.MonkeyPatch) -> None:
    """A result that could not be taken in at once goes into the inbox, without the task that takes it in."""
    real = advancer.left_behind

    def left_behind(*arguments: Any) -> Any:
        _, rows = real(*arguments)
        return (), rows

    patch.setattr(advancer, "left_behind", left_behind)


def messages_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    """A function is told that what it waits for is there, and sleeps on."""
    rewrite(patch, "put_messages", "set wake_at = null,", "set wake_at = wake_at,")


def effects_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """The result of an effect reaches the handler but not the store."""

    async def made(self: AttemptEffects, begin: Begin, response: Json) -> Json:
        return response

    patch.setattr(AttemptEffects, "_record_success", made)


def effects_begin_unannounced(patch: pytest.MonkeyPatch) -> None:
    """Nothing is stored before an effect, nor that it is in doubt."""
    real = AttemptEffects._commit

    async def commit_it(self: AttemptEffects, unit: Unit) -> None:
        if not any(isinstance(row, PutOutcome) and row.outcome.status == "unknown" for row in unit.rows):
            await real(self, unit)

    patch.setattr(AttemptEffects, "_commit", commit_it)


def dedupe_keys_change(patch: pytest.MonkeyPatch) -> None:
    """The key for services that deduplicate is another one for each attempt."""

    def keys(self: Begin) -> EffectKeys:
        key = self.effect.key(self.attempt)
        return EffectKeys(self.effect.action, key, key)

    patch.setattr(Begin, "keys", property(keys))


def runs_advance_at_any_version(patch: pytest.MonkeyPatch) -> None:
    """Advancing a run ignores its version, so concurrent advances overwrite one another."""
    real = Committer.submit

    def submit(self: Committer, unit: Unit, patience: float | None = None) -> Awaitable[UnitAnswer]:
        if unit.run is not None and unit.guard is not None:
            unit = msgspec.structs.replace(unit, run=RunGuard(unit.run.run_id, None))
        return real(self, unit, patience)

    patch.setattr(Committer, "submit", submit)


def keys_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An idempotency key stands for nothing."""
    patch.setattr(commit, "has_keys", lambda units: False)


def intents_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A job is submitted before anything says that it will be."""

    async def keep(self: ExternalJobs, token: Claim, kept: Any) -> None:
        return None

    patch.setattr(ExternalJobs, "_keep", keep)


def starting_takes_what_others_hold(patch: pytest.MonkeyPatch) -> None:
    """A start-up frees the work of all other servers, dead or not."""

    def earlier(servers: Sequence[Server], place: RecoveringServer) -> list[Server]:
        return [server for server in servers if server.state not in ("stopped", "error") and server.name != place.name]

    patch.setattr(Recovery, "_earlier", staticmethod(earlier))


def a_unit_of_a_batch_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """The second unit of a commit is answered, and not done."""
    real = SqliteStore.commit

    async def commit_some(self: SqliteStore, units: Sequence[Unit]) -> list[UnitAnswer]:
        if len(units) < 2:
            return await real(self, units)
        return [*await real(self, units[:1]), DONE, *await real(self, units[2:])]

    patch.setattr(SqliteStore, "commit", commit_some)


def nobody_wakes_what_sleeps(patch: pytest.MonkeyPatch) -> None:
    """The waker looks once, and then sleeps until it is told."""

    async def rest(self: Waker) -> None:
        await self._sooner.wait()
        self._sooner.clear()

    patch.setattr(Waker, "_rest", rest)


def limits_admit_one_more(patch: pytest.MonkeyPatch) -> None:
    """One more than the limit."""
    rewrite(patch, "admit", "coalesce(m.max_running - (", "coalesce(m.max_running + 1 - (")


def a_late_tick_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Of the ticks that are made up for, the first does not fire."""
    real = firing.decide

    def decide(*arguments: Any, **more: Any) -> Due:
        due = real(*arguments, **more)
        started = due.admission.start
        return replace(due, admission=replace(due.admission, start=started[1:])) if len(started) > 1 else due

    patch.setattr(firing, "decide", decide)


PLANTS: Plants = {
    settling_needs_no_claim: ((Fault.STALL,), ("work",), ()),
    checkpoints_need_no_claim: ((Fault.STALL,), ("order",), ()),
    leases_never_run_out: ((Fault.CRASH_AFTER,), (), ()),
    results_are_left_and_nobody_looks: ((Fault.REFUSED,), ("flow",), ()),
    messages_wake_nobody: ((), ("order",), ()),
    effects_are_not_recorded: ((Fault.CRASH_OUTSIDE,), ("charge",), ()),
    effects_begin_unannounced: ((Fault.OUTSIDE,), ("charge",), ()),
    dedupe_keys_change: ((Fault.OUTSIDE,), ("charge",), ()),
    runs_advance_at_any_version: ((Fault.SLOW,), ("flow", "order"), ()),
    keys_are_forgotten: ((Fault.CRASH_AT, Fault.CRASH_AFTER), ("work",), ()),
    intents_are_not_stored: ((Fault.CRASH_OUTSIDE,), ("print_it",), ()),
    starting_takes_what_others_hold: ((Fault.CRASH_AFTER,), (), ()),
    a_unit_of_a_batch_is_dropped: ((), ("flow",), ()),
    nobody_wakes_what_sleeps: ((), ("nap",), ()),
    limits_admit_one_more: ((), ("limited",), ()),
    a_late_tick_is_left_out: ((Fault.STALL,), ("schedule",), ()),
}
