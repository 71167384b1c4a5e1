"""Defects that met where two features meet, planted again to see whether the pairs find them.

Those with a number are defects that a release candidate had, by their numbers in the report; `FOUND_BY` names a pair that must find
each.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.pairs import story

from treadle.agents.connection import Connection
from treadle.engine import worker_host
from treadle.kernel import lists
from treadle.kernel.effects.decide import Begin, EffectKeys
from treadle.kernel.functions import operations
from treadle.kernel.queue import service as queue
from treadle.kernel.runs.flows import Flows
from treadle.model.outcomes import Released, Waiting
from treadle.model.states import TaskState
from treadle.model.values import decode
from treadle.stores import step_results
from treadle.workers.functions.driver import Driver
from treadle.workers.lease_renewer import LeaseRenewer
from treadle.workers.signatures import Signature
from treadle.workers.specialists import Specialists

Defect = Callable[[pytest.MonkeyPatch], None]


def processes_of_other_containers_look_dead(patch: pytest.MonkeyPatch) -> None:
    """1: the pid of another container is looked up in this one."""
    patch.setattr(story, "has_ended", lambda identity, kernel: identity.partition(" ")[0] != kernel)


def workers_claim_jobs_of_every_scope(patch: pytest.MonkeyPatch) -> None:
    """2, 3: they put jobs of other scopes back for half a minute, and polls for no time at all."""

    async def unserved(self: Specialists, ctx: Any, external_jobs: Any) -> Any:
        return Waiting(30_000) if ctx.task.state == TaskState.PENDING else Released("its scope is not served here")

    patch.setattr(Specialists, "scopes", None)
    patch.setattr(Specialists, "_unserved", unserved)


def progress_deadlines_are_checked_once_a_second(patch: pytest.MonkeyPatch) -> None:
    """6: a shorter one passes unnoticed, or is missed by a handler that reports its progress in time."""
    patch.setattr(LeaseRenewer, "tick_every", property(lambda self: min(1.0, self._lease / 4)))


def results_of_another_type_fail_the_step(patch: pytest.MonkeyPatch) -> None:
    """7: also in flows that are not strict, and although nothing reads the value."""
    real = Flows.compile_aside

    async def compile_aside(self: Flows, sources: Any, *, strict: bool = False) -> Any:
        return await real(self, sources, strict=True)

    patch.setattr(Flows, "compile_aside", compile_aside)


def collected_failures_are_not_retried(patch: pytest.MonkeyPatch) -> None:
    """9: a retry of the run reads the failures again."""
    patch.setattr(operations, "failed_beside", lambda failed, recorded: [])


def a_forgotten_await_passes(patch: pytest.MonkeyPatch) -> None:
    """10: the run completes without the call."""

    def find_forgotten(self: Driver) -> None:
        for operation, *_ in self._unawaited.values():
            getattr(operation, "close", lambda: None)()

    patch.setattr(Driver, "find_forgotten", find_forgotten)


def each_attempt_has_an_idempotency_key_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """11: a service that deduplicates charges once per attempt."""

    def keys(self: Begin) -> EffectKeys:
        key = self.effect.key(self.attempt)
        return EffectKeys(self.effect.action, key, key)

    patch.setattr(Begin, "keys", property(keys))


def a_single_parameter_takes_the_whole_payload(patch: pytest.MonkeyPatch) -> None:
    """12: whatever its name is."""
    real = Signature.load

    def load(self: Signature, payload: Any, context: Any) -> Any:
        arguments, named = real(self, payload, context)
        whole = decode(payload) if isinstance(payload, str) else payload
        return arguments, named | dict.fromkeys(self.names, whole) if self.names and len(self.names) == 1 else named

    patch.setattr(Signature, "load", load)


def pauses_and_limits_leave_no_trace(patch: pytest.MonkeyPatch) -> None:
    """16: the log does not name the operator."""
    patch.setattr(lists, "operation_entry", lambda *arguments, **options: ())


# possible where features meet that were added to the table later


def agents_do_not_renew_their_claims(patch: pytest.MonkeyPatch) -> None:
    """5: another agent repeats work that takes longer than a lease."""
    patch.setattr(Connection, "_renew", lambda self, tasks, lease_for: asyncio.sleep(0))


def only_the_first_limit_key_counts(patch: pytest.MonkeyPatch) -> None:
    """A task with several keys exceeds the limits of the others."""
    real = queue.limit_fields
    patch.setattr(queue, "limit_fields", lambda limits: real(dict.fromkeys(sorted(limits)[:1])))


def transactional_steps_are_recorded_by_attempt(patch: pytest.MonkeyPatch) -> None:
    """A crash between the user's commit and ours repeats the transaction."""
    real, uses = step_results.record_step, itertools.count()

    def record_step(source: Any, step: Any, call: Any, wait: Any) -> str:
        return real(source, {**step, "step_id": f"{step['step_id']}-{next(uses)}"}, call, wait)

    patch.setattr(worker_host, "record_step", record_step)


FOUND_BY: dict[Defect, str] = {
    processes_of_other_containers_look_dead: "containers and commit lost",
    workers_claim_jobs_of_every_scope: "scopes and worker killed",
    progress_deadlines_are_checked_once_a_second: "progress deadline and commit lost",
    results_of_another_type_fail_the_step: "workflow and typed result",
    collected_failures_are_not_retried: "function and collected failures",
    a_forgotten_await_passes: "function and forgotten await",
    each_attempt_has_an_idempotency_key_of_its_own: "task and worker killed",
    a_single_parameter_takes_the_whole_payload: "task and one named parameter",
    pauses_and_limits_leave_no_trace: "task and paused list",
    agents_do_not_renew_their_claims: "task and poll_once",
    only_the_first_limit_key_counts: "tags and several limit keys",
    transactional_steps_are_recorded_by_attempt: "transactional step and worker killed",
}
