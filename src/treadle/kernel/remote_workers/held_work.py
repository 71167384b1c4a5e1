"""What may be done with a task by whoever holds its claim, told by (worker, task, claim version) alone.

Nothing is remembered between two words about a claim: each may come through another process. So each reads the task, and
is fenced by the claim. A word that is said again after it was taken in is answered as it was the first time; one about a
claim that is no longer held raises `ClaimLost`; one that makes no sense is refused, and the claim is still held.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from treadle.kernel.external.intents import INTENT, intent_of, new_intent
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.decide import decide
from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Answer, Finish, Keep, Park, Unit, Verdict
from treadle.kernel.telemetry.events import Emit, LeaseLost, ResultDropped, TaskSettled
from treadle.kernel.telemetry.observer import AttemptEnded, SettleAnswered, telemetry_of
from treadle.model.approvals import ApprovalRequest, check_request, split_checkpoint, with_decisions_of
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import ClaimLost, InvalidInput, InvalidPayload, InvalidPolicy, PollNotSupported, TaskNotFound
from treadle.model.external import ExternalProductionHandle, check_handle
from treadle.model.ids import Ids, parse_id
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
from treadle.model.remote_workers import CANCELED, HELD, LOST, HeldClaim
from treadle.model.reports import line_about, progress_text
from treadle.model.retry import NO_RETRY
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, LogLine, Task
from treadle.model.values import Json, decode, encode

T = TypeVar("T")

LONGEST_LEASE_FOR = 3_600_000
_LONGEST_TEXT = 64 * 1024
_LONGEST_CODE = 200
_MOST_LINES = 1000

Settle = Callable[[Task, Claim, Finish | Park, float | None], Awaitable[Answer]]
"""Commits what an attempt came to, and whatever follows from it, with the committer's patience."""
UpdateStep = Callable[[str, str, Mapping[str, Json]], Awaitable[bool]]
"""Merges partial results into a step that waits."""


