"""The worker loop: waits for signals, claims as many tasks as there is room for, and starts an attempt at each.

Claims, handlers and commits overlap; the loop never waits for a single task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from treadle.kernel.telemetry.events import LoopError, StoreBack, StoreTrouble
from treadle.model.errors import StoreError
from treadle.model.tasks import Claim, Task
from treadle.workers.attempt import Attempt, AttemptRunner
from treadle.workers.claimer import Claimer, LaneGroup
from treadle.workers.handlers import Catalog, Handler
from treadle.workers.lease_renewer import LeaseRenewer
from treadle.workers.resources import Resources, Services, WorkerOptions

LAST_WAIT = 10.0
"""Seconds that a stopping worker gives its last commits after stopping its handlers; then it lets leases expire."""


class Worker:
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
        self.on_limited: Callable[[int], None] | None = None
        """Called with 0 when a claimed task has a limit key: the next start of the key may be due soon."""

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

    def wake(self, lane_ids: tuple[int, ...]) -> None:
        """Claim soon, because tasks may be ready in these lanes (empty: in any lane)."""
        if self._claimer.signal(lane_ids):
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
        if started:
            await asyncio.wait([attempt.runner for attempt in started if attempt.runner is not None])
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
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    async def _claim(self) -> bool:
        self._claiming = True
        self._show_claiming()
        claimed = await self._claimer.claim(self._start)
        self._claiming = False  # not after an error: the store may have made the claim
        self._show_claiming()
        return claimed

    def _show_claiming(self) -> None:
        """Show the lease keeper whether a claim is on its way; the last one ends a wait."""
        if (renewer := self._runner.lease_renewer) is not None:
            renewer.set_claiming(self._claiming)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._attempts and not self._superseded:
            self._idle.set()

    async def _wait(self) -> None:
        """Wait for a signal, or for the token of a lane with a rate."""
        token_for = await self._claimer.next_token_for()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if token_for is None else max(token_for / 1000, 0.005)):
                await self._signal.wait()

    def _start(self, tasks: Sequence[Task], group: LaneGroup, claimed_at: float) -> None:
        """Start an attempt at each of the tasks, which one claim took together."""
        self._idle.clear()
        found: dict[int, Handler | None] = {}
        for task in tasks:
            if task.limit_key is not None and self.on_limited is not None:
                self.on_limited(0)
            if (lane_id := task.lane_id) not in found:
                found[lane_id] = self._catalog.find(task.kind, task.name)
            handler = found[lane_id]
            if (older := self._attempts.get(task.id)) is not None:
                self._runner.lose(older, "this worker has claimed it again")
                self._superseded.append(older)
            orphan = handler is None and self._claimer.is_orphan(lane_id)
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
        left = [*releases, *(attempt.runner for attempt in self._all() if attempt.runner is not None)]
        for runner in left:
            runner.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)

    async def _drain(self, seconds: float) -> None:
        """Wait until no attempt is in progress, for at most that many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
