"""Operations on a held claim, identified only by (worker, task, claim version).

Two requests about a claim may reach different processes. So each request reads the task, and the claim fences it; only the
completion of a task that this process handed out does without the read (`HandedOut`). A repeated request gets the same answer as
the first; a request about a claim that is no longer held raises `ClaimLost`; an invalid request is refused, and the claim is still
held.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from treadle.api.wire import Instant
from treadle.api.work import ClaimState
from treadle.kernel.core import Core, Service
from treadle.kernel.external.records import INTENT, intent_of, new_intent
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.decide import TaskDecision, decide, settlement_of
from treadle.kernel.remote_workers.decide import check_text, claim_of, lease_of, log_line
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import Renewal, Touch
from treadle.kernel.store.units import Finish, Keep, Unit, UnitAnswer, Verdict
from treadle.kernel.telemetry.events import LeaseLost, ResultDropped, TaskSettled
from treadle.kernel.telemetry.observer import AttemptEnded, SettleAnswered, telemetry_of
from treadle.model.approvals import ApprovalRequest, check_request, split_checkpoint, with_decisions_of
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import (
    ClaimLost,
    InvalidInput,
    InvalidPayload,
    NotFound,
    Refused,
    not_found,
)
from treadle.model.external import ExternalProductionHandle, check_handle
from treadle.model.ids import Ref
from treadle.model.outcomes import (
    AwaitingApproval,
    AwaitingExternal,
    Failed,
    Outcome,
    Problem,
    Released,
    Retry,
    Succeeded,
    Waiting,
)
from treadle.model.retry import NO_RETRY
from treadle.model.states import TaskState
from treadle.model.tasks import CANCELED, HELD, LOST, Claim, Server, Task, progress_text
from treadle.model.values import Json, decode, encode, shown

MAX_CACHED_TASKS = 2000
"""Tasks that are remembered; the completion of any other one reads it."""
MAX_CACHED_PAYLOAD = 8 * 1024
"""Characters of the payload of a task that is remembered."""


class HandedOut:
    """The most recent tasks by id."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task) -> None:
        """Remember a task that was just claimed, in place of its earlier claim."""
        self._tasks.pop(task.id, None)  # keeps the oldest first
        if len(task.payload) <= MAX_CACHED_PAYLOAD:
            self._tasks[task.id] = task
            if len(self._tasks) > MAX_CACHED_TASKS:
                del self._tasks[next(iter(self._tasks))]

    def take(self, claim: Claim) -> Task | None:
        """Return the task and forget it, if it was handed out under this claim and is remembered."""
        task = self._tasks.get(claim.task_id)
        if task is None or task.claim != claim:
            return None
        return self._tasks.pop(claim.task_id)


_MAX_CACHED_WORKERS = 10_000
"""Workers that a process remembers; it reads the rows of all others again."""


@dataclass(slots=True)
class _Known:
    """A worker as this process knows it: its row, the last touch, and the settlements to add to its counts."""

    server: Server
    touched_at: float
    settled: Counter[str]


