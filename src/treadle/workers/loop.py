"""The worker loop: waits for signals, claims as many tasks as there is room for (`Claimer`), and starts an attempt at each.

Claims, handlers and commits overlap; the loop never waits for a single task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.why import serves, shown_server_state
from treadle.kernel.store.committer import claim_tasks
from treadle.kernel.store.lookups import every_task
from treadle.kernel.store.ports import LATER
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Unit, returned
from treadle.kernel.telemetry.events import LoopError, StoreBack, StoreTrouble
from treadle.kernel.telemetry.observer import TasksClaimed, timed
from treadle.model.errors import StoreError
from treadle.model.lists import IGNORE
from treadle.model.names import ENGINE_LIST, HANDLER, QueueKey
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task
from treadle.workers.attempt import Attempt, AttemptRunner
from treadle.workers.context import Catalog, RegisteredHandler
from treadle.workers.lease_renewer import LeaseRenewer
from treadle.workers.resources import MAX_CONCURRENCY, QueueGroup, Resources, Services, WorkerOptions

MIN_CONCURRENCY = 100
"""Tasks in progress that a worker without a given concurrency always allows."""

HANDLER_TIME = 2.0
"""Seconds of handler time that the tasks in progress may take together."""

_WEIGHT = 1 / 32
"""Weight of an attempt in the average of the time that handlers take."""


class Slots:
    """The limit of one worker on its tasks in progress.

    With `exactly`, the limit is that number. Otherwise it is the number of tasks that together take two seconds of handler time,
    by a moving average of the recent attempts of async handlers, but 100 at least and `most` at most: handlers that return within
    a millisecond get 2,000, those that take 20 ms or longer get 100. Quick tasks need many slots, because each keeps its slot
    until its result is committed; slow ones would only be held back from other workers. Since an average knows the past only, such
    a worker also claims nothing while 100 async handlers have started and not returned: tasks that are slower than those before
    them exceed 100 by two claims at most.
    """

    def __init__(self, exactly: int | None, most: int = MAX_CONCURRENCY) -> None:
        self._exactly = exactly
        self._most = most
        self._least = min(MIN_CONCURRENCY, most)
        self._average = HANDLER_TIME / MIN_CONCURRENCY
        self._executing = 0

    @property
    def limit(self) -> int:
        """Return the number of tasks that may be in progress now."""
        if self._exactly is not None:
            return self._exactly
        return max(self._least, min(self._most, int(HANDLER_TIME / max(self._average, 1e-6))))

    @property
    def claimable(self) -> bool:
        """Whether the handlers that are executing leave room for a claim."""
        return self._exactly is not None or self._executing < self._least

    def begin(self) -> None:
        """Count an async handler that starts."""
        self._executing += 1

    def end(self, seconds: float | None) -> bool:
        """Note that it has returned after that time, or None if it was stopped; return whether a claim is possible again."""
        self._executing -= 1
        if self._exactly is not None:
            return False
        if seconds is not None:
            self._average += (seconds - self._average) * _WEIGHT
        return self._executing == self._least - 1


CLAIM_LIMIT = 250
"""Maximum number of tasks per claim, or a quarter of the concurrency if that is more. With larger claims, claims, handlers
and commits would alternate instead of overlapping, and other workers would wait for tasks held here."""

FIRST_CLAIM = 64
"""Maximum number of tasks of the first claim after a pause; each claim that finds as many as it may take doubles it. So the first
handlers start sooner, and claims, handlers and commits overlap sooner."""

SCOPED_TOKEN_FOR = 100
"""Milliseconds that a worker waits at least for the token of a queue with tasks of scopes."""

_NEVER = float("-inf")


Start = Callable[[Sequence[Task], QueueGroup, float], None]
"""Starts the claimed tasks of the group; the last argument is the monotonic time at which the claim was sent."""


class Claimer:
    """Claims tasks for one worker, within its limits."""

    def __init__(self, resources: Resources, catalog: Catalog, options: WorkerOptions, external_jobs: ExternalJobs | None) -> None:
        self._store = resources.store
        self._clock = resources.clock
        self._telemetry = resources.telemetry
        self._resources = resources
        self._catalog = catalog
        self._options = options
        self._external_jobs = external_jobs
        self.slots = Slots(options.concurrency, options.most_concurrency)
        self._groups: dict[str, QueueGroup] = {}
        self._queues: dict[int, QueueKey] = {}
        self._served: dict[QueueKey, QueueGroup] = {}
        self._orphans: set[int] = set()
        """Queues that no live worker serves, in lists that ignore such tasks."""
        self._orphans_at = _NEVER
        self._signaled: set[int] = set()
        self._rounds = 0
        self.claim_size = FIRST_CLAIM
        """Maximum number of tasks of the next claim; `room` has further limits."""
        self._quiet_until = _NEVER
        """When to claim again, unless a signal arrives before."""
        self._is_unanswered = False
        """Whether the answer to the last claim was lost: the store may have made it."""
        self._received_at = -1
        """The store's time of the newest claim received here."""
        self.running = 0
        """Tasks in progress."""
        self._batched = 0
        """Tasks in progress in batches."""
        self._asked = 0
        """Tasks that a claim on its way may bring."""
        self.is_own: Callable[[str], bool] = lambda task_id: False
        """Whether an attempt at the task is in progress here."""
        self.stale = True
        """Whether the queues must be read again before the next claim."""
        self.stopped = False
        """Whether no more claims are to be sent."""

    def signal(self, queue_ids: tuple[int, ...]) -> bool:
        """Note that tasks may be ready in these queues (empty: in any queue); return whether the worker must claim."""
        if not queue_ids or any(queue_id not in self._queues for queue_id in queue_ids):
            self.stale = True
        elif not any(queue_id in group.queue_ids for group in self._groups.values() for queue_id in queue_ids):
            if self._catalog.fallback is None:
                return False
            self.stale = True
        self._signaled.update(queue_ids)
        self._quiet_until = _NEVER
        return True

    @property
    def quiet(self) -> bool:
        """Whether the last claims found nothing although every group had room, and no signal arrived since.

        Then the end of a task is not a reason to claim, until a poll is due.
        """
        return self._clock.monotonic() < self._quiet_until and not self._is_unanswered

    def is_orphan(self, queue_id: int) -> bool:
        """Whether tasks of the queue are claimed only to end them as ignored."""
        return queue_id in self._orphans

    def occupy(self, group: QueueGroup) -> None:
        """Count a started task."""
        group.running += 1
        self.running += 1
        self._batched += group.isolation == "batch"

    def vacate(self, group: QueueGroup) -> None:
        """Count an ended task: there is room for another."""
        group.running -= 1
        self.running -= 1
        self._batched -= group.isolation == "batch"

    async def claim(self, start: Start) -> bool:
        """Send one claim per group that has room, and start the claimed tasks; return whether there were any."""
        claimed = full = False
        self._quiet_until = self._clock.monotonic() + self._options.poll_every  # unless a signal arrives meanwhile
        if self._is_unanswered:
            await self._return_unanswered()
        groups = list(self._groups.values())
        self._rounds += 1  # rotate, so that no group takes all the room
        groups = [groups[(self._rounds + number) % len(groups)] for number in range(len(groups))]
        signaled, self._signaled = self._signaled, set()
        if signaled:  # groups with a signal come first
            groups.sort(key=lambda group: signaled.isdisjoint(group.queue_ids))
        for group in groups:
            room = self.room(group)
            if room < 1 or not group.queue_ids or self.stopped:
                full = full or bool(group.queue_ids)
                continue
            sent_at = self._clock.monotonic()
            self._is_unanswered = True
            group.asked = self._asked = room
            try:
                tasks = await self._claim(group, room)
            finally:
                group.asked = self._asked = 0
            self._is_unanswered = False
            failpoint("claim.after")
            if tasks:
                self._received_at = max(self._received_at, *[task.claimed_at or 0 for task in tasks])
                start(tasks, group, sent_at)
                claimed = True
                if len(tasks) >= self.claim_size:
                    self.claim_size *= 2
            else:
                self.claim_size = FIRST_CLAIM
        if claimed or full:
            self._quiet_until = _NEVER
        return claimed

    async def _return_unanswered(self) -> None:
        """Return the tasks of a claim whose answer was lost to the queue: their handlers have not started, so that neither an
        attempt nor a takeover counts. They are newer than every claim received here; in case of doubt, the lease expires."""
        async for task in every_task(self._store, TaskFilter(namespace=self._resources.namespace, held=True)):
            own = task.owner_id == self._resources.owner_id and (task.claimed_at or 0) > self._received_at
            if own and task.state == TaskState.PENDING and not self.is_own(task.id):
                await self._resources.committer.submit(Unit(task.claim, returned(task, "the answer to its claim was lost")))
        self._is_unanswered = False

    async def next_token_for(self) -> int | None:
        """Return the milliseconds until a rate-limited queue with room has a token, or None without such a queue.

        A queue with tasks of scopes may have a token for none that is served here: it is tried less often.
        """
        token_for: int | None = None
        groups = [group for group in self._groups.values() if self.room(group) > 0]
        for is_scoped in (False, True):
            queue_ids = [queue_id for group in groups if (group.scopes is not None) is is_scoped for queue_id in group.queue_ids]
            next_for = await self._store.tasks.next_token_for(queue_ids) if queue_ids else None
            if next_for is not None:
                next_for = max(next_for, SCOPED_TOKEN_FOR) if is_scoped else next_for
                token_for = next_for if token_for is None else min(token_for, next_for)
                self._quiet_until = _NEVER
        return token_for

    async def refresh(self) -> None:
        """Read the queues, and group those that this worker serves by the limits of their handlers."""
        self.stale = False
        self._quiet_until = _NEVER
        queues = await self._store.tasks.list_queues()
        namespace = self._resources.namespace
        if (fallback := self._catalog.fallback) is not None:
            names = {queue.name for queue in queues.values() if queue.kind == HANDLER and queue.namespace == namespace}
            await fallback.prepare(sorted(name for name in names if self._catalog.registry.find(name) is None))
        for group in self._groups.values():
            group.queue_ids = []
        served: dict[QueueKey, QueueGroup] = {}
        for queue_id, queue in queues.items():
            own = queue.kind != HANDLER and queue.task_list == ENGINE_LIST
            if queue.namespace != namespace or not (own or queue.task_list in self._options.task_lists):
                continue
            handler = self._catalog.find(queue.kind, queue.name)
            if handler is not None:
                group = self._group(handler)
                group.queue_ids.append(queue_id)
                group.scopes = handler.scopes
                served[queue] = group
                group.handlers.add(handler.name)
        self._queues, self._served = queues, served
        await self._refresh_orphans()

    async def _refresh_orphans(self) -> None:
        """Find the queues with tasks to ignore; at most once per `poll_every`, as lists and servers change slowly."""
        now = self._clock.monotonic()
        if now - self._orphans_at >= self._options.poll_every:
            self._orphans_at = now
            unserved = await self._list_unserved()
            lists = {
                list_row.task_list
                for list_row in (await self._store.operators.list_lists() if unserved else ())
                if list_row.namespace == self._resources.namespace and list_row.no_handler == IGNORE
            }
            served = lists.intersection(self._options.task_lists)
            self._orphans = {queue_id for queue_id in unserved if self._queues[queue_id].task_list in served}
            scoped = [group for group in self._groups.values() if group.scopes is not None]
            scopes = {queue_id: group.scopes or () for group in scoped for queue_id in group.queue_ids}
            if (unserved or scopes) and self._external_jobs is not None:
                await self._external_jobs.give_up([*unserved, *scopes], scopes)
        if self._orphans or "orphans" in self._groups:
            self._groups.setdefault("orphans", QueueGroup(None, "loop")).queue_ids = list(self._orphans)

    async def _list_unserved(self) -> list[int]:
        """Return the queues of handlers that no live worker serves."""
        namespace = self._resources.namespace
        unserved = {
            queue_id: queue
            for queue_id, queue in self._queues.items()
            if queue.namespace == namespace and queue.kind == HANDLER and self._catalog.find(HANDLER, queue.name) is None
        }
        if not unserved:
            return []
        now = await self._store.now()
        servers = await self._store.servers.list_all(namespace)
        live = [server for server in servers if shown_server_state(server, now) in ("starting", "running")]
        return [queue_id for queue_id, queue in unserved.items() if not any(serves(server, queue) for server in live)]

    def _group(self, handler: RegisteredHandler) -> QueueGroup:
        if handler.batch is not None:
            calls = min(handler.batch.concurrency, self._options.concurrency or handler.batch.concurrency)
            return self._groups.setdefault(f"handler {handler.name}", QueueGroup(calls * handler.batch.size, "batch"))
        pools = {"thread": self._options.threads, "process": self._options.processes}
        limit = pools.get(handler.isolation)
        key: str = handler.isolation
        if handler.concurrency is not None:
            key, limit = f"handler {handler.name}", min(handler.concurrency, limit or handler.concurrency)
        return self._groups.setdefault(key, QueueGroup(limit, handler.isolation))

    def room(self, group: QueueGroup) -> int:
        """Return how many more tasks of the group can start now, beside those that a claim on its way may bring."""
        return min(self._free(group), max(CLAIM_LIMIT, self.slots.limit // 4), self.claim_size)

    def _free(self, group: QueueGroup) -> int:
        """Return the room for tasks of the group, without those that a claim on its way may bring."""
        if group.isolation == "batch":  # beside the worker's slots: a batch is one call
            return (group.limit or 0) - group.running - group.asked
        room = self.slots.limit - (self.running - self._batched) - self._asked
        if group.limit is not None:
            room = min(room, group.limit - group.running - group.asked)
        if group.isolation == "loop":
            return room if self.slots.claimable else 0
        executor = self._resources.executor
        peers = [other for other in self._groups.values() if other.isolation == group.isolation]
        in_use = sum(peer.running + peer.asked for peer in peers)
        abandoned = sum(executor.abandoned(peer.handlers) for peer in peers)
        pool = self._options.threads if group.isolation == "thread" else self._options.processes
        return min(room - executor.abandoned(group.handlers), pool - in_use - abandoned)

    async def _claim(self, group: QueueGroup, limit: int) -> list[Task]:
        observe = self._telemetry.observe
        owner_id, lease_for = self._resources.owner_id, self._options.lease_for
        call = claim_tasks(self._store, group.queue_ids, owner_id, lease_for, limit, group.scopes)
        if observe is None:
            return await call
        tasks = await timed(observe, self._clock, "claim", call, len)
        if tasks:
            observe(TasksClaimed(tasks))
        return tasks


LAST_WAIT = 10.0
"""Seconds that a stopping worker gives its last commits after stopping its handlers; then it lets leases expire."""


class WorkerLoop:
    """Runs the handlers of a catalog for one namespace. `run` it until `stop`; `wake` it when tasks may be ready."""

    def __init__(
        self, resources: Resources, catalog: Catalog, services: Services | None = None, options: WorkerOptions | None = None
    ) -> None:
        self.services = services or Services()
        self.options = options or WorkerOptions()
        self._clock = resources.clock
        self._emit = resources.emit
        self._catalog = catalog
        self._claimer = Claimer(resources, catalog, self.options, self.services.external_jobs)
        self._runner = AttemptRunner(resources, self.services, self.options, self._started, self._returned, self._ended)
        self._attempts: dict[str, Attempt] = {}
        self._superseded: list[Attempt] = []
        """Lost attempts that have not ended, at tasks that this worker has claimed again."""
        self._claimer.is_own = self._attempts.__contains__
        self._claiming = False
        """Whether a claim is on its way, or its answer was lost."""
        self._signal = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while no attempt is in progress."""
        self._idle.set()
        self._drained: list[asyncio.Future[None]] = []
        """Callers of `drained`."""
        self.on_limited: Callable[[], None] = lambda: None
        """Called when claimed tasks have a limit key."""

    @property
    def concurrency(self) -> int:
        """The number of tasks that may be in progress now."""
        return self._claimer.slots.limit

    @property
    def running(self) -> int:
        """Tasks in progress."""
        return self._claimer.running

    @property
    def handled(self) -> int:
        """Tasks that were settled here, except released ones."""
        return self._runner.handled

    @property
    def failed(self) -> int:
        """Tasks that failed permanently here."""
        return self._runner.failed

    @property
    def released(self) -> int:
        """Tasks that were returned to the queue unfinished."""
        return self._runner.released

    def renew_with(self, lease_renewer: LeaseRenewer) -> None:
        """Let this renewer keep the leases of all tasks that are claimed from now on."""
        self._runner.lease_renewer = lease_renewer

    # signals

    def on_signal(self, queue_ids: tuple[int, ...]) -> None:
        """Wake after a signal that tasks are ready in these queues (empty: in any)."""
        ready = tuple(queue_id for queue_id in queue_ids if queue_id > LATER)
        if ready or not queue_ids:
            self.wake(ready)

    def wake(self, queue_ids: tuple[int, ...]) -> None:
        """Claim soon, because tasks may be ready in these queues (empty: in any queue)."""
        if self._claimer.signal(queue_ids):
            self._signal.set()

    def lose(self, claim: Claim, reason: str) -> None:
        """Stop the attempt that holds the claim, and drop its result: the claim is gone."""
        attempt = self._attempts.get(claim.task_id)
        if attempt is not None and attempt.context.token == claim:
            self._runner.lose(attempt, reason)

    def stop_fenced(self, task_ids: Iterable[str]) -> None:
        """Stop the attempts at tasks that an operator in this process has taken from their holders."""
        for task_id in task_ids:
            if (attempt := self._attempts.get(task_id)) is not None:
                self._runner.lose(attempt, "it was canceled")

    # the loop

    async def once(self) -> int:
        """Claim as many tasks as there is room for, run them, wait for them and return their number."""
        await self._claimer.refresh()
        before = set(self._all())
        started: set[Attempt] = set()
        while await self._claimer.claim(self._start):
            started |= set(self._all()) - before
        while not started.isdisjoint(self._all()):  # until the store has answered for all of them
            self._signal.clear()
            await self._signal.wait()
        return len(started)

    async def run(self) -> None:
        """Claim and run until `stop`; report store errors and continue."""
        if self.services.effects is not None:
            self.services.effects.loop = asyncio.get_running_loop()
        claimer, trouble = self._claimer, False
        while not claimer.stopped:
            try:
                self._signal.clear()  # before claiming, so that a signal during the claim leads to another one
                if claimer.stale:
                    await claimer.refresh()
                claimed = not claimer.quiet and await self._claim()
                if trouble:
                    trouble = False
                    self._emit(StoreBack("claiming"))
                if not claimed and not claimer.stopped:
                    self._report_drained()
                    await self._wait()
            except StoreError as error:
                claimer.stale = True
                if not trouble:
                    self._emit(StoreTrouble("claiming", str(error), 1.0))
                trouble = True
                await self._clock.sleep(1.0)
            except Exception as error:
                self._emit(LoopError("worker", repr(error)))
                await self._clock.sleep(10.0)

    async def drained(self) -> None:
        """Wait until `run` has sent a claim that found nothing while nothing was in progress and no signal was open."""
        waiting = asyncio.get_running_loop().create_future()
        self._drained.append(waiting)
        self._claimer.stale = True
        self._signal.set()
        await waiting

    def _report_drained(self) -> None:
        if self._idle.is_set() and not self._signal.is_set():
            waiting, self._drained = self._drained, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def _claim(self) -> bool:
        self._claiming = True
        self._show_claiming()
        claimed = await self._claimer.claim(self._start)
        self._claiming = False  # not after an error: the store may have made the claim
        self._show_claiming()
        return claimed

    def _show_claiming(self) -> None:
        """Show the lease sidecar whether a claim is on its way; the last one ends a wait."""
        if (renewer := self._runner.lease_renewer) is not None:
            renewer.set_claiming(self._claiming)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._attempts and not self._superseded:
            self._idle.set()

    async def _wait(self) -> None:
        """Wait for a signal, or for the token of a queue with a rate."""
        token_for = await self._claimer.next_token_for()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if token_for is None else max(token_for / 1000, 0.005)):
                await self._signal.wait()

    def _start(self, tasks: Sequence[Task], group: QueueGroup, claimed_at: float) -> None:
        """Start an attempt at each of the tasks, which one claim took together."""
        self._idle.clear()
        handlers: dict[int, RegisteredHandler | None] = {}
        if any(task.limit_key is not None for task in tasks):
            self.on_limited()
        for task in tasks:
            if (queue_id := task.queue_id) not in handlers:
                handlers[queue_id] = self._catalog.find(task.kind, task.name)
            handler = handlers[queue_id]
            if (older := self._attempts.get(task.id)) is not None:
                self._runner.lose(older, "this worker has claimed it again")
                self._superseded.append(older)
            orphan = handler is None and self._claimer.is_orphan(queue_id)
            self._attempts[task.id] = self._runner.start(task, group, handler, orphan, claimed_at)
            self._claimer.occupy(group)

    def _started(self, attempt: Attempt) -> None:
        if attempt.group.isolation == "loop":
            self._claimer.slots.begin()

    def _returned(self, attempt: Attempt, seconds: float | None) -> None:
        if attempt.group.isolation == "loop" and self._claimer.slots.end(seconds):
            self._signal.set()

    def _ended(self, attempt: Attempt) -> None:
        if attempt.started and not attempt.returned:
            self._returned(attempt, None)
        task_id = attempt.task.id
        if self._attempts.get(task_id) is attempt:
            del self._attempts[task_id]
        else:
            self._superseded.remove(attempt)
        self._claimer.vacate(attempt.group)
        self._note_idle()
        self._signal.set()

    def _all(self) -> list[Attempt]:
        return [*self._attempts.values(), *self._superseded]

    # the end

    def stop_claiming(self) -> None:
        """Send no more claims; `run` returns after the one in flight."""
        self._claimer.stopped = self._runner.stopping = True
        self._signal.set()

    async def stop(self) -> None:
        """Send no more claims; give running work the grace period, then stop it and release its tasks for others.

        A handler that does not stop loses its task all the same. If even the store does not answer, leases expire: `stop`
        always returns.
        """
        self.stop_claiming()
        await self._drain(self.options.grace)
        for attempt in self._all():
            attempt.interrupt()
        await self._drain(LAST_WAIT / 2)
        stubborn = [attempt for attempt in self._all() if not attempt.lost and not attempt.settling]
        for attempt in stubborn:
            self._emit(LoopError("worker", f"task {attempt.task.id} ({attempt.task.name}): its handler does not stop"))
            attempt.lost = True
        releases = [asyncio.ensure_future(self._runner.release(attempt, self._clock.monotonic())) for attempt in stubborn]
        if any(attempt.answering for attempt in self._all()):
            await self._drain(LAST_WAIT / 2)
        elif waiting := releases + [attempt.runner for attempt in self._all() if attempt.settling and attempt.runner]:
            await asyncio.wait(waiting, timeout=LAST_WAIT / 2)
        unfinished = [*releases, *(attempt.runner for attempt in self._all() if attempt.runner is not None)]
        for runner in unfinished:
            runner.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=1.0)

    async def _drain(self, seconds: float) -> None:
        """Wait until no attempt is in progress, for at most that many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
