"""The claimer: decides from which lanes a worker claims, and how many tasks.

Lanes are grouped by the concurrency limit that they share. One claim per group asks for as many tasks as can start now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.why import serves, shown_server_state
from treadle.kernel.store.lookups import every_task
from treadle.kernel.store.process import reach
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Unit, returned
from treadle.kernel.telemetry.observer import TasksClaimed, timed
from treadle.model.lists import IGNORE
from treadle.model.names import ENGINE_LIST, HANDLER, Lane
from treadle.model.states import TaskState
from treadle.model.tasks import Task
from treadle.workers.handlers import Catalog, Handler, Isolation
from treadle.workers.resources import MAX_CONCURRENCY, Resources, WorkerOptions

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

_NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class LaneGroup:
    """Lanes that share a concurrency limit. Groups of the same isolation also share a pool of threads or processes."""

    limit: int | None
    """None: only the worker's own limit."""
    isolation: Isolation
    running: int = 0
    asked: int = 0
    """Tasks that a claim on its way may bring."""
    lane_ids: list[int] = field(default_factory=list)
    handlers: set[str] = field(default_factory=set)


Start = Callable[[Sequence[Task], LaneGroup, float], None]
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
        self._groups: dict[str, LaneGroup] = {}
        self._lanes: dict[int, Lane] = {}
        self._served: dict[Lane, LaneGroup] = {}
        self._orphans: set[int] = set()
        """Lanes that no live server serves, in lists that ignore such tasks."""
        self._orphans_at = _NEVER
        self._signaled: set[int] = set()
        self._rounds = 0
        self.reach = FIRST_CLAIM
        """Maximum number of tasks of the next claim; `room` has further limits."""
        self._quiet_until = _NEVER
        """When to claim again, unless a signal arrives before."""
        self._is_unanswered = False
        """Whether the answer to the last claim was lost: the store may have made it."""
        self._received_at = -1
        """The store's time of the newest claim received here."""
        self.running = 0
        """Tasks in progress."""
        self._asked = 0
        """Tasks that a claim on its way may bring."""
        self.is_own: Callable[[str], bool] = lambda task_id: False
        """Whether an attempt at the task is in progress here."""
        self.stale = True
        """Whether the lanes must be read again before the next claim."""
        self.stopped = False
        """Whether no more claims are to be sent."""

    def signal(self, lane_ids: tuple[int, ...]) -> bool:
        """Note that tasks may be ready in these lanes (empty: in any lane); return whether the worker must claim."""
        if not lane_ids or any(lane_id not in self._lanes for lane_id in lane_ids):
            self.stale = True
        elif not any(lane_id in group.lane_ids for group in self._groups.values() for lane_id in lane_ids):
            if self._catalog.fallback is None:
                return False
            self.stale = True
        self._signaled.update(lane_ids)
        self._quiet_until = _NEVER
        return True

    @property
    def quiet(self) -> bool:
        """Whether the last claims found nothing although every group had room, and no signal arrived since.

        Then the end of a task is not a reason to claim, until a poll is due.
        """
        return self._clock.monotonic() < self._quiet_until and not self._is_unanswered

    def is_orphan(self, lane_id: int) -> bool:
        """Whether tasks of the lane are claimed only to end them as ignored."""
        return lane_id in self._orphans

    def occupy(self, group: LaneGroup) -> None:
        """Count a started task."""
        group.running += 1
        self.running += 1

    def vacate(self, group: LaneGroup) -> None:
        """Count an ended task: there is room for another."""
        group.running -= 1
        self.running -= 1

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
            groups.sort(key=lambda group: signaled.isdisjoint(group.lane_ids))
        for group in groups:
            room = self.room(group)
            if room < 1 or not group.lane_ids or self.stopped:
                full = full or bool(group.lane_ids)
                continue
            sent_at = self._clock.monotonic()
            self._is_unanswered = True
            group.asked = self._asked = room
            try:
                tasks = await self._claim(group.lane_ids, room)
            finally:
                group.asked = self._asked = 0
            self._is_unanswered = False
            reach("claim.after")
            if tasks:
                self._received_at = max(self._received_at, *[task.claimed_at or 0 for task in tasks])
                start(tasks, group, sent_at)
                claimed = True
                if len(tasks) >= self.reach:
                    self.reach *= 2
            else:
                self.reach = FIRST_CLAIM
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
        """Return the milliseconds until a rate-limited lane with room has a token, or None without such a lane."""
        lane_ids = [lane_id for group in self._groups.values() if self.room(group) > 0 for lane_id in group.lane_ids]
        token_for = await self._store.tasks.next_token_for(lane_ids) if lane_ids else None
        if token_for is not None:
            self._quiet_until = _NEVER
        return token_for

    async def refresh(self) -> None:
        """Read the lanes, and group those that this worker serves by the limits of their handlers."""
        self.stale = False
        self._quiet_until = _NEVER
        lanes = await self._store.tasks.list_lanes()
        namespace = self._resources.namespace
        if (fallback := self._catalog.fallback) is not None:
            names = {lane.name for lane in lanes.values() if lane.kind == HANDLER and lane.namespace == namespace}
            await fallback.prepare(sorted(name for name in names if self._catalog.registry.find(name) is None))
        for group in self._groups.values():
            group.lane_ids = []
        served: dict[Lane, LaneGroup] = {}
        for lane_id, lane in lanes.items():
            own = lane.kind != HANDLER and lane.task_list == ENGINE_LIST
            if lane.namespace != namespace or not (own or lane.task_list in self._options.task_lists):
                continue
            handler = self._catalog.find(lane.kind, lane.name)
            if handler is not None:
                group = self._group(handler)
                group.lane_ids.append(lane_id)
                served[lane] = group
                group.handlers.add(handler.name)
        self._lanes, self._served = lanes, served
        await self._refresh_orphans()

    async def _refresh_orphans(self) -> None:
        """Find the lanes whose tasks are to be ignored; at most once per `poll_every`, as lists and servers change slowly."""
        now = self._clock.monotonic()
        if now - self._orphans_at >= self._options.poll_every:
            self._orphans_at = now
            unserved = await self._list_unserved()
            lists = {
                each.task_list
                for each in (await self._store.operators.list_lists() if unserved else ())
                if each.namespace == self._resources.namespace and each.no_handler == IGNORE
            }
            served = lists.intersection(self._options.task_lists)
            self._orphans = {lane_id for lane_id in unserved if self._lanes[lane_id].task_list in served}
            if unserved and self._external_jobs is not None:
                await self._external_jobs.give_up(unserved)
        if self._orphans or "orphans" in self._groups:
            self._groups.setdefault("orphans", LaneGroup(None, "loop")).lane_ids = list(self._orphans)

    async def _list_unserved(self) -> list[int]:
        """Return the lanes of handlers that no live server serves."""
        namespace = self._resources.namespace
        unserved = {
            lane_id: lane
            for lane_id, lane in self._lanes.items()
            if lane.namespace == namespace and lane.kind == HANDLER and self._catalog.find(HANDLER, lane.name) is None
        }
        if not unserved:
            return []
        now = await self._store.now()
        servers = await self._store.servers.list_all(namespace)
        live = [server for server in servers if shown_server_state(server, now) in ("starting", "running")]
        return [lane_id for lane_id, lane in unserved.items() if not any(serves(server, lane) for server in live)]

    def _group(self, handler: Handler) -> LaneGroup:
        pools = {"thread": self._options.threads, "process": self._options.processes}
        limit = pools.get(handler.isolation)
        key: str = handler.isolation
        if handler.concurrency is not None:
            key, limit = f"handler {handler.name}", min(handler.concurrency, limit or handler.concurrency)
        return self._groups.setdefault(key, LaneGroup(limit, handler.isolation))

    def room(self, group: LaneGroup) -> int:
        """Return how many more tasks of the group can start now, beside those that a claim on its way may bring."""
        return min(self._free(group), max(CLAIM_LIMIT, self.slots.limit // 4), self.reach)

    def _free(self, group: LaneGroup) -> int:
        """Return the room for tasks of the group, without those that a claim on its way may bring."""
        room = self.slots.limit - self.running - self._asked
        if group.limit is not None:
            room = min(room, group.limit - group.running - group.asked)
        if group.isolation == "loop":
            return room if self.slots.claimable else 0
        executor = self._resources.executor
        peers = [other for other in self._groups.values() if other.isolation == group.isolation]
        taken = sum(each.running + each.asked for each in peers)
        abandoned = sum(executor.abandoned(each.handlers) for each in peers)
        pool = self._options.threads if group.isolation == "thread" else self._options.processes
        return min(room - executor.abandoned(group.handlers), pool - taken - abandoned)

    async def _claim(self, lane_ids: list[int], limit: int) -> list[Task]:
        observe = self._telemetry.observe
        call = self._store.tasks.claim(lane_ids, self._resources.owner_id, self._options.lease_for, limit)
        if observe is None:
            return await call
        tasks = await timed(observe, self._clock, "claim", call, len)
        if tasks:
            observe(TasksClaimed(tasks))
        return tasks