class Presence(Service):
    """The remote workers of one namespace that recently made requests to this process."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._known: dict[str, _Known] = {}

    async def get(self, worker_id: str) -> Server:
        """Return the worker's row, possibly slightly out of date; or raise `NotFound`."""
        worker = self._known.get(worker_id) or self._remember(await self._find(worker_id))
        return worker.server

    async def alive(self, worker_id: str) -> Server:
        """Return the worker's row, after storing a heartbeat if one is due."""
        worker = self._known.get(worker_id)
        return worker.server if worker is not None and not self._is_due(worker) else await self.touch(worker_id)

    async def touch(self, worker_id: str, running: int | None = None, state: str | None = None) -> Server:
        """Store a heartbeat and the counts since the last one; or raise `NotFound`."""
        worker = self._known.get(worker_id) or await self._find(worker_id)
        servers = await self._store.servers.touch([replace(self._touch_of(worker), running=running, state=state)])
        if not servers:
            self._known.pop(worker_id, None)
            raise not_found("worker", worker_id)
        self._learn(servers[0])
        return servers[0]

    async def touch_all(self, worker_ids: Collection[str]) -> list[str]:
        """Store the due heartbeats of waiting workers; return those that have left through another process."""
        due = [worker for worker_id in worker_ids if (worker := self._known.get(worker_id)) is not None and self._is_due(worker)]
        touches = [self._touch_of(worker) for worker in due]
        servers = {server.id: server for server in (await self._store.servers.touch(touches) if touches else ())}
        gone = []
        for worker in due:
            worker_id = worker.server.id
            if (server := servers.get(worker_id)) is not None:
                self._learn(server)
            else:
                self.forget(worker_id)
                gone.append(worker_id)
        return gone

    def note_settled(self, worker_id: str, transition: str) -> None:
        """Count a settlement for the worker's next heartbeat."""
        if (worker := self._known.get(worker_id)) is not None:
            worker.settled[transition] += 1

    def forget(self, worker_id: str) -> None:
        """Forget a worker that has left."""
        self._known.pop(worker_id, None)

    def _is_due(self, worker: _Known) -> bool:
        """Return whether a heartbeat is due: three times per declared interval."""
        return self._clock.monotonic() - worker.touched_at >= worker.server.heartbeat_every_for / 3000

    async def _find(self, worker_id: str) -> _Known:
        """Read the row of a worker that is new to this process; a server that hosts workers itself does not count."""
        for server in await self._store.servers.list_all(self._namespace):
            if server.id == worker_id and server.pid == 0:
                return _Known(server, float("-inf"), Counter())
        raise not_found("worker", worker_id)

    def _touch_of(self, worker: _Known) -> Touch:
        """Return the heartbeat to store, and reset the counts."""
        worker.touched_at = self._clock.monotonic()
        settled, worker.settled = worker.settled, Counter()
        failed = settled.pop("fail", 0)
        return Touch(worker.server.id, None, settled.total() - settled["release"] + failed, failed)

    def _learn(self, server: Server) -> None:
        worker = self._known.get(server.id)
        self._remember(_Known(server, self._clock.monotonic(), Counter() if worker is None else worker.settled))

    def _remember(self, worker: _Known) -> _Known:
        """Remember the worker, and forget the least recent ones beyond the limit."""
        self._known.pop(worker.server.id, None)
        while len(self._known) >= _MAX_CACHED_WORKERS:
            self._known.pop(next(iter(self._known)))
        self._known[worker.server.id] = worker
        return worker


T = TypeVar("T")

_CODE_LIMIT = 200
_MAX_LOG_LINES = 1000

Settle = Callable[[Task, Claim, TaskDecision, float | None], Awaitable[UnitAnswer]]
"""Commits the outcome of an attempt and its consequences, with the given patience."""
UpdateStep = Callable[[str, str, Mapping[str, Json]], Awaitable[bool]]
"""Merges partial results into a waiting step."""


