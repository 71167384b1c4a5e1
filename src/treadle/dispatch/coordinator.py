"""`AgentCoordinator`: jobs for agents. Each job is a task of the queue: claimed, renewed, settled and retried like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, TypeVar

from treadle.api.lists import DesiredWorkers
from treadle.api.options import PYTHON
from treadle.api.tasks import TaskSpec
from treadle.dispatch.config import DispatchConfig
from treadle.dispatch.errors import JobNotFound, MaxRetriesExceeded, StorageError, WorkerUnavailable
from treadle.dispatch.held_jobs import HeldJob, HeldJobs
from treadle.dispatch.host import DispatchHost, JobHandler
from treadle.dispatch.records import (
    CLAIMED_BY,
    SHOWN_STATES,
    WORKER_ID,
    GitHubIssue,
    InvalidIssue,
    TaskState,
    TaskStatus,
    check_worker,
    end_line,
    issue_json,
    make_issue,
    notes_of,
    state_of,
    status_of,
    worker_of,
)
from treadle.engine import Engine
from treadle.engine.machine import HostMachine, SystemMachine, default_name
from treadle.kernel.queue.decide import TaskDecision, failure, policy_of, refusal, settlement, settlement_of
from treadle.kernel.queue.service import Enqueued, Queue
from treadle.kernel.queue.waker import Waker
from treadle.kernel.store.committer import claim_tasks
from treadle.kernel.store.lookups import PAGE_LIMIT
from treadle.kernel.store.units import Finish, Keep, Unit, Verdict
from treadle.kernel.telemetry.events import LoopError, StoreTrouble
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import ClaimLost, InvalidInput, Refused, RetriesUsedUp, StoreError, TaskNotFound, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.names import HANDLER, QueueKey, check_key
from treadle.model.outcomes import Failed, Outcome, Problem, Released, Retry, Succeeded
from treadle.model.retry import NO_RETRY
from treadle.model.tasks import LogLine, Task
from treadle.model.text import safe_logger
from treadle.model.values import Json, decode_object, encode

_log = safe_logger("treadle.dispatch")

ACTOR = "dispatch"
"""The default actor in the log."""
DELAYS = (1.0, 2.0, 4.0)
"""Seconds before each retry of a failing store."""
LOOP_PAUSE = 10.0
"""Seconds that a worker loop waits after an error of its own."""


T = TypeVar("T")


class AgentCoordinator:
    """Enqueues issues, hands them to workers, and tracks them; use `async with`, or call `stop` at the end.

    It holds the jobs that it dequeues: it renews their claims and settles under them. An object belongs to its engine's loop.
    Each call retries a failing store three times, after 1, 2 and 4 s, and then raises `StorageError`.
    """

    def __init__(self, engine: Engine, config: DispatchConfig | None = None, *, machine: HostMachine | None = None) -> None:
        self.engine = engine
        self._machine = machine or SystemMachine()
        self.config = config or DispatchConfig()
        settings = engine.kernel.settings
        self._queue_key = QueueKey(settings.namespace, HANDLER, self.config.task_list, self.config.name)
        self._queue_id: int | None = None
        self._queue = Queue(replace(engine.kernel.core, patience=0))  # without its own waiting, because callers retry
        self._holder = HeldJobs(engine, self.config, self._time_out, self._machine)
        self._waker = Waker(
            engine.kernel.store, engine.kernel.clock, self._holder.lease_for, engine.kernel.committer.notify, engine.kernel.emit
        )
        self._taking = 0
        self._draining = False
        self._host: DispatchHost | None = None
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # the queue

    async def enqueue(
        self,
        issue: GitHubIssue | Mapping[str, Any],
        *,
        priority: int = 0,
        delay: Duration | None = None,
        metadata: Mapping[str, Json] | None = None,
        unique_key: str | None = None,
        idempotency_key: str | None = None,
        trace_id: str | None = None,
        actor: str = PYTHON,
    ) -> str:
        """Store a pending job for the issue and return its id. Smaller priorities run first.

        If a live job has the `unique_key`, or a job of the last seven days the `idempotency_key`, return the id of that job.
        """
        return (
            await self.submit(
                issue,
                priority=priority,
                delay=delay,
                metadata=metadata,
                unique_key=unique_key,
                idempotency_key=idempotency_key,
                trace_id=trace_id,
                actor=actor,
            )
        ).id

    async def submit(
        self,
        issue: GitHubIssue | Mapping[str, Any],
        *,
        priority: int = 0,
        delay: Duration | None = None,
        metadata: Mapping[str, Json] | None = None,
        unique_key: str | None = None,
        idempotency_key: str | None = None,
        trace_id: str | None = None,
        actor: str = PYTHON,
    ) -> Enqueued:
        """Do the same as `enqueue`, and return whether the job is new."""
        config = self.config
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidInput(f"metadata is a JSON object, not {type(metadata).__name__}.")
        spec = TaskSpec(
            id=self.engine.kernel.ids.new_id(),  # one id for all attempts, so that a repeated commit stores nothing twice
            name=config.name,
            task_list=config.task_list,
            payload={"issue": issue_json(make_issue(issue)), "metadata": dict(metadata or {})},
            priority=priority,
            delay=delay,
            unique_key=unique_key,
            idempotency_key=idempotency_key,
            limit_key=config.limit_key,
            limit=config.max_concurrent_tasks,
            retry=config.retry,
            timeout=config.task_timeout,
            trace_id=trace_id,
            created_by=actor,
        )
        self._queue.check([spec])
        return (await self._stored("enqueueing a job", lambda: self._queue.enqueue([spec])))[0]

    async def dequeue(self, worker_id: str, *, actor: str | None = None) -> TaskState | None:
        """Return the next job, running and held by this object for that worker; None if there is none.

        With an `actor` (the name of a token), only that actor can report its status.

        Raises `WorkerUnavailable` while this coordinator drains, and at the limit of running jobs: call again later.
        """
        check_key(worker_id, "worker id")
        if self._draining:
            raise WorkerUnavailable("This coordinator is draining and hands out no more jobs; use another one, or try again later.")
        if len(self._holder.held) + self._taking >= self.config.max_concurrent_tasks:
            raise WorkerUnavailable(f"{len(self._holder.held)} jobs run here, which is the limit; try again when one has ended.")
        self._taking += 1
        try:
            while (holding := await self._stored("dequeueing a job", lambda: self._take(worker_id))) is not None:
                if (job := await self._assign(holding, worker_id, actor)) is not None:
                    return job
        finally:
            self._taking -= 1
        if await self._stored("reading the limit", self._is_full):
            raise WorkerUnavailable("The limit of running jobs on all machines is reached; try again when one has ended.")
        return None

    async def update_status(
        self,
        task_id: str,
        status: TaskStatus | str,
        error: str | None = None,
        *,
        result: Mapping[str, Json] | None = None,
        retry: bool = False,
        worker_id: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Set the status of a job: completed, failed (permanently, or with `retry` by its policy), pending (released), canceled.

        If this object dequeued the job, it settles under the claim, or raises `ClaimLost`. Otherwise the current holder loses
        the job; with a `worker_id` or an `actor`, only if these had it last, else `ClaimLost`. A repeated call is a no-op, and
        logged. Raises `JobNotFound`, and `IllegalTransition` for an impossible transition.
        """
        wanted = TaskStatus.of(status)
        if error is not None and wanted not in (TaskStatus.FAILED, TaskStatus.CANCELED):
            raise InvalidInput(f"Pass an error only with failed or canceled, not with {wanted}.")
        if wanted is TaskStatus.CANCELED:
            await self.cancel(task_id, reason=error, actor=actor or ACTOR)
            return
        task = await self._get(task_id)
        check_worker(task, worker_id, actor)
        if status_of(task) is wanted:
            _log.info("task %s is already %s: nothing was done", task.id, wanted)
            return
        held = self._holder.held.get(task.id)
        if held is None and (lost := self._holder.lost.get(task.id)) is not None:
            raise ClaimLost(lost.task_id, lost.version)
        match wanted:
            case TaskStatus.COMPLETED:
                outcome: Outcome = Succeeded(dict(result or {}))
            case TaskStatus.FAILED:
                problem = Problem("failed", error or "failed")
                outcome = Retry(problem) if retry else Failed(problem)
            case TaskStatus.PENDING if held is not None:
                outcome = Released.by_holder("given back", held.task.claim_version)
            case TaskStatus.PENDING:
                raise Refused(f"Task {task.id} is {status_of(task)} and not held here; `retry` makes a failed one pending.")
            case _:
                raise Refused(f"Task {task.id} is {status_of(task)}; only `dequeue` makes a job running.")
        if held is not None:
            await self._settle(held, outcome)
        else:
            await self._end(task, outcome, worker_id, actor)

    async def retry(self, task_id: str, *, actor: str = ACTOR) -> None:
        """Make a failed (or canceled) job pending again, due after the delay of its policy; this counts as an attempt.

        Raises `MaxRetriesExceeded`, and changes nothing, when its retries are exhausted. A job that is already pending stays
        unchanged, which is logged.
        """
        before = await self._get(task_id)
        if before.failures >= policy_of(before).retries:
            raise MaxRetriesExceeded(before.id, before.failures)
        if status_of(before) is TaskStatus.PENDING:
            _log.info("task %s is already pending: nothing was done", before.id)
            return

        async def again() -> None:
            task = await self.engine.kernel.store.tasks.find(before.id)
            if task is not None and not task.finished and task.failures == before.failures + 1:
                return  # the response to an earlier attempt was lost
            await self._queue.try_again(before.id, actor=actor)

        try:
            await self._stored("retrying a job", again)
        except RetriesUsedUp as error:
            raise MaxRetriesExceeded(before.id, error.retries) from None

    async def cancel(self, task_id: str, *, reason: str | None = None, actor: str = ACTOR) -> None:
        """Cancel a live job, even if it is held; a repeated call is a no-op. A job that ended otherwise raises
        `IllegalTransition`."""
        task = await self._get(task_id)
        await self._stored("canceling a job", lambda: self._queue.cancel(task.id, actor=actor, reason=reason))

    # reads

    async def get_task(self, task_id: str) -> TaskState | None:
        """Return the job in any state, or None."""
        try:
            task = await self._get(task_id)
        except JobNotFound:
            return None
        return await self._read(task)

    async def get_all_tasks(
        self, *, status: TaskStatus | str | None = None, before_id: str | None = None, limit: int | None = None
    ) -> list[TaskState]:
        """Return all jobs, newest first, read page by page; with `limit`, one page of up to that many jobs (at most 1000).

        `iter_tasks` does the same without holding all of them in memory.
        """
        if limit is not None:
            return (await self.list_jobs(status=status, before_id=before_id, limit=limit))[0]
        return [job async for job in self.iter_tasks(status=status, before_id=before_id)]

    async def list_jobs(
        self, *, status: TaskStatus | str | None = None, before_id: str | None = None, limit: int = PAGE_LIMIT
    ) -> tuple[list[TaskState], str | None, bool]:
        """Return a page of jobs, newest first, the `before_id` of the next page, and whether there may be one."""
        states = () if status is None else SHOWN_STATES[TaskStatus.of(status)]
        _, kind, task_list, name = self._queue_key

        async def read() -> tuple[list[TaskState], str | None, bool]:
            tasks = await self.engine.kernel.reads.list_tasks(
                states=states, name=name, task_list=task_list, kind=kind, before_id=before_id, limit=limit
            )
            jobs = [job for task in tasks if (job := await self._open_valid(task)) is not None]
            return jobs, tasks[-1].id if tasks else None, len(tasks) == limit

        return await self._stored("listing jobs", read)

    async def iter_tasks(self, *, status: TaskStatus | str | None = None, before_id: str | None = None) -> AsyncIterator[TaskState]:
        """Iterate over all jobs, newest first, page by page; jobs enqueued meanwhile are not included."""
        more = True
        while more:
            page, before_id, more = await self.list_jobs(status=status, before_id=before_id, limit=PAGE_LIMIT)
            for job in page:
                yield job

    async def get_logs(self, task_id: str, limit: int = 100) -> list[LogLine]:
        """Return the job's log lines, oldest first: the ends of its executions, and lines of its handler."""
        task = await self._get(task_id)
        return await self._stored("reading lines", lambda: self.engine.kernel.store.log.list_lines(task.id, limit))

    def holds(self, task_id: str) -> bool:
        """Whether this object still holds the job, for callers that work for a long time."""
        return task_id in self._holder.held

    async def desired_workers(self, /, **options: Any) -> DesiredWorkers:
        """Return the number of worker processes like this one that the jobs could use; options as for `Reads.desired_workers`."""
        options = {"concurrency": self.config.max_concurrent_tasks, **options}
        return await self._stored(
            "measuring the load",
            lambda: self.engine.kernel.reads.desired_workers(self.config.task_list, name=self.config.name, **options),
        )

    # work

    async def start(self, handler: JobHandler, *, worker_id: str | None = None, grace: Duration = 30) -> None:
        """Run the handler for jobs in this process until `stop`, up to `max_concurrent_tasks` concurrently.

        It takes (task) or (task, ctx), sync or async. Its return value completes the job; exceptions, and a dict with a false
        `"success"` (False, None, 0, "") and an `"error"`, are retried by the job's policy, after which the job has failed. Store
        errors are logged and retried.
        """
        if self._host is not None:
            raise WorkerUnavailable("This coordinator already runs a handler; stop it first, or create another coordinator.")
        own_name = default_name(self._machine, self._holder.owner_id)
        name = own_name if worker_id is None else check_key(worker_id, "worker id")
        seconds = milliseconds(grace, "grace") / 1000

        async def begin() -> DispatchHost:
            host = DispatchHost(self.engine, self.config, name, handler, seconds, self._machine)
            await host.start()
            return host

        self._draining = False
        self._ended.clear()
        self._host = await self._stored("starting a worker", begin)

    async def run(self, handler: JobHandler, *, worker_id: str | None = None, grace: Duration = 30) -> None:
        """Call `start`, and return when `stop` is called or this is canceled; waits for an unreachable store at the start."""
        self._ended.clear()
        while self._host is None and not self._ended.is_set():
            try:
                await self.start(handler, worker_id=worker_id, grace=grace)
            except StorageError as error:
                self.engine.kernel.emit(LoopError("dispatch", f"{error}; again in {LOOP_PAUSE:g} s"))
                await self.engine.kernel.clock.sleep(LOOP_PAUSE)
        try:
            await self._ended.wait()
        finally:
            await self.stop()

    def drain(self) -> None:
        """Dequeue nothing from now on; held jobs continue, and can be settled."""
        self._draining = True
        if self._holder.state == "running":
            self._holder.state = "draining"

    async def stop(self) -> None:
        """Stop gracefully: no more jobs, running handlers get their grace, held jobs are released. Idempotent.

        The coordinator can be used again afterwards: `dequeue` and `start` begin anew.
        """
        self.drain()
        host, self._host = self._host, None
        if host is not None:
            await host.stop()
        for holding in list(self._holder.held.values()):
            with suppress(StorageError, ClaimLost):  # its lease expires
                await self._settle(holding, Released("its coordinator stopped", 0))
        await self._holder.close()
        self._draining = False
        self._ended.set()

    # internal

    async def _stored(self, doing: str, work: Callable[[], Awaitable[T]]) -> T:
        """Retry an idempotent call, as a commit without a response may have been applied; then raise `StorageError`."""
        for delay in DELAYS:
            try:
                return await work()
            except StoreError as error:
                self.engine.kernel.emit(StoreTrouble(doing, str(error), delay))
            await self.engine.kernel.clock.sleep(delay)
        try:
            return await work()
        except StoreError as error:
            raise StorageError(doing, len(DELAYS) + 1, error) from error

    async def _get(self, task_id: str) -> Task:
        """Return the job's task, or raise `JobNotFound`, also for a task of another queue."""
        try:
            wanted = parse_id(task_id, "task id")
            task = await self._stored("reading a job", lambda: self.engine.kernel.reads.get_task(wanted))
        except InvalidInput:
            raise JobNotFound(str(task_id)) from None
        except TaskNotFound:
            raise JobNotFound(wanted) from None
        if task.queue != self._queue_key:
            raise JobNotFound(wanted)
        return task

    async def _read(self, task: Task) -> TaskState:
        """Return the job with its issue; raise `InvalidIssue` for a task that another program stored."""
        return await self._stored("reading a job", lambda: self._open(task))

    async def _open(self, task: Task) -> TaskState:
        text = await self.engine.kernel.value_store.unpack_text(task.payload) if task.payload.startswith("@") else task.payload
        return state_of(task, decode_object(text))

    async def _open_valid(self, task: Task) -> TaskState | None:
        """Return the job; an invalid task must not hide the others."""
        try:
            return await self._open(task)
        except (InvalidIssue, UnreadableValue) as error:
            _log.warning("task %s is left out: %s", task.id, error)
            return None

    async def _take(self, worker_id: str) -> HeldJob | None:
        """Claim and hold one executable job; wake due jobs first, because there may be no worker to do it."""
        store, clock = self.engine.kernel.store, self.engine.kernel.clock
        await self._holder.open(worker_id)
        if self._queue_id is None:
            self._queue_id = (await store.tasks.queue_ids([self._queue_key]))[self._queue_key]
        woken = False
        while True:
            sent_at = clock.monotonic()
            tasks = await claim_tasks(store, [self._queue_id], self._holder.owner_id, self._holder.lease_for, 1)
            if tasks and (problem := refusal(tasks[0])) is not None:
                await self.engine.kernel.run_services.settler.settle(tasks[0], tasks[0].claim, failure(problem), 0)
                await self._log_end(tasks[0], problem.message)
            elif tasks:
                return self._holder.hold(tasks[0], sent_at)
            elif woken:
                return None
            else:
                woken = True
                await self._waker.tick()

    async def _assign(self, holding: HeldJob, worker_id: str, actor: str | None) -> TaskState | None:
        """Store the worker of the job; None if the job is lost or invalid. A canceled caller releases the job; one whose
        assignment cannot be stored is left to its lease."""
        task = holding.task
        task.checkpoint = encode({**notes_of(task), WORKER_ID: worker_id, CLAIMED_BY: actor}, "metadata")
        unit = Unit(task.claim, Keep(task.checkpoint))
        try:
            answer = await self._stored("assigning a job", lambda: self.engine.kernel.committer.submit(unit, 0))
            if answer.verdict is Verdict.DONE:
                return await self._read(task)
        except InvalidIssue as error:
            with suppress(ClaimLost):
                await self._settle(holding, Failed(Problem(error.code, str(error))))
            return None
        except BaseException as error:
            self._holder.lose(holding)
            if isinstance(error, asyncio.CancelledError):
                released = Released.by_holder("the caller that dequeued it was canceled", task.claim_version)
                unit = Unit(task.claim, settlement_of(settlement(task, released, NO_RETRY)))
                self.engine.kernel.committer.submit_callback(unit, lambda _: None)
            raise
        self._holder.lose(holding)
        return None

    async def _is_full(self) -> bool:
        limits = await self.engine.kernel.store.operators.list_limits(self._queue_key.namespace)
        now = await self.engine.kernel.store.now()
        return any(limit.key == self.config.limit_key and limit.next_start_for(now) != 0 for limit in limits)

    async def _settle(self, holding: HeldJob, outcome: Outcome, *, forever: bool = False) -> None:
        """Commit the outcome of a held job under its claim; after `StorageError` it is still held, and can be settled again."""
        task = holding.task
        decided = self._decide(task, outcome)
        holding.settling = True
        try:
            if forever:
                answer = await self.engine.kernel.run_services.settler.settle(task, task.claim, decided)
            else:
                answer = await self._stored(
                    "settling a job", lambda: self.engine.kernel.run_services.settler.settle(task, task.claim, decided, 0)
                )
        finally:
            holding.settling = False
        if answer.verdict is not Verdict.DONE:
            self._holder.lose(holding)
            raise ClaimLost(task.id, task.claim_version)
        if isinstance(decided, Finish):
            self._holder.drop(holding)
        else:
            self._holder.lose(holding)  # another worker may get it next: a late call about this execution is refused
        await self._note(task, outcome)

    def _decide(self, task: Task, outcome: Outcome) -> TaskDecision:
        policy = policy_of(task)
        jitter_fraction = self.engine.kernel.ids.random() if policy.jitter else 0.0
        return settlement(task, outcome, policy, jitter_fraction, self.engine.kernel.settings.payload_limit)

    async def _end(self, task: Task, outcome: Outcome, worker_id: str | None, actor: str | None) -> None:
        """End a job that is not held here, under the version read; with a worker id, only if that worker still has it."""
        decided = self._decide(task, outcome)
        if not isinstance(decided, Finish):
            raise Refused(f"Task {task.id} is not held here: only the coordinator that dequeued it can retry it by its policy.")
        finish = Finish(
            decided.transition, decided.state, decided.result, decided.error, decided.error_code, decided.fingerprint, ACTOR
        )
        unchanged = lambda found: check_worker(found, worker_id, actor)  # noqa: E731
        await self._stored("ending a job", lambda: self._queue.end(task.id, finish, unchanged))
        await self._note(task, outcome)

    async def _time_out(self, holding: HeldJob) -> None:
        """Fail an execution that took too long."""
        seconds = (holding.task.timeout_for or 0) / 1000
        problem = Problem("timeout", f"The attempt took longer than {seconds:g} s and was stopped.")
        with suppress(ClaimLost):
            await self._settle(holding, Retry(problem), forever=True)

    async def _note(self, task: Task, outcome: Outcome) -> None:
        """Count the end of an execution, and write its log line."""
        match outcome:
            case Succeeded():
                self._holder.handled += 1
                await self._log_end(task)
            case Failed(problem) | Retry(problem):
                self._holder.handled += 1
                self._holder.failed += 1
                await self._log_end(task, problem.message)

    async def _log_end(self, task: Task, error: str | None = None) -> None:
        """Write the log line of an execution, if the store is reachable; the job does not depend on it."""
        kernel = self.engine.kernel
        try:
            await kernel.store.log.append_lines([end_line(task.id, kernel.clock.now(), task.attempt, worker_of(task), error)])
        except StoreError as trouble:
            kernel.emit(StoreTrouble("writing a log line", str(trouble), 0.0))


_coordinators: dict[int, AgentCoordinator] = {}


def coordinator_of(engine: Engine) -> AgentCoordinator:
    """Return the engine's coordinator, with the default configuration; created on first use."""
    coordinator = _coordinators.get(id(engine))
    if coordinator is None:
        coordinator = _coordinators[id(engine)] = AgentCoordinator(engine)

        async def stop() -> None:
            await _coordinators.pop(id(engine)).stop()

        engine.kernel.before_close.append(stop)
    return coordinator
