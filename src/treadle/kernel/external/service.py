"""Outside jobs: what is stored when one is handed off, polled, resolved or canceled; always in one unit with its task.

The record of a job and its task's due time come from its events alone, by `model.external.apply`. There is no loop that looks
for due jobs: the task's `wake_at` is the next poll, and whoever takes the task then polls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from treadle.kernel.external.decide import (
    called_back,
    failure_of,
    is_offered,
    plain,
    plain_park,
    poll_delay,
    unregistered_text,
)
from treadle.kernel.external.intents import INTENT, callback_token, intent_of, is_signed, new_intent
from treadle.kernel.queue.decide import HandOff, Polled, ProducedEnd, failure, settlement
from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord, RecordFilter
from treadle.kernel.store.units import Answer, Finish, Keep, Park, Row, Seen, Unit, Verdict
from treadle.kernel.store.value_store import UnreadableValue, ValueStore
from treadle.kernel.telemetry.events import Emit, ExternalHint, PollRaised, PollsFailing, log_event
from treadle.kernel.telemetry.observer import JobPolled, telemetry_of
from treadle.model.clock import as_text
from treadle.model.errors import (
    CallbackRefused,
    CallbackTooEarly,
    ClaimLost,
    ExternalAlreadyResolved,
    ExternalJobNotFound,
    InvalidInput,
    Refused,
)
from treadle.model.external import (
    CANCELED,
    RING,
    UNREGISTERED,
    ExternalEvent,
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
from treadle.model.ids import Ids, parse_id
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, EXTERNAL_CANCEL, Lane
from treadle.model.outcomes import AwaitingExternal, Problem
from treadle.model.records import Record
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.runs import Run
from treadle.model.states import EXTERNAL, PRODUCTION, TaskState
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json, encode

ENTITY = EXTERNAL.entity
PAGE_LIMIT = 1000
RAISES_IN_ROW = 5
"""Polls in a row that raise after which it is told that the service or its specialist may be broken."""

CANCEL_RETRY = RetryPolicy(retries=12, first_for=1000, cap_for=600_000)
"""For telling a service that a job is not wanted any more: about an hour."""

_WRONG = "The token of the call-back is not one that was given to this job; nothing was changed."


@dataclass(frozen=True, slots=True)
class Intent:
    """What was stored before `start` is called. `again`: it was stored by an attempt that was lost, and nobody knows more."""

    token: str
    callback: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class ShownJob:
    """An outside job as people see it; `id` is that of its record."""

    id: str
    state: str
    """The task's: `awaiting_external`, or how it ended."""
    run_id: str | None
    record: ExternalProductionRecord
    events: tuple[ExternalEvent, ...] = ()


class Job(NamedTuple):
    """A stored record of a job, and what is in it."""

    stored: Record
    record: ExternalProductionRecord


Settle = Callable[[Task, Seen, Finish | Park], Awaitable[Answer]]
Operate = Callable[..., Awaitable[Task]]
Jobs = list[ShownJob]


