"""Remote workers: programs in any language that register, claim tasks, and settle them, without access to the store.

To the rest of the engine a remote worker is a server: it has a row with its handlers and lists, sends heartbeats, is shown as
lost when it stops sending them, and its id is the owner of its claims. It renews the leases of its claims itself; when it stops,
they expire and other workers take over. `held_work` has the operations on its claims.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from treadle.api.work import Heartbeat
from treadle.kernel.approvals.service import ProcessDue
from treadle.kernel.claims import take
from treadle.kernel.core import Core
from treadle.kernel.external.decide import unregistered_text
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.decide import TaskDecision, decide, failure, refusal, settle_refused, settlement_of
from treadle.kernel.remote_workers.claim_waiters import ClaimWaiters
from treadle.kernel.remote_workers.decide import check_list, check_names, claim_of, claimed, lease_of, wants_of
from treadle.kernel.remote_workers.held_work import HeldWork, Presence
from treadle.kernel.store.committer import claim_tasks
from treadle.kernel.store.lookups import every_task
from treadle.kernel.store.queries import Renewal, TaskFilter
from treadle.kernel.store.units import Verdict
from treadle.kernel.telemetry.events import LoopError, TaskSettled, TaskTaken, WorkerStarted, WorkerStopped
from treadle.kernel.telemetry.observer import TasksClaimed, timed
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import ClaimLost, InvalidInput, StoreError, TreadleError, not_found
from treadle.model.external import UNREGISTERED
from treadle.model.ids import parse_id
from treadle.model.lists import check_count
from treadle.model.names import (
    DEFAULT_LIST,
    DEFAULT_NAMESPACE,
    HANDLER,
    check_key,
    check_pattern,
)
from treadle.model.outcomes import Problem, Released
from treadle.model.retry import NO_RETRY
from treadle.model.states import TaskState
from treadle.model.tasks import ClaimedTask, Server, Task
from treadle.model.values import shown

MAX_WAIT_FOR = 60_000
"""Milliseconds that a claim may wait for tasks."""
CLAIM_LIMIT = 250
"""Maximum number of tasks per claim."""
MAX_WORKER_CONCURRENCY = 10_000
MAX_CLAIMS = 1000
"""Maximum number of claims per heartbeat."""
POLL_LEFT_FOR = 1_000
"""Milliseconds after which an external job's poll that reached a remote worker is due again; for twice that time only this
process's specialists claim from its queue, so that they get it."""
_PAGE = 1000