class HeldWork:
    """The words about claims of one namespace."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        external_jobs: ExternalJobs,
        clock: Clock,
        ids: Ids,
        emit: Emit,
        *,
        namespace: str,
        lease_for: int,
        result_limit: int,
        settle: Settle,
        update_step: UpdateStep,
    ) -> None:
        self._store = store
        self._committer = committer
        self._external_jobs = external_jobs
        self._clock = clock
        self._ids = ids
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._namespace = namespace
        self._lease_for = lease_for
        self._result_limit = result_limit
        self._settle_task = settle
        self._update_step = update_step
        self._under_way: set[asyncio.Task[Any]] = set()

    # going on

    async def heartbeat(self, worker_id: str, task_id: str, claim_version: int, *, lease_for: Duration | None = None) -> HeldClaim:
        """Hold the claim for another lease from now, within the task's deadline, progress deadline and timeout.

        A task that was canceled meanwhile is answered with `cancel_requested`: stop, there is nothing to settle.
        """
        return await self._renewed(Renewal(_claim(worker_id, task_id, claim_version)), lease_for)

    async def progress(
        self,
        worker_id: str,
        task_id: str,
        claim_version: int,
        fraction: float | None = None,
        message: str | None = None,
        *,
        lease_for: Duration | None = None,
    ) -> HeldClaim:
        """Say that the work gets on, which moves the progress deadline, and hold the claim as `heartbeat` does."""
        claim = _claim(worker_id, task_id, claim_version)
        return await self._renewed(Renewal(claim, True, progress_text(fraction, message)), lease_for)

    async def log(self, worker_id: str, task_id: str, claim_version: int, lines: Sequence[Mapping[str, Json]]) -> None:
        """Write lines about the task: each has a `message`, and may have a `level` and `details`. Sent twice, they stand twice."""
        task = await self._get_held(_claim(worker_id, task_id, claim_version))
        if not 0 < len(lines) <= _MOST_LINES:
            raise InvalidInput(f"1 to {_MOST_LINES} lines can be written at once, not {len(lines)}.")
        now = self._clock.now()
        await self._store.append_lines([_line(task, now, line) for line in lines])

    async def partial(self, worker_id: str, task_id: str, claim_version: int, results: Mapping[str, Json]) -> None:
        """Store partial results under the claim, merged with those before; whoever takes the task next is given them.

        They are the task's checkpoint. Those of a run's step are shown there as well.
        """
        claim = _claim(worker_id, task_id, claim_version)
        if not isinstance(results, Mapping):
            raise InvalidPayload(f"Partial results are a dict (a JSON object), not {type(results).__name__}.")
        task = await self._get_held(claim)
        before = decode(task.checkpoint)
        own = split_checkpoint(before)[1]
        merged = {**(own if isinstance(own, dict) else {}), **results}
        text = encode(with_decisions_of(before, merged), "partial results", self._result_limit)
        answer = await self._committer.submit(Unit(claim, Keep(text)), PATIENCE)
        if answer.verdict is not Verdict.DONE:
            raise ClaimLost(claim.task_id, claim.version)
        if task.run_id is not None and task.step_id is not None:
            await self._update_step(task.run_id, task.step_id, results)

    # ending

    async def complete(
        self, worker_id: str, task_id: str, claim_version: int, result: Mapping[str, Json] | None = None
    ) -> str | None:
        """The work is done; `result` goes to whoever waits for it. Returns the state in which the task has ended now, if any."""
        if result is not None and not isinstance(result, Mapping):
            raise InvalidPayload(f"A result is a dict (a JSON object), not {type(result).__name__}.")
        return await self._end(_claim(worker_id, task_id, claim_version), Succeeded(dict(result or {})), "succeed")

    async def fail(
        self,
        worker_id: str,
        task_id: str,
        claim_version: int,
        message: str,
        code: str = "handler_error",
        *,
        retryable: bool = True,
        after: Duration | None = None,
        kind: str | None = None,
        traceback: str | None = None,
    ) -> str | None:
        """The attempt failed: it is tried again by the task's retry policy (`after` that long, if given), or not at all.

        `kind` is the type of what was raised, for people. Returns the state in which the task has ended, if it did so now.
        """
        for what, said in (("message", message), ("code", code), ("kind", kind or ""), ("traceback", traceback or "")):
            _text(said, what)
        if not 0 < len(code) <= _LONGEST_CODE:
            raise InvalidInput(f"code is a stable text of 1 to {_LONGEST_CODE} characters, not {code!r}.")
        problem = Problem(code, message or code, kind, traceback)
        after_for = None if after is None else milliseconds(after, "after")
        outcome: Outcome = Retry(problem, after_for) if retryable else Failed(problem)
        return await self._end(_claim(worker_id, task_id, claim_version), outcome, "retry", "fail")

    async def wait(self, worker_id: str, task_id: str, claim_version: int, wait_for: Duration, *, checkpoint: Json = None) -> None:
        """There is nothing to do for so long: the task is given up, and due again then. `checkpoint` is given with it."""
        outcome = Waiting(milliseconds(wait_for, "wait_for"), checkpoint)
        await self._end(_claim(worker_id, task_id, claim_version), outcome, "wait")

    async def ask(
        self, worker_id: str, task_id: str, claim_version: int, request: ApprovalRequest, *, checkpoint: Json = None
    ) -> None:
        """A person has to decide: the task is given up, and due again with the decision once it is approved."""
        outcome = AwaitingApproval(check_request(request), checkpoint)
        await self._end(_claim(worker_id, task_id, claim_version), outcome, "ask")

    async def hand_off(
        self,
        worker_id: str,
        task_id: str,
        claim_version: int,
        handle: ExternalProductionHandle,
        *,
        specialist: str = "outside worker",
    ) -> None:
        """The work goes on in an outside service, where a specialist for the task's name polls it; `specialist` is for people.

        Raises `PollNotSupported` where no live server has one.
        """
        claim = _claim(worker_id, task_id, claim_version)
        check_handle(handle)
        task = await self._find_held(claim, "hand_off")
        if task is None:
            return
        if not await self._external_jobs.is_offered(task):
            raise PollNotSupported(task.name)
        intent = intent_of(task) or new_intent(self._ids, task)
        task.checkpoint = encode({INTENT: intent})
        awaiting = AwaitingExternal(handle, intent["token"], _text(specialist, "specialist"))
        await self._finish(self._settle(task, claim, awaiting, "hand_off"))

    async def release(self, worker_id: str, task_id: str, claim_version: int, reason: str = "released by its worker") -> None:
        """Give the task back unfinished; another takes it at once."""
        outcome = Released(_text(reason, "reason"))
        await self._end(_claim(worker_id, task_id, claim_version), outcome, "release")

    # inside

    async def _renewed(self, renewal: Renewal, lease_for: Duration | None) -> HeldClaim:
        (held,) = await self._renew([renewal], self._lease(lease_for))
        if held.state == LOST:
            raise ClaimLost(held.task_id, held.claim_version)
        return held

    async def _renew(self, renewals: Sequence[Renewal], lease_for: int) -> list[HeldClaim]:
        """Extend the claims; how each stands, in the order given."""
        extended = await self._store.extend(renewals, lease_for)
        named = Counter(renewal.claim.task_id for renewal in renewals)
        answers = []
        for renewal in renewals:
            claim = renewal.claim
            found = extended.get(claim.task_id)
            if found is not None and named[claim.task_id] == 1:
                until, left_for = found.until_at, max(found.until_at - found.now, 0)
                answers.append(HeldClaim(claim.task_id, claim.version, HELD, until, left_for))
            else:
                answers.append(await self._look_at(claim))
        return answers

    async def _look_at(self, claim: Claim) -> HeldClaim:
        """How a claim stands that was not extended: its own settlement may be under way (D6)."""
        task = await self._store.find_task(claim.task_id)
        if task is not None and not task.finished and task.claim == claim and task.wake_at is not None:
            left_for = max(task.wake_at - await self._store.now(), 0)
            return HeldClaim(claim.task_id, claim.version, HELD, task.wake_at, left_for)
        canceled = task is not None and task.state == TaskState.CANCELED
        if task is not None:
            reason = "it was canceled" if canceled else "its lease ran out, or it was settled"
            self._emit(LeaseLost(task.id, task.name, reason, task.trace_id))
        return HeldClaim(claim.task_id, claim.version, CANCELED if canceled else LOST)

    async def _end(self, claim: Claim, outcome: Outcome, *moves: str) -> str | None:
        """Settle the task under the claim, unless that was done before by one of these moves; the state that it ends in, if any."""
        task = await self._find_held(claim, *moves)
        return None if task is None else await self._finish(self._settle(task, claim, outcome, *moves))

    async def _settle(self, task: Task, claim: Claim, outcome: Outcome, *moves: str) -> str | None:
        decided = decide(task, outcome, NO_RETRY, self._ids.random, self._result_limit)
        took = max(self._clock.now() - (task.claimed_at or 0), 0)
        sent_at = self._clock.monotonic()
        if (observe := self._telemetry.observe) is not None:
            observe(AttemptEnded(task, decided.move, took / 1000))
        reach("settle.before_commit")
        answer = await self._settle_task(task, claim, decided, PATIENCE)
        reach("settle.after_commit")
        if observe is not None:
            done = answer.verdict is Verdict.DONE
            observe(SettleAnswered(task.id, decided.move, done, self._clock.monotonic() - sent_at))
        if answer.verdict is not Verdict.DONE:
            if await self._has_made(claim, moves):  # said twice at once
                return None
            self._emit(ResultDropped(task.id, task.name, decided.move, task.trace_id))
            raise ClaimLost(claim.task_id, claim.version)
        self._emit(TaskSettled.of(task, decided.move, took, decided.error))
        self._note_settled(claim.owner_id, decided.move)
        return decided.state if isinstance(decided, Finish) else None

    def _note_settled(self, worker_id: str, move: str) -> None:
        """A worker has settled a task."""

    async def _get_held(self, claim: Claim) -> Task:
        task = await self._find_held(claim)
        assert task is not None
        return task

    async def _find_held(self, claim: Claim, *moves: str) -> Task | None:
        """The task, which is held by that claim; None where this very claim has made one of those moves before."""
        task = await self._store.find_task(claim.task_id)
        if task is None or task.namespace != self._namespace:
            raise TaskNotFound(claim.task_id)
        if not task.finished and task.claim == claim:
            return task
        if await self._has_made(claim, moves):
            return None
        raise ClaimLost(claim.task_id, claim.version)

    async def _has_made(self, claim: Claim, moves: Sequence[str]) -> bool:
        """Whether this very claim has made one of the moves."""
        made = (claim.version, claim.owner_id)
        found = await self._store.list_moves(claim.task_id) if moves else []
        return any((move.claim_version, move.actor) == made and move.move in moves for move in found)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to its end, also when its caller goes away in the middle."""
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone away

    def _lease(self, lease_for: Duration | None) -> int:
        if lease_for is None:
            return self._lease_for
        wanted = milliseconds(lease_for, "lease_for", positive=True)
        if wanted > LONGEST_LEASE_FOR:
            raise InvalidPolicy(f"lease_for is at most {LONGEST_LEASE_FOR // 1000} s, not {lease_for!r}: renew it instead.")
        return wanted


def _claim(worker_id: str, task_id: str, claim_version: int) -> Claim:
    if type(claim_version) is not int or not 0 < claim_version < 2**31:
        raise InvalidInput(f"claim_version is the number that the task was claimed with, not {claim_version!r}.")
    return Claim(parse_id(task_id, "task id"), claim_version, parse_id(worker_id, "worker id"))


def _line(task: Task, at: int, said: Mapping[str, Json]) -> LogLine:
    if not isinstance(said, Mapping):
        raise InvalidInput(f"A line is a dict with a message, not {type(said).__name__}.")
    details = said.get("details")
    if details is not None and not isinstance(details, dict):
        raise InvalidInput(f"The details of a line are a dict (a JSON object), not {type(details).__name__}.")
    return line_about(task, at, _text(said.get("message"), "message"), said.get("level", "info"), details)


def _text(said: object, what: str) -> str:
    if not isinstance(said, str) or len(said) > _LONGEST_TEXT:
        raise InvalidInput(f"{what} is text of at most {_LONGEST_TEXT} characters.")
    return said