class ExternalJobs:
    """The outside jobs of one namespace."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        value_store: ValueStore,
        ids: Ids,
        emit: Emit = log_event,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        settle: Settle | None = None,
        cancel: Operate | None = None,
        public_url: str = "",
    ) -> None:
        self._store = store
        self._committer = committer
        self._value_store = value_store
        self._ids = ids
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._namespace = namespace
        self._settle = settle
        self._cancel = cancel
        self._public_url = public_url
        self._polled: dict[str, Job] = {}
        """Jobs that are being polled here, by task."""

    # what workers do

    async def begin(self, task: Task, token: Claim) -> Intent:
        """Store that the task's job is about to be submitted, and under which token; or find that it was begun before.

        Raises `ClaimLost`. An operator's retry begins anew, with another token (D31).
        """
        found = intent_of(task)
        if found is not None and not await self._was_requeued(task, found["version"]):
            return Intent(found["token"], callback_token(task.id, found), again=True)
        intent = new_intent(self._ids, task)
        await self._keep(token, Keep(encode({INTENT: intent})))
        task.checkpoint = encode({INTENT: intent})
        reach("external.before_start")
        return Intent(intent["token"], callback_token(task.id, intent))

    async def note_unknown(self, task: Task, token: Claim, what: str) -> None:
        """Log that nobody knows whether the job was submitted, and what is done about it."""
        intent = intent_of(task) or {}
        data = encode({"action": "start", "token": intent.get("token"), "then": what})
        await self._keep(token, Keep(task.checkpoint, "tool_call.unknown", data))

    async def open(self, task: Task) -> ExternalProductionRecord:
        """The record of the job that the task awaits, for a poll; `ExternalJobNotFound` if there is none."""
        self._polled[task.id] = job = await self._job_of(task)
        if self._telemetry.observe is not None and task.claimed_at is not None and job.record.due_at is not None:
            self._telemetry.observe(JobPolled(task.name, max(task.claimed_at - job.record.due_at, 0) / 1000))
        return job.record

    def callback_of(self, task: Task) -> str | None:
        """The signed token with which the service may resolve the job."""
        intent = intent_of(task)
        return None if intent is None else callback_token(task.id, intent)

    def callback_url(self, callback_token: str) -> str | None:
        """Where a service sends its call-back; None if nobody said where services reach this engine."""
        task_id = callback_token.partition(".")[0]
        base = self._public_url
        return f"{base}/v1/external-jobs/{task_id}/callback?token={callback_token}" if base else None

    async def prepare(self, task: Task, decided: Finish | Park) -> tuple[Finish | Park, tuple[Row, ...]]:
        """What a specialist's attempt came to as it is stored, and what is stored with it about the job."""
        if isinstance(decided, HandOff) and decided.awaiting is not None:
            return await self._dispatch(task, decided, decided.awaiting)
        produced, rows = self._productions(task, decided)
        if task.state != TaskState.AWAITING_EXTERNAL:
            return plain(decided), rows
        job = self._polled.pop(task.id, None) or await self._find_job(task)
        if job is None:
            return plain(decided), rows
        now = await self._store.now()
        if isinstance(decided, Polled):
            event = polled(now, job.record, decided.handle, decided.raised)
            record = apply(job.record, event)
            self._tell(task, record, decided)
            park = msgspec.structs.replace(plain_park(decided), delay=poll_delay(task, record, now))
            return park, self._change(job, record, event)
        if not isinstance(decided, Finish):
            return decided, ()
        event = resolved(now, job.record, object_id=produced, failure=None if produced else failure_of(decided))
        return plain(decided), (*self._change(job, apply(job.record, event), event), *rows)

    async def _dispatch(self, task: Task, decided: HandOff, awaiting: AwaitingExternal) -> tuple[Park, tuple[Row, ...]]:
        """The record of a job that was just submitted (or found), and its task parked until the first poll."""
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
        stored = Record(
            id=self._ids.new_id(),
            namespace=task.namespace,
            entity=ENTITY,
            state=EXTERNAL.initial,
            body=_body(record),
            task_id=task.id,
            run_id=task.run_id,
            root_id=task.root_id,
            trace_id=task.trace_id,
        )
        said = {"external_job_id": record.external_job_id, "record_id": stored.id, "reattached": awaiting.reattached or None}
        park = msgspec.structs.replace(
            plain_park(decided),
            delay=poll_delay(task, record, now),
            checkpoint=encode({INTENT: (intent_of(task) or {}) | {"record_id": stored.id}}),
            data=encode({name: value for name, value in said.items() if value is not None}),
        )
        if record.progress_hint:
            self._emit(ExternalHint(task.id, task.name, record.progress_hint))
        return park, (PutRecord(stored), PutItems(stored.id, (_item(event),)))

    def _productions(self, task: Task, decided: Finish | Park) -> tuple[str | None, tuple[Row, ...]]:
        """The id of what was produced last, and the rows of all that was."""
        productions = decided.productions if isinstance(decided, ProducedEnd) else ()
        rows: tuple[Row, ...] = ()
        object_id = None
        for production in productions:
            object_id = production.object_id = production.object_id or self._ids.new_id()
            body, blobs = self._value_store.pack(production.content, task.root_id, "production", 2**31)
            made = Record(
                id=object_id,
                namespace=task.namespace,
                entity=PRODUCTION.entity,
                state=PRODUCTION.initial,
                body=body,
                task_id=task.id,
                run_id=task.run_id,
                root_id=task.root_id,
                trace_id=task.trace_id,
            )
            rows = (*rows, PutRecord(made), *blobs)
        return object_id, rows

    def _tell(self, task: Task, record: ExternalProductionRecord, decided: Polled) -> None:
        if decided.raised is not None:
            self._emit(PollRaised(task.id, task.name, decided.raised))
            if record.raised_in_row % RAISES_IN_ROW == 0:
                self._emit(PollsFailing(task.id, task.name, record.raised_in_row, decided.raised))
        elif record.progress_hint:
            self._emit(ExternalHint(task.id, task.name, record.progress_hint))

    async def _was_requeued(self, task: Task, since: int) -> bool:
        moves = await self._store.list_moves(task.id)
        return any(move.move == "requeue" and move.version > since for move in moves)

    async def _keep(self, token: Claim, kept: Keep) -> None:
        answer = await self._committer.submit(Unit(token, kept))
        if answer.verdict is not Verdict.DONE:
            raise ClaimLost(token.task_id, token.version)

    # what services and people do

    async def resolve(
        self,
        callback_token: str,
        outcome: Production | dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle,
        *,
        actor: str = "callback",
    ) -> ShownJob:
        """Take in what a service says by call-back, under the signed token that it was given: done, failed, or how far it is.

        Raises `CallbackRefused` for a wrong token, or while the job is not recorded yet (it may be sent again soon), and
        `ExternalAlreadyResolved` after the end. Who polls at that moment is fenced off.
        """

        async def attempt() -> ShownJob:
            task = await self._called_back(callback_token)
            job = await self._job_of(task)
            decided = called_back(task, outcome)
            seen = Seen(task.id, task.version, task.claim_version)
            assert self._settle is not None
            answer = await self._settle(task, seen, msgspec.structs.replace(decided, actor=actor))
            if answer.verdict is not Verdict.DONE:
                raise Stale
            return await self.show(job.stored.id)

        return await self._committer.transact(attempt, "resolve the external job")

    async def find_called(self, job_id: str, callback_token: str) -> ShownJob:
        """The job of that id (or of that task) that goes on, for a service that shows its token; raises as `resolve` does."""
        job = await self._job_of(await self._called_back(callback_token))
        if job_id not in (job.stored.id, job.record.render_job_id):
            raise CallbackRefused(_WRONG)
        return _shown(job)

    async def _called_back(self, callback_token: str) -> Task:
        task_id, _, signature = callback_token.partition(".")
        try:
            task = await self._store.find_task(parse_id(task_id, "task id"))
        except InvalidInput:
            task = None
        intent = None if task is None or task.namespace != self._namespace else intent_of(task)
        if task is None or intent is None or not is_signed(task.id, intent, signature):
            raise CallbackRefused(_WRONG)
        if task.finished:
            raise ExternalAlreadyResolved(task.id, task.state)
        if task.state != TaskState.AWAITING_EXTERNAL:
            raise CallbackTooEarly("The job is not recorded yet; send the call-back again in a moment. Nothing was changed.")
        return task

    async def cancel(self, job_id: str, *, actor: str, reason: str | None = None) -> ShownJob:
        """End the task and tell the service that the job is not wanted any more, by a task of its own that is retried."""
        job = await self._get(job_id)
        if job.stored.ended_at is not None:
            raise ExternalAlreadyResolved(job.record.render_job_id, "ended")
        assert self._cancel is not None
        await self._cancel(job.record.render_job_id, actor=actor, reason=reason)
        return await self.show(job.stored.id)

    async def poll_now(self, job_id: str, *, actor: str) -> ShownJob:
        """Make the job due now, whatever its interval says; `Refused` while it is being polled."""

        async def attempt() -> ShownJob:
            job = await self._get(job_id)
            task = await self._store.find_task(job.record.render_job_id)
            if task is None or task.state != TaskState.AWAITING_EXTERNAL:
                raise ExternalAlreadyResolved(job.record.render_job_id, "gone" if task is None else task.state)
            if task.owner_id is not None:
                raise Refused(f"Task {task.id} is being polled at this moment.")
            park = Park(
                "still_working",
                task.state,
                task.attempt,
                task.failures,
                task.takeovers,
                hold=task.hold,
                checkpoint=task.checkpoint,
                actor=actor,
                data=encode({"reason": "poll now"}),
            )
            unit = Unit(Seen(task.id, task.version, task.claim_version), park)
            await self._committer.commit(unit, PATIENCE)
            return await self.show(job.stored.id)

        return await self._committer.transact(attempt, f"poll the external job {job_id}")

    async def append_dispatched(self, task_id: str, handle: ExternalProductionHandle, *, specialist: str = "imported") -> ShownJob:
        """Say that a pending task's job is at its service already: the event is appended, and what follows from it (D34)."""
        check_handle(handle)
        task = await self._store.find_task(parse_id(task_id, "task id"))
        if task is None or task.namespace != self._namespace or task.state != TaskState.PENDING or task.owner_id is not None:
            raise Refused(f"Task {task_id} is not pending, or somebody works on it: no job can be appended to it.")
        intent = new_intent(self._ids, task)
        task.checkpoint = encode({INTENT: intent})
        awaiting = AwaitingExternal(handle, intent["token"], specialist)
        handed = settlement(task, awaiting, NO_RETRY)
        assert isinstance(handed, HandOff)
        park, rows = await self._dispatch(task, handed, awaiting)
        unit = Unit(Seen(task.id, task.version, task.claim_version), msgspec.structs.replace(park, actor="operator"), rows=rows)
        if (await self._committer.submit(unit, PATIENCE)).verdict is not Verdict.DONE:
            raise Refused(f"Task {task_id} changed at that moment; look again.")
        return await self.show(task.id)

    # jobs that nobody can poll (D30)

    async def give_up(self, lane_ids: Sequence[int]) -> int:
        """Fail due jobs of lanes that no live server serves, once none has for the grace period; how many that were."""
        now = await self._store.now()
        servers = await self._store.list_servers()
        count = 0
        for task_id in await self._store.list_unpolled(lane_ids, PAGE_LIMIT):
            task = await self._store.find_task(task_id)
            if task is None or task.state != TaskState.AWAITING_EXTERNAL or task.owner_id is not None or task.wake_at is not None:
                continue
            if not is_offered(task, servers, now):
                assert self._settle is not None
                problem = Problem(UNREGISTERED, unregistered_text(task.name, task.scope))
                seen = Seen(task.id, task.version, task.claim_version)
                answer = await self._settle(task, seen, msgspec.structs.replace(failure(problem), actor="engine"))
                count += answer.verdict is Verdict.DONE
        return count

    async def is_offered(self, task: Task) -> bool:
        """Whether a live server has the specialist for the task's name and scope, or had it within the grace period."""
        return is_offered(task, await self._store.list_servers(), await self._store.now())

    # what is stored with the end of tasks and runs that were not ended by their job

    async def rows_for_end(self, task: Task) -> tuple[Row, ...]:
        """What is stored with the cancel of a task that awaits a job."""
        job = await self._find_job(task) if task.state == TaskState.AWAITING_EXTERNAL else None
        return () if job is None else await self._canceled(job, "its task was canceled")

    async def tasks_for_end(self, task: Task) -> tuple[NewTask, ...]:
        """The task that tells the service of the cancel; also where the job may have been submitted, and was not recorded."""
        job = await self._find_job(task) if task.state == TaskState.AWAITING_EXTERNAL else None
        intent = intent_of(task)
        if job is None and (intent is None or task.owner_id is None):
            return ()
        external_job_id = None if job is None else job.record.external_job_id
        token = (intent or {}).get("token") if job is None else job.record.token
        return (self._canceling(task.namespace, task.name, task.scope, external_job_id, token, task.root_id, task.trace_id),)

    async def rows_for_run(self, run: Run) -> tuple[Row, ...]:
        """What is stored with the cancel of a run."""
        rows: tuple[Row, ...] = ()
        for job in await self._jobs_of_run(run):
            rows = (*rows, *await self._canceled(job, "its run was canceled"))
        return rows

    async def tasks_for_run(self, run: Run) -> tuple[NewTask, ...]:
        """The tasks that tell services of the cancel of a run."""
        tasks = []
        for job in await self._jobs_of_run(run):
            record, stored = job.record, job.stored
            name, scope = record.declared_render_type_ref, record.scope
            tasks.append(
                self._canceling(
                    stored.namespace, name, scope, record.external_job_id, record.token, stored.root_id, stored.trace_id
                )
            )
        for task in await self._store.list_tasks(TaskFilter(states=(TaskState.RUNNING,), run_id=run.id), PAGE_LIMIT):
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
        payload = self._value_store.seal(encode({"external_job_id": external_job_id, "token": token}))
        return NewTask(
            id=self._ids.new_id(),
            lane=Lane(namespace, EXTERNAL_CANCEL, ENGINE_LIST, name),
            payload=payload,
            policy=msgspec.json.encode(CANCEL_RETRY).decode(),
            scope=scope,
            root_id=root_id,
            trace_id=trace_id,
        )

    async def _canceled(self, job: Job, why: str) -> tuple[Row, ...]:
        event = resolved(await self._store.now(), job.record, failure=ExternalProductionFailure(why, CANCELED))
        return self._change(job, apply(job.record, event), event)

    async def _jobs_of_run(self, run: Run) -> list[Job]:
        jobs: list[Job] = []
        which = RecordFilter(ENTITY, namespace=self._namespace, live=True, run_id=run.id)
        while page := await self._store.list_records(which, PAGE_LIMIT):
            jobs += [_job(stored) for stored in page]
            which = replace(which, before_id=page[-1].id)
        return jobs

    # what is shown

    async def list(
        self, *, live: bool | None = True, run_id: str | None = None, before_id: str | None = None, limit: int = 50
    ) -> Jobs:
        """A page of jobs, newest first; by default those that go on, with `live=None` all."""
        if not 0 < limit <= PAGE_LIMIT:
            raise InvalidInput(f"limit must be from 1 to {PAGE_LIMIT}, not {limit}.")
        which = RecordFilter(
            ENTITY,
            namespace=self._namespace,
            live=live,
            run_id=None if run_id is None else parse_id(run_id, "run id"),
            before_id=None if before_id is None else parse_id(before_id, "cursor"),
        )
        return [_shown(_job(stored)) for stored in await self._store.list_records(which, limit)]

    async def show(self, job_id: str) -> ShownJob:
        """One job with its events, by its own id or by that of its task (the newest of these); or `ExternalJobNotFound`."""
        job = await self._get(job_id)
        return replace(_shown(job), events=await self.events(job.stored.id))

    async def events(self, record_id: str) -> tuple[ExternalEvent, ...]:
        """The events of a job that are kept, in the order in which they came."""
        items = await self._store.list_items(record_id, None, RING + 2)
        events = [msgspec.json.decode(value, type=ExternalEvent) for _, value in items]
        return tuple(sorted(events, key=lambda event: (event.at, event.number, event.kind)))

    async def why(self, task: Task) -> Reason | None:
        """What a task that awaits a job waits for, in one line."""
        job = await self._find_job(task)
        if job is None or task.wake_at is None:
            return None
        record = job.record
        said = f"the outside job {record.external_job_id} is working"
        said += f" ({record.progress_hint})" if record.progress_hint else ""
        said += f"; next poll at {as_text(task.wake_at)}, {record.polls} poll(s) so far"
        if record.raised_in_row:
            said += f"; the last {record.raised_in_row} raised: {record.last_error}"
        return Reason("next_poll", said)

    # records

    async def _get(self, job_id: str) -> Job:
        job_id = parse_id(job_id, "job id")
        stored = await self._store.find_record(job_id)
        if stored is None:
            which = RecordFilter(ENTITY, namespace=self._namespace, task_id=job_id)
            stored = next(iter(await self._store.list_records(which, 1)), None)
        if stored is None or stored.entity != ENTITY or stored.namespace != self._namespace:
            raise ExternalJobNotFound(job_id)
        return _job(stored)

    async def _find_job(self, task: Task) -> Job | None:
        """The live record of the task's job, by the id that was left with the task."""
        record_id = (intent_of(task) or {}).get("record_id")
        stored = None if record_id is None else await self._store.find_record(record_id)
        return None if stored is None or stored.ended_at is not None else _job(stored)

    async def _job_of(self, task: Task) -> Job:
        job = await self._find_job(task)
        if job is None:
            raise ExternalJobNotFound(task.id)
        return job

    def _change(self, job: Job, record: ExternalProductionRecord, event: ExternalEvent) -> tuple[Row, ...]:
        ended = record.completed_at is not None
        change = ChangeRecord(
            job.stored.id,
            job.stored.version,
            _body(record),
            move="resolve" if ended else None,
            from_state=EXTERNAL.initial if ended else None,
            to_state="ended" if ended else None,
            ended=ended,
            data=encode({"error_code": record.error_code}) if record.error_code is not None else None,
        )
        return (change, PutItems(job.stored.id, (_item(event),)))


def _shown(job: Job) -> ShownJob:
    record = job.record
    state = "awaiting_external"
    if record.completed_at is not None:
        state = "completed" if record.failure_detail is None else "canceled" if record.error_code == CANCELED else "failed"
    return ShownJob(job.stored.id, state, job.stored.run_id, record)


def _job(stored: Record) -> Job:
    try:
        return Job(stored, msgspec.json.decode(stored.body, type=ExternalProductionRecord))
    except msgspec.MsgspecError as error:
        raise UnreadableValue(f"The record {stored.id} of an outside job cannot be read here: {stored.body[:200]}") from error


def _body(record: ExternalProductionRecord) -> str:
    return msgspec.json.encode(record).decode()


def _item(event: ExternalEvent) -> tuple[str, str]:
    return event.key, msgspec.json.encode(event).decode()
