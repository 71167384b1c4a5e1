"""Reads of external jobs, and the reason for which one waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from treadle.api.external_jobs import ExternalJobDetail, ExternalJobEvent, ExternalJobPage
from treadle.api.tasks import Why
from treadle.api.wire import record_of
from treadle.kernel.core import Core, Service
from treadle.kernel.external.decide import is_polled
from treadle.kernel.external.records import ENTITY, Job, intent_of, read_any_job, read_job, show_job, state_of
from treadle.kernel.queue.why import Reason
from treadle.kernel.store.lookups import check_limit, every_record, find_id
from treadle.kernel.store.records import RecordFilter
from treadle.model.clock import as_text
from treadle.model.errors import UnreadableValue, not_found
from treadle.model.external import RING, ExternalEvent, UnexpectedSpecialistResultError, project
from treadle.model.ids import Ref, parse_id
from treadle.model.records import UNREADABLE, Record
from treadle.model.runs import Run
from treadle.model.stored import read
from treadle.model.tasks import Task
from treadle.model.values import decode_error


class ExternalJobReads(Service):
    """The external jobs of one namespace, without changing them."""

    def __init__(self, core: Core, explain: Callable[[str], Awaitable[Reason]]) -> None:
        """`explain` gives the reason for the state of a task."""
        super().__init__(core)
        self._explain = explain

    async def list(
        self, *, every: bool = False, run_id: Ref | None = None, limit: int = 50, before: Ref | None = None
    ) -> ExternalJobPage:
        """Return a page of jobs, newest first: the live ones, with `every` also those that have ended."""
        check_limit(limit)
        which = RecordFilter(
            ENTITY,
            namespace=self._namespace,
            live=None if every else True,
            run_id=None if run_id is None else await find_id(self._store, self._namespace, "run", run_id),
            before_id=None if before is None else parse_id(before, "cursor"),
        )
        page = [show_job(read_any_job(stored)) for stored in await self._store.records.list_matching(which, limit)]
        return ExternalJobPage(page, next_before=page[-1].id if len(page) == limit else None)

    async def get(self, job_id: Ref) -> ExternalJobDetail:
        """Return a job with its events, by its own id or its task's (its newest job); or raise `NotFound`."""
        job = await self._get(job_id)
        record, state = job.record, state_of(job.record)
        reason = await self._explain(job.stored.task_id or record.render_job_id)  # a newer record's text may be of any kind
        why = Why(record.render_job_id, record.declared_render_type_ref, state, reason.code, reason.text)
        events = [record_of(ExternalJobEvent, event) for event in await self.events(job.stored.id)]
        return record_of(ExternalJobDetail, job.stored, record, state=state, events=events, why=why)

    async def events(self, record_id: str) -> tuple[ExternalEvent, ...]:
        """Return the stored events of a job, in order of arrival."""
        items = await self._store.records.list_items(record_id, None, RING + 2)
        events = []
        for _, value in items:
            with suppress(UnreadableValue):  # `store verify` reports it
                events.append(read(ExternalEvent, value))
        return tuple(sorted(events, key=lambda event: (event.at, event.number, event.kind)))

    async def why(self, task: Task) -> Reason | None:
        """Explain in one line why a task that awaits an external job waits."""
        job = await self._find_job(task)
        if job is None:
            return None
        record = job.record
        if record.error_code == UNREADABLE:
            return Reason(UNREADABLE, f"{record.failure_detail} `treadle external rebuild` repairs it if its events can be read.")
        text = f"the external job {record.external_job_id} is working"
        text += f" ({record.progress_hint})" if record.progress_hint else ""
        text += f"; next poll {'now' if task.wake_at is None else f'at {as_text(task.wake_at)}'}, {record.polls} poll(s) so far"
        if task.error:
            text += f"; polls back off: {decode_error(task.error).get('message', '')}"
        elif record.raised_in_row:
            text += f"; the last {record.raised_in_row} raised: {record.last_error}"
        if is_polled(task, await self._store.servers.list_all(self._namespace), await self._store.now()):
            return Reason("next_poll", text)
        where = "" if task.scope is None else f" in the scope {task.scope}"
        what = "start a worker that has it with `treadle worker --handlers MODULE`"
        return Reason("no_worker", f"no live worker has the specialist {task.name}{where} to poll it: {what}; {text}")

    async def _get(self, job_id: Ref) -> Job:
        job_id = await find_id(self._store, self._namespace, ENTITY, job_id)
        stored = await self._store.records.find(job_id)
        if stored is None:
            which = RecordFilter(ENTITY, namespace=self._namespace, task_id=job_id)
            stored = next(iter(await self._store.records.list_matching(which, 1)), None)
        if stored is None or stored.entity != ENTITY or stored.namespace != self._namespace:
            raise not_found("external_job", job_id)
        return read_any_job(stored)

    async def _find_job(self, task: Task) -> Job | None:
        """Return the live record of the task's job, by the id in the task's checkpoint."""
        record_id = (intent_of(task) or {}).get("record_id")
        stored = None if record_id is None else await self._store.records.find(record_id)
        return None if stored is None or stored.ended_at is not None else await self._any_job(stored)

    async def _any_job(self, stored: Record) -> Job:
        """Decode the record; one that cannot be read is made from its events, or from its columns if they cannot be read either."""
        try:
            return read_job(stored)
        except UnreadableValue:
            with suppress(UnexpectedSpecialistResultError, UnreadableValue):
                return Job(stored, project(await self.events(stored.id)))
        return read_any_job(stored)

    async def _job_of(self, task: Task) -> Job:
        job = await self._find_job(task)
        if job is not None and job.record.error_code == UNREADABLE:
            raise UnreadableValue(str(job.record.failure_detail))
        if job is None:
            raise not_found("external_job", task.id)
        return job

    async def _jobs_of_run(self, run: Run) -> tuple[Job, ...]:
        which = RecordFilter(ENTITY, namespace=self._namespace, live=True, run_id=run.id)
        return tuple([await self._any_job(stored) async for stored in every_record(self._store, which)])
