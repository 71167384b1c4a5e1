"""External jobs: hand-off, polls, callbacks and cancellation, each in one unit with the job's task.

`model.external.apply` derives a job's record and its task's due time from the job's events alone. No loop looks for due jobs:
the task's `wake_at` is the next poll, and the worker that claims the task polls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from treadle.api.external_jobs import ExternalJob, ExternalJobsRebuilt
from treadle.kernel.core import Core
from treadle.kernel.external.decide import (
    called_back,
    failure_of,
    is_offered,
    poll_delay,
    poll_now,
    unregistered_text,
)
from treadle.kernel.external.reads import ExternalJobReads
from treadle.kernel.external.rebuild import ExternalUpkeep
from treadle.kernel.external.records import (
    INTENT,
    Job,
    callback_token,
    cancel_job,
    change_job,
    intent_of,
    is_signed,
    new_intent,
    new_job,
    new_productions,
    show_job,
    submission_rows,
)
from treadle.kernel.operations import log_operation
from treadle.kernel.queue.decide import (
    BACK_OFF_FOR,
    TaskDecision,
    failure,
    hand_off,
    outcome_of,
    settlement_of,
    with_actor,
)
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import PAGE_LIMIT, every_task, find_id
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Keep, Requeue, Row, Seen, Unit, UnitAnswer, Verdict
from treadle.kernel.telemetry.events import ExternalHint, PollRaised, PollsFailing
from treadle.kernel.telemetry.observer import JobPolled, telemetry_of
from treadle.model.errors import CallbackRefused, ClaimLost, InvalidInput, Refused
from treadle.model.external import (
    FATE_UNKNOWN,
    RAISES_IN_ROW,
    UNREGISTERED,
    ExternalProductionFailure,
    ExternalProductionHandle,
    ExternalProductionRecord,
    Production,
    apply,
    check_handle,
    dispatched,
    polled,
    resolved,
)
from treadle.model.ids import Ref, parse_id
from treadle.model.names import ENGINE_LIST, EXTERNAL_CANCEL, QueueKey
from treadle.model.outcomes import RELEASED_FOR, AwaitingExternal, Problem, Produced, StillWorking
from treadle.model.records import UNREADABLE
from treadle.model.retry import RetryPolicy
from treadle.model.runs import Run
from treadle.model.states import EXTERNAL, TaskState
from treadle.model.stored import write
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json, decode, encode

CANCEL_RETRY = RetryPolicy(retries=12, first_for=1000, cap_for=600_000)
"""For canceling a job at its service: about an hour."""

_WRONG = "The callback's token does not belong to this job; nothing was changed."


class Intent(msgspec.Struct, frozen=True):
    """The intent stored before `start` is called.

    `again`: an earlier attempt stored it, and the service may have the job. `retried`: an operator has retried the task since.
    `asked`: the service does not have the job.
    """

    token: str
    callback: str
    again: bool = False
    retried: bool = False
    asked: bool = False


def _is_fate_unknown(error: str | None) -> bool:
    return (decode(error) or {}).get("code") in FATE_UNKNOWN


class _Opened(NamedTuple):
    """A job that a claim of this process polls. `polled`: its service was called."""

    claim_version: int
    job: Job
    polled: bool = False


Settle = Callable[[Task, Seen, TaskDecision], Awaitable[UnitAnswer]]
Operate = Callable[..., Awaitable[Task]]


class ExternalJobs(ExternalJobReads):
    """The external jobs of one namespace: their reads, and every change of them."""

    job_entities = (EXTERNAL.entity,)
    """The entities that a `job_id` names (`kernel.guard`)."""

    def __init__(
        self,
        core: Core,
        *,
        settle: Settle,
        cancel: Operate,
        public_url: str = "",
        repeated_steps: Callable[[Task], Awaitable[Collection[tuple[str, str]]]],
        explain: Callable[[str], Awaitable[Reason]],
    ) -> None:
        """`repeated_steps` returns the steps (run, id) that the task's step repeats after a retry, if they differ from its own.

        `explain` gives the reason for the state of a task.
        """
        super().__init__(core, explain)
        self._telemetry = telemetry_of(core.emit)
        self._settle = settle
        self._cancel = cancel
        self._public_url = public_url
        self._repeated_steps = repeated_steps
        self._opened: dict[str, _Opened] = {}
        """Jobs being polled by this process, by task."""

    # changes by workers

    async def begin(self, task: Task, token: Claim) -> Intent:
        """Store the intent to submit the task's job under a new token; or return that of an earlier attempt, if the job may exist.

        Raises `ClaimLost`. An operator's retry of a job with a known fate starts over, with another token (D31, D72).
        """
        intent = intent_of(task) or await self._intent_before_retry(task)
        if intent is not None:
            transitions = [
                transition
                for transition in await self._store.log.list_transitions(task.id)
                if transition.version > intent["version"]
            ]
            ends = [transition for transition, after in pairwise(transitions) if after.transition == "requeue"]
            if not ends or (ends[-1].transition == "fail" and _is_fate_unknown(ends[-1].data)):
                retried = bool(ends) or intent.get("retried", False)
                return Intent(intent["token"], callback_token(task.id, intent), again=True, retried=retried)
        return await self.begin_anew(task, token)

    async def _intent_before_retry(self, task: Task) -> dict[str, Json] | None:
        """Return the intent of the last task of the same step, if its run was retried and the fate of its job is unknown."""
        if task.step_id is None or task.run_id is None:
            return None
        steps = {(task.run_id, task.step_id), *await self._repeated_steps(task)}
        ended = []
        for run_id in {run_id for run_id, _ in steps}:
            which = TaskFilter(states=(TaskState.FAILED,), namespace=task.namespace, name=task.name, run_id=run_id)
            ended += [failed async for failed in every_task(self._store, which) if (run_id, failed.step_id) in steps]
        last = max(ended, key=lambda failed: failed.finished_at or 0, default=None)
        intent = None if last is None or not _is_fate_unknown(last.error) else intent_of(last)
        if intent is None:
            return None
        intent = {**intent, "version": task.version, "retried": True}
        intent.pop("record_id", None)
        task.checkpoint = encode({INTENT: intent})  # stored if the task waits, or when the job is found
        return intent

    async def begin_anew(self, task: Task, token: Claim, missing: Intent | None = None) -> Intent:
        """Store the intent to submit the task's job, or raise `ClaimLost`.

        It has a new token, unless the job is `missing` at its service after a crash. The calls under the old token are resolved
        if the service was asked.
        """
        old = intent_of(task)
        intent = new_intent(self._ids, task)
        rows: tuple[Row, ...] = ()
        if missing is not None and old is not None:
            intent = intent if missing.retried else old
            rows = submission_rows(task, old, "failed") if missing.asked else ()
        intent = {**intent, "calls": intent.get("calls", 0) + 1}
        keep = Keep(encode({INTENT: intent}))
        await self._keep(token, keep, (*rows, *submission_rows(task, intent, "unknown")))
        task.checkpoint = keep.checkpoint
        failpoint("external.before_start")
        return Intent(intent["token"], callback_token(task.id, intent))

    async def resolve_submission(self, task: Task, token: Claim) -> None:
        """Record that the service has not taken the job."""
        await self._keep(token, None, submission_rows(task, intent_of(task), "failed"))

    async def open(self, task: Task) -> ExternalProductionRecord:
        """Return the record of the task's job for a poll; or raise `NotFound`."""
        job = await self._job_of(task)
        self._opened[task.id] = _Opened(task.claim_version, job)
        if self._telemetry.observe is not None and task.claimed_at is not None and job.record.due_at is not None:
            self._telemetry.observe(JobPolled(task.name, max(task.claimed_at - job.record.due_at, 0) / 1000))
        return job.record

    def count_poll(self, task: Task) -> None:
        """Count the poll that is about to call the service, even if it ends the job."""
        self._opened[task.id] = self._opened[task.id]._replace(polled=True)

    def callback_of(self, task: Task) -> str | None:
        """Return the signed token with which the service may resolve the job."""
        intent = intent_of(task)
        return None if intent is None else callback_token(task.id, intent)

    def callback_url(self, callback_token: str) -> str | None:
        """Return the URL of a job's callback; None if the public URL of the engine is not configured."""
        task_id = callback_token.partition(".")[0]
        base = self._public_url
        return f"{base}/v1/external-jobs/{task_id}/callback?token={callback_token}" if base else None

    async def prepare(self, task: Task, token: Claim | Seen, decided: TaskDecision) -> tuple[Finish | Requeue, tuple[Row, ...]]:
        """Return the settlement of a specialist's attempt in its stored form, and the rows of the job."""
        settlement, outcome = settlement_of(decided), outcome_of(decided)
        if isinstance(outcome, AwaitingExternal):
            return await self._dispatch(task, settlement, outcome)
        productions = outcome.productions if isinstance(outcome, Produced) else ()
        produced, rows = new_productions(self._ids, self._value_store, task, productions)
        if task.state != TaskState.AWAITING_EXTERNAL:
            return settlement, (*rows, *submission_rows(task, intent_of(task), "succeeded"))
        opened = self._opened.pop(task.id, None) if isinstance(token, Claim) else None
        if opened is None or opened.claim_version != task.claim_version:  # an earlier claim of this process was lost
            opened = None
        job = await self._find_job(task) if opened is None else opened.job
        if job is None:
            if isinstance(settlement, Requeue) and settlement.delay is None and isinstance(outcome, StillWorking):
                settlement = msgspec.structs.replace(settlement, delay=RELEASED_FOR)
            return settlement, rows
        now = await self._store.now()
        if isinstance(settlement, Requeue):
            if not isinstance(outcome, StillWorking):
                return settlement, ()
            if job.record.error_code == UNREADABLE:
                return msgspec.structs.replace(settlement, delay=BACK_OFF_FOR), ()
            event = polled(now, job.record, outcome.handle, outcome.error, settlement.delay or 0)
            record = apply(job.record, event)
            self._report(task, record, outcome.error)
            requeue = msgspec.structs.replace(settlement, delay=poll_delay(task, record, now))
            return requeue, change_job(job, record, event)
        failed = None if produced else failure_of(settlement)
        event = resolved(now, job.record, object_id=produced, failure=failed, by_poll=opened is not None and opened.polled)
        return settlement, (*change_job(job, apply(job.record, event), event), *rows)

    async def _dispatch(
        self, task: Task, requeued: Finish | Requeue, awaiting: AwaitingExternal
    ) -> tuple[Finish | Requeue, tuple[Row, ...]]:
        """Requeue the task of a job that was just submitted (or found) until the first poll; return the job's rows too."""
        now = await self._store.now()
        event = dispatched(
            now,
            awaiting.handle,
            task_id=task.id,
            name=task.name,
            specialist=awaiting.specialist,
            scope=task.scope,
            token=awaiting.token,
            deadline_at=None if awaiting.deadline_for is None else now + awaiting.deadline_for,
        )
        record = apply(None, event)
        stored, rows = new_job(self._ids, task, record, event)
        intent = intent_of(task)
        data = {"external_job_id": record.external_job_id, "record_id": stored.id, "reattached": awaiting.reattached or None}
        requeue = msgspec.structs.replace(
            requeued,
            delay=poll_delay(task, record, now),
            checkpoint=encode({INTENT: (intent or {}) | {"record_id": stored.id}}),
            data=encode({name: value for name, value in data.items() if value is not None}),
        )
        if record.progress_hint:
            self._emit(ExternalHint(task.id, task.name, record.progress_hint))
        return requeue, (*rows, *submission_rows(task, intent, "succeeded"))

    def _report(self, task: Task, record: ExternalProductionRecord, raised: str | None) -> None:
        if raised is not None:
            self._emit(PollRaised(task.id, task.name, raised))
            if record.raised_in_row % RAISES_IN_ROW == 0:
                self._emit(PollsFailing(task.id, task.name, record.raised_in_row, raised))
        elif record.progress_hint:
            self._emit(ExternalHint(task.id, task.name, record.progress_hint))

    async def _keep(self, token: Claim, keep: Keep | None, rows: tuple[Row, ...]) -> None:
        answer = await self._committer.submit(Unit(token, keep, rows=rows))
        if answer.verdict is not Verdict.DONE:
            raise ClaimLost(token.task_id, token.version)

    # changes by services and operators

    async def resolve(
        self,
        callback_token: str,
        outcome: Production | dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle,
        *,
        actor: str = "callback",
    ) -> ExternalJob:
        """Apply a service's callback under the job's signed token: done, failed, or progress.

        Raises `CallbackRefused` for a wrong token, or while the job is not recorded yet (it may be sent again soon), and
        `Refused` (`external_already_resolved`) after the end. A concurrent poll is fenced off.
        """

        async def attempt() -> ExternalJob:
            task = await self._called_back(callback_token)
            job = await self._job_of(task)
            decided = called_back(task, outcome)
            seen = Seen.of(task)
            answer = await self._settle(task, seen, with_actor(decided, actor))
            if answer.verdict is not Verdict.DONE:
                raise Stale
            return show_job(await self._get(job.stored.id))

        return await self._committer.transact(attempt, "resolve the external job")

    async def find_called(self, job_id: str, callback_token: str) -> ExternalJob:
        """Return the live job of that id (or task) to a service that presents its token; raises like `resolve`."""
        job = await self._job_of(await self._called_back(callback_token))
        if job_id not in (job.stored.id, job.record.render_job_id):
            raise CallbackRefused(_WRONG)
        return show_job(job)

    async def _called_back(self, callback_token: str) -> Task:
        task_id, _, signature = callback_token.partition(".")
        try:
            task = await self._store.tasks.find(parse_id(task_id, "task id"))
        except InvalidInput:
            task = None
        intent = None if task is None or task.namespace != self._namespace else intent_of(task)
        if task is None or intent is None or not is_signed(task.id, intent, signature):
            raise CallbackRefused(_WRONG)
        if task.finished:
            raise _resolved(task.id, task.state)
        if task.state != TaskState.AWAITING_EXTERNAL:
            raise Refused(
                "The job is not recorded yet; send the callback again in a moment. Nothing was changed.", code="callback_too_early"
            )
        return task

    async def rebuild(self, *, limit: int = 500, before: str | None = None, actor: str = "operator") -> ExternalJobsRebuilt:
        """Rebuild up to `limit` records from their events, newest first, older than `before`."""
        if before is None:
            await log_operation(self._core, "external_jobs.rebuild", "external jobs", actor)
        return await ExternalUpkeep(self._core).rebuild_page(before, limit)

    async def cancel(self, job_id: Ref, *, actor: str = "operator", reason: str | None = None) -> ExternalJob:
        """Cancel the task; a separate, retried task cancels the job at its service."""
        job = await self._get(job_id)
        if job.stored.ended_at is not None:
            raise _resolved(job.record.render_job_id, "ended")
        await self._cancel(job.record.render_job_id, actor=actor, reason=reason)
        return show_job(await self._get(job.stored.id))

    async def poll_now(self, job_id: Ref, *, actor: str = "operator") -> ExternalJob:
        """Make the job due now, regardless of its interval; raise `Refused` while it is being polled."""
        job_id = await find_id(self._store, self._namespace, EXTERNAL.entity, job_id)

        async def attempt() -> ExternalJob:
            job = await self._get(job_id)
            task = await self._store.tasks.find(job.record.render_job_id)
            if task is None or task.state != TaskState.AWAITING_EXTERNAL:
                raise _resolved(job.record.render_job_id, "gone" if task is None else task.state)
            if task.owner_id is not None:
                raise Refused(f"Task {task.id} is being polled right now.")
            unit = Unit(Seen.of(task), poll_now(task, actor))
            await self._committer.commit(unit, self._patience)
            return show_job(await self._get(job.stored.id))

        return await self._committer.transact(attempt, f"poll the external job {job_id}")

    async def append_dispatched(
        self, task_id: Ref, handle: ExternalProductionHandle, *, specialist: str = "imported"
    ) -> ExternalJob:
        """Attach a job that already exists at its service to a pending task, as if the task had dispatched it (D34)."""
        check_handle(handle)
        task_id = await find_id(self._store, self._namespace, "task", task_id)
        task = await self._store.tasks.find(task_id)
        if task is None or task.namespace != self._namespace or task.state != TaskState.PENDING or task.owner_id is not None:
            raise Refused(f"Task {task_id} is not pending, or a worker holds it: no job can be attached to it.")
        intent = new_intent(self._ids, task)
        task.checkpoint = encode({INTENT: intent})
        awaiting = AwaitingExternal(handle, intent["token"], specialist)
        requeue, rows = await self._dispatch(task, hand_off(task, awaiting).settlement, awaiting)
        unit = Unit(Seen.of(task), msgspec.structs.replace(requeue, actor="operator"), rows=rows)
        if (await self._committer.submit(unit, self._patience)).verdict is not Verdict.DONE:
            raise Refused(f"Task {task_id} changed concurrently; check it and try again.")
        return show_job(await self._get(task.id))

    # jobs without a specialist (D30)

    async def give_up(self, queue_ids: Sequence[int], scopes: Mapping[int, Collection[str]] = MappingProxyType({})) -> int:
        """Fail due jobs of queues that no live worker has served for the grace period; return their number.

        `scopes` are those that the caller serves itself, by queue.
        """
        now = await self._store.now()
        servers = await self._store.servers.list_all(self._namespace)
        count = 0
        for task_id in await self._store.tasks.list_unpolled(queue_ids, PAGE_LIMIT):
            task = await self._store.tasks.find(task_id)
            if task is None or task.state != TaskState.AWAITING_EXTERNAL or task.owner_id is not None or task.wake_at is not None:
                continue
            if task.scope not in scopes.get(task.queue_id, ()) and not is_offered(task, servers, now):
                problem = Problem(UNREGISTERED, unregistered_text(task.name, task.scope))
                seen = Seen.of(task)
                answer = await self._settle(task, seen, msgspec.structs.replace(failure(problem), actor="engine"))
                count += answer.verdict is Verdict.DONE
        return count

    async def is_offered(self, task: Task) -> bool:
        """Return whether a live worker has the specialist for the task, or had it within the grace period."""
        return is_offered(task, await self._store.servers.list_all(self._namespace), await self._store.now())

    # changes with the cancellation of tasks and runs

    async def rows_for_end(self, task: Task) -> tuple[Row, ...]:
        """Return the rows for the cancellation of a task that awaits a job."""
        job = await self._find_job(task) if task.state == TaskState.AWAITING_EXTERNAL else None
        return () if job is None else cancel_job(job, await self._store.now(), "its task was canceled")

    async def tasks_for_end(self, task: Task) -> tuple[NewTask, ...]:
        """Return the task that cancels the job at its service, even if the job may only have been submitted and not recorded."""
        job = await self._find_job(task) if task.state == TaskState.AWAITING_EXTERNAL else None
        intent = intent_of(task)
        if job is None and (intent is None or task.owner_id is None):
            return ()
        external_job_id = None if job is None else job.record.external_job_id or None
        token = (None if job is None else job.record.token) or (intent or {}).get("token")
        return (self._canceling(task.namespace, task.name, task.scope, external_job_id, token, task.root_id, task.trace_id),)

    async def rows_for_run(self, run: Run) -> tuple[Row, ...]:
        """Return the rows for the cancellation of a run."""
        rows: tuple[Row, ...] = ()
        for job in await self._jobs_of_run(run):
            rows = (*rows, *cancel_job(job, await self._store.now(), "its run was canceled"))
        return rows

    async def tasks_for_run(self, run: Run) -> tuple[NewTask, ...]:
        """Return the tasks that cancel a run's jobs at their services."""
        tasks = []
        for job in await self._jobs_of_run(run):
            record, stored = job.record, job.stored
            name, scope = record.declared_render_type_ref, record.scope
            if not name:
                continue  # neither the record nor its events can be read
            tasks.append(
                self._canceling(
                    stored.namespace, name, scope, record.external_job_id, record.token, stored.root_id, stored.trace_id
                )
            )
        for task in await self._store.tasks.list_matching(TaskFilter(states=(TaskState.RUNNING,), run_id=run.id), PAGE_LIMIT):
            tasks += await self.tasks_for_end(task)
        return tuple(tasks)

    def _canceling(
        self,
        namespace: str,
        name: str,
        scope: str | None,
        external_job_id: str | None,
        token: str | None,
        root_id: str | None,
        trace_id: str | None,
    ) -> NewTask:
        payload = self._value_store.encode_text(encode({"external_job_id": external_job_id, "token": token}))
        return NewTask(
            id=self._ids.new_id(),
            queue=QueueKey(namespace, EXTERNAL_CANCEL, ENGINE_LIST, name),
            payload=payload,
            policy=write(CANCEL_RETRY),
            scope=scope,
            root_id=root_id,
            trace_id=trace_id,
        )


def _resolved(task_id: str, state: str) -> Refused:
    return Refused(
        f"The external job of task {task_id} is already resolved: the task is {state}. Nothing was changed.",
        code="external_already_resolved",
    )