class HeldWork(Service):
    """The operations on claims of one namespace."""

    def __init__(self, core: Core, external_jobs: ExternalJobs, *, lease_for: int, settle: Settle, update_step: UpdateStep) -> None:
        super().__init__(core)
        self._external_jobs = external_jobs
        self._telemetry = telemetry_of(core.emit)
        self._presence = Presence(core)
        self._lease_for = lease_for
        self._settle_task = settle
        self._update_step = update_step
        self._handed_out = HandedOut()
        self._under_way: set[asyncio.Task[Any]] = set()

    # operations that keep the claim

    async def heartbeat(self, worker_id: str, task_id: Ref, claim_version: int, *, lease_for: Duration | None = None) -> ClaimState:
        """Renew the lease from now, within the task's deadline, progress deadline and timeout.

        If the task was canceled meanwhile, the response has `cancel_requested`: stop, there is nothing to settle.
        """
        return await self._renewed(Renewal(claim_of(worker_id, task_id, claim_version)), lease_for)

    async def progress(
        self,
        worker_id: str,
        task_id: Ref,
        claim_version: int,
        fraction: float | None = None,
        message: str | None = None,
        *,
        lease_for: Duration | None = None,
    ) -> ClaimState:
        """Report progress, which extends the progress deadline, and renew the lease like `heartbeat`."""
        claim = claim_of(worker_id, task_id, claim_version)
        return await self._renewed(Renewal(claim, True, progress_text(fraction, message)), lease_for)

    async def log(self, worker_id: str, task_id: Ref, claim_version: int, lines: Sequence[Mapping[str, Json]]) -> None:
        """Append log lines, each with a `message` and optional `level` and `details`. Sending them twice logs them twice."""
        task = await self._get_held(claim_of(worker_id, task_id, claim_version))
        if not 0 < len(lines) <= _MAX_LOG_LINES:
            raise InvalidInput(f"A request has 1 to {_MAX_LOG_LINES} log lines, not {len(lines)}.")
        now = self._clock.now()
        await self._store.log.append_lines([log_line(task, now, line) for line in lines])

    async def partial(self, worker_id: str, task_id: Ref, claim_version: int, results: Mapping[str, Json]) -> None:
        """Store partial results under the claim, merged with earlier ones; the next attempt receives them.

        They are the task's checkpoint. A run's step shows its partial results as well.
        """
        claim = claim_of(worker_id, task_id, claim_version)
        if not isinstance(results, Mapping):
            raise InvalidPayload(f"Partial results must be a dict (a JSON object), not {type(results).__name__}.")
        task = await self._get_held(claim)
        before = decode(task.checkpoint)
        own = split_checkpoint(before)[1]
        merged = {**(own if isinstance(own, dict) else {}), **results}
        text = encode(with_decisions_of(before, merged), "partial results", self._core.payload_limit)
        answer = await self._committer.submit(Unit(claim, Keep(text)), self._patience)
        if answer.verdict is not Verdict.DONE:
            raise ClaimLost(claim.task_id, claim.version)
        if task.run_id is not None and task.step_id is not None:
            await self._update_step(task.run_id, task.step_id, results)

    # operations that end the claim

    async def complete(
        self, worker_id: str, task_id: Ref, claim_version: int, result: Mapping[str, Json] | None = None
    ) -> str | None:
        """Complete the task with a result. Returns the task's final state, if this request ended it."""
        if result is not None and not isinstance(result, Mapping):
            raise InvalidPayload(f"A result must be a dict (a JSON object), not {type(result).__name__}.")
        claim, outcome = claim_of(worker_id, task_id, claim_version), Succeeded(dict(result or {}))
        if (task := self._handed_out.take(claim)) is not None:
            return await self._finish(self._settle(task, claim, outcome, "succeed"))
        return await self._end(claim, outcome, "succeed")

    async def fail(
        self,
        worker_id: str,
        task_id: Ref,
        claim_version: int,
        message: str,
        code: str = "handler_error",
        *,
        retryable: bool = True,
        after: Duration | None = None,
        kind: str | None = None,
        traceback: str | None = None,
    ) -> str | None:
        """Fail the attempt: the task is retried by its policy (after `after`, if given) if `retryable`, else it fails.

        `kind` is the class of the exception, with or without its module: the policy may select by it. Returns the task's final
        state, if this request ended it.
        """
        for what, text in (("message", message), ("code", code), ("kind", kind or ""), ("traceback", traceback or "")):
            check_text(text, what)
        if not 0 < len(code) <= _CODE_LIMIT:
            raise InvalidInput(f"code must be a stable text of 1 to {_CODE_LIMIT} characters, not {shown(code)}.")
        problem = Problem(code, message or code, kind, traceback)
        after_for = None if after is None else milliseconds(after, "after")
        outcome: Outcome = Retry(problem, after_for) if retryable else Failed(problem)
        return await self._end(claim_of(worker_id, task_id, claim_version), outcome, "retry", "fail")

    async def wait(self, worker_id: str, task_id: Ref, claim_version: int, wait_for: Duration, *, checkpoint: Json = None) -> None:
        """Return the task until `wait_for` has passed; the next attempt receives `checkpoint`."""
        outcome = Waiting(milliseconds(wait_for, "wait_for"), checkpoint)
        await self._end(claim_of(worker_id, task_id, claim_version), outcome, "wait")

    async def ask(
        self, worker_id: str, task_id: Ref, claim_version: int, request: ApprovalRequest, *, checkpoint: Json = None
    ) -> None:
        """Return the task until a person has approved it; the next attempt receives the decision."""
        outcome = AwaitingApproval(check_request(request), checkpoint)
        await self._end(claim_of(worker_id, task_id, claim_version), outcome, "ask")

    async def hand_off(
        self,
        worker_id: str,
        task_id: Ref,
        claim_version: int,
        handle: ExternalProductionHandle,
        *,
        specialist: str = "remote worker",
    ) -> None:
        """Hand the work off to an external service, polled by a specialist for the task's name; `specialist` is for display.

        Raises `Refused` (`poll_not_supported`) if no live worker has one.
        """
        claim = claim_of(worker_id, task_id, claim_version)
        check_handle(handle)
        task = await self._find_held(claim, "hand_off")
        if task is None:
            return
        if not await self._external_jobs.is_offered(task):
            raise Refused(
                f"No live worker has a specialist for {task.name} to poll the job, so the task was not handed off; the worker "
                "still holds it. Wait for the job in the worker, or register a specialist that has a `poll` method.",
                code="poll_not_supported",
            )
        intent = intent_of(task) or new_intent(self._ids, task)
        task.checkpoint = encode({INTENT: intent})
        awaiting = AwaitingExternal(handle, intent["token"], check_text(specialist, "specialist"))
        await self._finish(self._settle(task, claim, awaiting, "hand_off"))

    async def release(self, worker_id: str, task_id: Ref, claim_version: int, reason: str = "released by its worker") -> None:
        """Return the task unfinished; another worker takes it immediately, or if it was claimed before, after a second."""
        outcome = Released.by_holder(check_text(reason, "reason"), claim_version)
        await self._end(claim_of(worker_id, task_id, claim_version), outcome, "release")

    # helpers

    async def _renewed(self, renewal: Renewal, lease_for: Duration | None) -> ClaimState:
        (held,) = await self._renew([renewal], lease_of(lease_for, self._lease_for))
        if held.state == LOST:
            raise ClaimLost(held.task_id, held.claim_version)
        return held

    async def _renew(self, renewals: Sequence[Renewal], lease_for: int) -> list[ClaimState]:
        """Renew the claims; return their states in the order given. A worker that holds a claim is alive."""
        extended = await self._store.tasks.extend(renewals, lease_for)
        named = Counter(renewal.claim.task_id for renewal in renewals)
        answers = []
        for renewal in renewals:
            claim = renewal.claim
            extension = extended.get(claim.task_id)
            if extension is not None and named[claim.task_id] == 1:
                until, left_for = extension.until_at, max(extension.until_at - extension.now, 0)
                answers.append(ClaimState(claim.task_id, claim.version, HELD, Instant.of(until), left_for, cancel_requested=False))
            else:
                answers.append(await self._state_of(claim))
        if any(answer.state == HELD for answer in answers):
            with suppress(NotFound):  # a claim is valid without its worker's row
                await self._presence.alive(renewals[0].claim.owner_id)
        return answers

    async def _state_of(self, claim: Claim) -> ClaimState:
        """Return the state of a claim that was not renewed: its own settlement may be in flight (D6)."""
        task = await self._store.tasks.find(claim.task_id)
        if task is not None and not task.finished and task.claim == claim and task.wake_at is not None:
            left_for = max(task.wake_at - await self._store.now(), 0)
            return ClaimState(claim.task_id, claim.version, HELD, Instant.of(task.wake_at), left_for, cancel_requested=False)
        canceled = task is not None and task.state == TaskState.CANCELED
        if task is not None:
            reason = "it was canceled" if canceled else "its lease expired, or it was settled"
            self._emit(LeaseLost(task.id, task.name, reason, task.trace_id))
        return ClaimState(claim.task_id, claim.version, CANCELED if canceled else LOST, None, 0, cancel_requested=canceled)

    async def _end(self, claim: Claim, outcome: Outcome, *transitions: str) -> str | None:
        """Settle the task under the claim, unless the claim has already made one of the transitions; return the final state, if
        any."""
        task = await self._find_held(claim, *transitions)
        return None if task is None else await self._finish(self._settle(task, claim, outcome, *transitions))

    async def _settle(self, task: Task, claim: Claim, outcome: Outcome, *transitions: str) -> str | None:
        decided = decide(task, outcome, NO_RETRY, self._ids.random, self._core.payload_limit)
        settlement = settlement_of(decided)
        took = max(self._clock.now() - (task.claimed_at or 0), 0)
        sent_at = self._clock.monotonic()
        if (observe := self._telemetry.observe) is not None:
            observe(AttemptEnded(task, settlement.transition, took / 1000))
        failpoint("settle.before_commit")
        answer = await self._settle_task(task, claim, decided, self._patience)
        failpoint("settle.after_commit")
        if observe is not None:
            done = answer.verdict is Verdict.DONE
            observe(SettleAnswered(task.id, settlement.transition, done, self._clock.monotonic() - sent_at))
        if answer.verdict is not Verdict.DONE:
            if await self._has_made(claim, transitions):  # two identical requests at the same time
                return None
            self._emit(ResultDropped(task.id, task.name, settlement.transition, task.trace_id))
            raise ClaimLost(claim.task_id, claim.version)
        self._emit(TaskSettled.of(task, settlement.transition, took, settlement.error))
        self._presence.note_settled(claim.owner_id, settlement.transition)
        return settlement.state if isinstance(settlement, Finish) else None

    async def _get_held(self, claim: Claim) -> Task:
        task = await self._find_held(claim)
        assert task is not None
        return task

    async def _find_held(self, claim: Claim, *transitions: str) -> Task | None:
        """Return the task held by the claim; None if this claim has already made one of the transitions."""
        task = await self._get_task(claim.task_id)
        if not task.finished and task.claim == claim:
            return task
        if await self._has_made(claim, transitions):
            return None
        raise ClaimLost(claim.task_id, claim.version)

    async def _has_made(self, claim: Claim, transitions: Sequence[str]) -> bool:
        """Return whether this claim has made one of the transitions."""
        holder = (claim.version, claim.owner_id)
        history = await self._store.log.list_transitions(claim.task_id) if transitions else []
        return any(
            (transition.claim_version, transition.actor) == holder and transition.transition in transitions
            for transition in history
        )

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to completion, even if its caller disconnects."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because the caller may have disconnected