class RemoteWorkers(HeldWork):
    """The remote workers of one namespace, in one of the processes that serve them."""

    def __init__(
        self,
        core: Core,
        external_jobs: ExternalJobs,
        *,
        lease_for: int,
        process_due: ProcessDue,
        is_prompt: Callable[[str], bool] = lambda name: False,
        **options: Any,
    ) -> None:
        super().__init__(core, external_jobs, lease_for=lease_for, **options)
        self._suffix = "" if self._namespace == DEFAULT_NAMESPACE else f" in {self._namespace}"
        """Suffix of the service name that identifies the namespace in the shared list of servers; token names have no spaces."""
        self._process_due = process_due
        self._is_prompt = is_prompt
        self._waiters = ClaimWaiters(core, lease_for, self._claim, self._give_back, self._keep_alive)

    # registration

    async def register(
        self,
        name: str,
        *,
        handlers: Iterable[str],
        task_lists: Iterable[str] = (DEFAULT_LIST,),
        concurrency: int = 1,
        heartbeat_every: Duration = 10,
        host: str = "outside",
        version: str = "",
        release: str = "",
        actor: str = "outside",
    ) -> Server:
        """Register a worker under a new id, the id of its server row. `handlers` are names, short names or globs (`billing.*`).

        It is shown as lost after three missed heartbeats, one every `heartbeat_every`; claims and renewals count as heartbeats.
        `actor` registered it, and is stored as the service name, with the namespace unless that is the default.
        """
        patterns, lists = check_names(handlers, "handlers", check_pattern), check_names(task_lists, "task_lists", check_list)
        check_key(name, "name of a worker")
        check_key(host, "host")
        check_key(actor, "actor")
        for what, text in (("version", version), ("release", release)):
            if text:
                check_key(text, what)
        every_for = milliseconds(heartbeat_every, "heartbeat_every", positive=True)
        if check_count(concurrency, "concurrency") > MAX_WORKER_CONCURRENCY:
            raise InvalidInput(f"concurrency must be at most {MAX_WORKER_CONCURRENCY}, not {concurrency}.")
        server = Server(
            id=self._ids.new_id(),
            name=name,
            host=host,
            pid=0,
            version=version,
            release=release,
            state="running",
            handlers=patterns,
            task_lists=lists,
            concurrency=concurrency,
            heartbeat_every_for=every_for,
            service_name=f"{actor}{self._suffix}",
            namespace=self._namespace,
        )
        await self._store.servers.save(server)
        self._emit(WorkerStarted(server.id, tuple(patterns)))
        return await self._presence.touch(server.id)

    async def registered_by(self, worker_id: str) -> str:
        """Return the actor that registered the worker; raise `NotFound`, also for a worker of another namespace."""
        worker_id = parse_id(worker_id, "worker id")
        server = await self._presence.get(worker_id)
        if not server.service_name.endswith(self._suffix):
            raise not_found("worker", worker_id)
        return server.service_name.removesuffix(self._suffix)

    async def beat(
        self,
        worker_id: str,
        *,
        running: int | None = None,
        claims: Iterable[tuple[str, int]] = (),
        lease_for: Duration | None = None,
    ) -> Heartbeat:
        """Store a heartbeat and renew the claims (task id, claim version); return the state of each.

        `running` is the number of tasks in progress, for display (default: the number of claims, if any).
        """
        lease = lease_of(lease_for, self._lease_for)
        worker_id = parse_id(worker_id, "worker id")
        renewals = [Renewal(claim_of(worker_id, *claim)) for claim in claims]
        if len(renewals) > MAX_CLAIMS:
            raise InvalidInput(f"A heartbeat names at most {MAX_CLAIMS} claims, not {len(renewals)}.")
        if running is not None and (type(running) is not int or running < 0):
            raise InvalidInput(f"running must be the number of tasks in progress, not {shown(running)}.")
        server = await self._presence.touch(worker_id, running if running is not None else len(renewals) if renewals else None)
        return Heartbeat(server.id, await self._renew(renewals, lease) if renewals else [])

    async def leave(self, worker_id: str) -> int:
        """Remove the worker: end its waiting claims, and release the tasks that it holds; return their number."""
        worker_id = parse_id(worker_id, "worker id")
        server = await self._presence.touch(worker_id, 0, "stopped")
        self._presence.forget(worker_id)
        self._waiters.dismiss(worker_id)
        released = 0
        for task in await self._list_held(worker_id):
            try:
                await self._finish(self._settle(task, task.claim, Released.by_holder("its worker left", task.claim_version)))
                released += 1
            except ClaimLost:
                continue  # settled or taken over concurrently
        self._emit(WorkerStopped(server.id, server.handled, released))
        return released

    async def close(self) -> None:
        """End all waiting claims, and finish those in flight; idempotent."""
        await self._waiters.close()
        self._presence = Presence(self._core)

    # claims

    async def claim(
        self,
        worker_id: str,
        *,
        limit: int = 1,
        wait_for: Duration = 0,
        lease_for: Duration | None = None,
        names: Iterable[str] | None = None,
        task_lists: Iterable[str] | None = None,
        allowed: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        """Claim up to `limit` tasks for the worker's handlers; wait up to `wait_for` (at most 60 s) for the first one.

        `names` and `task_lists` narrow down those of the registration; `allowed` are the lists to which its token is restricted.
        Waiting claims are served in order of arrival. A canceled call holds nothing.
        """
        if check_count(limit, "limit") > CLAIM_LIMIT:
            raise InvalidInput(f"limit must be at most {CLAIM_LIMIT}, not {limit}.")
        wait = milliseconds(wait_for, "wait_for")
        if wait > MAX_WAIT_FOR:
            raise InvalidInput(f"wait_for must be at most {MAX_WAIT_FOR // 1000} s, not {shown(wait_for)}.")
        lease = lease_of(lease_for, self._lease_for)
        only = None if names is None else check_names(names, "names", check_pattern)
        lists = None if task_lists is None else check_names(task_lists, "task_lists", check_list)
        server = await self._presence.alive(parse_id(worker_id, "worker id"))
        wants = wants_of(server, self._namespace, only, lists, allowed, self._is_prompt)
        return await self._waiters.wait(server.id, wants, limit=limit, lease_for=lease, seconds=wait / 1000)

    async def _claim(
        self, worker_id: str, queue_ids: Sequence[int], lease_for: int, limit: int
    ) -> tuple[frozenset[int], list[ClaimedTask]]:
        observe = self._telemetry.observe

        def claim(count: int) -> Awaitable[list[Task]]:
            call = claim_tasks(self._store, queue_ids, worker_id, lease_for, count)
            return call if observe is None else timed(observe, self._clock, "claim", call, len)

        tasks = await take(claim, self._process_due, limit)
        if observe is not None and tasks:
            observe(TasksClaimed(tasks))
        queues = frozenset(task.queue_id for task in tasks)
        ready = [task for task in tasks if await self._may_be_executed(task)]
        bounded = [Renewal(task.claim) for task in ready if (task.deadline_at or task.progress_for or task.timeout_for) is not None]
        try:
            extended = await self._store.tasks.extend(bounded, lease_for) if bounded else {}
        except StoreError:
            await self._give_back([claimed(task) for task in ready])
            raise
        claimed_tasks = []
        for task in ready:
            if (extension := extended.get(task.id)) is not None:
                task.wake_at = extension.until_at
            self._emit(TaskTaken(task.id, task.name, task.attempt, task.trace_id))
            self._handed_out.add(task)
            claimed_tasks.append(claimed(task))
        return queues, claimed_tasks

    async def _may_be_executed(self, task: Task) -> bool:
        """Return whether the worker may execute the task, whose payload is then opened; otherwise settle it here."""
        try:
            if (problem := refusal(task)) is not None:
                await self._settle_refused(task, settle_refused(task, problem))
            elif task.state == TaskState.AWAITING_EXTERNAL:
                self._waiters.skip_queue(task.queue_id, 2 * POLL_LEFT_FOR / 1000)
                await self._settle_refused(task, await self._for_specialist(task))
            else:
                task.payload = await self._value_store.unpack_text(task.payload)
                return True
        except StoreError as error:
            self._emit(LoopError("remote workers", f"task {task.id} ({task.name}) is left to its lease: {error}"))
        except TreadleError as error:
            await self._settle_refused(task, failure(Problem(error.code, str(error), type(error).__name__)))
        return False

    async def _for_specialist(self, task: Task) -> TaskDecision:
        """Return the settlement of an external job's poll, which only its specialist may do."""
        if not await self._external_jobs.is_offered(task):
            return failure(Problem(UNREGISTERED, unregistered_text(task.name, task.scope)))
        return decide(task, Released("its specialist polls it", POLL_LEFT_FOR), NO_RETRY, self._ids.random)

    async def _settle_refused(self, task: Task, decided: TaskDecision) -> None:
        answer = await self._settle_task(task, task.claim, decided, self._patience)
        if answer.verdict is Verdict.DONE:
            settlement = settlement_of(decided)
            self._emit(TaskSettled.of(task, settlement.transition, 0.0, settlement.error))

    async def _give_back(self, tasks: list[ClaimedTask]) -> None:
        """Release tasks that were claimed for a caller that has disconnected."""
        for task in [claimed_task.task for claimed_task in tasks]:
            released = Released.by_holder("the caller that claimed it disconnected", task.claim_version)
            try:
                await self._settle_refused(task, decide(task, released, NO_RETRY, self._ids.random))
            except StoreError as error:
                self._emit(LoopError("remote workers", f"task {task.id} ({task.name}) is left to its lease: {error}"))

    async def _keep_alive(self, worker_ids: Collection[str]) -> None:
        """Keep waiting workers alive; end the wait of one that has left through another process."""
        for worker_id in await self._presence.touch_all(worker_ids):
            self._waiters.dismiss(worker_id, not_found("worker", worker_id))

    async def _list_held(self, worker_id: str) -> list[Task]:
        which = TaskFilter(states=(TaskState.RUNNING,), namespace=self._namespace, kind=HANDLER)
        return [task async for task in every_task(self._store, which) if task.owner_id == worker_id]
