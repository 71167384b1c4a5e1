"""The waker makes due tasks ready, for the whole store; any number of processes may run one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from treadle.kernel.store.committer import uninterrupted
from treadle.kernel.store.ports import CHANGED, SERVERS, STREAM, Store
from treadle.kernel.store.process import failpoint, wait_or_sleep
from treadle.kernel.store.queries import Woken
from treadle.kernel.telemetry.events import ClockJumped, Emit, LeasesExpired, LoopError, StoreBack, StoreTrouble
from treadle.kernel.telemetry.observer import telemetry_of, timed
from treadle.model.clock import Clock
from treadle.model.errors import StoreError

WAKE_EVERY = 1.0
QUIET_EVERY = 3.0
"""Seconds between polls while nothing is due within `QUIET_FOR` and no activity is reported."""
QUIET_FOR = 60_000
WAKE_LIMIT = 1000
MIN_PAUSE = 0.005


class JumpGuard:
    """Detects jumps of the store's clock against the process's monotonic clock (D6); pure.

    After a jump of more than half a lease, no lease expires for one lease duration, so that holders have time to renew.
    """

    def __init__(self, lease_for: int) -> None:
        self._lease_for = lease_for
        self._offset: float | None = None
        self._quiet_until = float("-inf")

    def observe(self, store_now: int, monotonic: float) -> int | None:
        """Take a reading; returns the jump in milliseconds, if there was one."""
        offset = store_now - monotonic * 1000
        before, self._offset = self._offset, offset
        if before is None or abs(offset - before) <= self._lease_for / 2:
            return None
        self._quiet_until = monotonic + self._lease_for / 1000
        return round(offset - before)

    def may_expire(self, monotonic: float) -> bool:
        """Whether leases may expire now."""
        return monotonic >= self._quiet_until


class Waker:
    """Calls `Store.wake` every second, sooner when a task is due sooner, less often in quiet times.

    The same calls are the poll of an idle worker: they report whether tasks are ready, at least every `poll_every` seconds.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease_for: int,
        notify: Callable[[tuple[int, ...]], None],
        emit: Emit,
        poll_every: float = math.inf,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_ready` is called when a poll found ready tasks, whose signals may have been lost."""
        self._store = store
        self._clock = clock
        self._guard = JumpGuard(lease_for)
        self._lease_for = lease_for
        self._notify = notify
        self.on_servers: Callable[[], None] = lambda: None
        """Called after a signal that the servers have changed."""
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._poll_every, self._on_ready = poll_every, on_ready
        self._ready_at = clock.monotonic()
        """When a call last reported whether tasks are ready."""
        self._next_at = self._polled_at = float("-inf")
        self._sooner = asyncio.Event()
        self._rated = True
        """Whether a limit had a rate at the last poll."""

    async def tick(self) -> float:
        """Wake due tasks; returns the seconds until the next poll.

        A second call expires leases, only if there are any: the first call's reading of the store's clock shows whether it can
        be trusted.
        """
        while True:
            sent_at = self._clock.monotonic()
            woken = await self._wake(expire_leases=False, find_ready=self._is_poll_due(sent_at))
            self._announce(woken)
            if (jump := self._guard.observe(woken.now, sent_at)) is not None:
                self._emit(ClockJumped(jump, self._lease_for))
            if woken.overdue and self._guard.may_expire(sent_at):
                woken = await self._wake(expire_leases=True)
                self._announce(woken)
            if woken.count < WAKE_LIMIT:
                return min(_pause(woken), self._poll_every)

    def _is_poll_due(self, now: float) -> bool:
        """Whether the next call may be too late to find ready tasks within `poll_every`."""
        is_due = now + QUIET_EVERY > self._ready_at + self._poll_every
        if is_due:
            self._ready_at = now
        return is_due

    def _wake(self, *, expire_leases: bool, find_ready: bool = False) -> Awaitable[Woken]:
        observe = self._telemetry.observe
        call = self._store.tasks.wake(WAKE_LIMIT, expire_leases=expire_leases, find_ready=find_ready)
        return call if observe is None else timed(observe, self._clock, "wake", call, lambda woken: woken.count)

    def _announce(self, woken: Woken) -> None:
        failpoint("wake.after")
        self._rated = woken.rated
        if woken.expired:
            self._emit(LeasesExpired(woken.expired))
        if woken.queue_ids:
            self._notify(woken.queue_ids)
        if woken.ready:
            self._on_ready()

    async def run(self) -> None:
        """Tick until canceled; store errors are logged and retried."""
        trouble = False
        while True:
            try:
                pause = await uninterrupted(self.tick())  # so that woken tasks are announced
                if trouble:
                    trouble = False
                    self._emit(StoreBack("waking due tasks"))
            except StoreError as error:
                pause = WAKE_EVERY
                if not trouble:
                    self._emit(StoreTrouble("waking due tasks", str(error), pause))
                trouble = True
            except asyncio.CancelledError:
                raise
            except Exception as error:
                pause = 10.0
                self._emit(LoopError("waker", repr(error)))
            self._polled_at = self._clock.monotonic()
            self._next_at = self._polled_at + pause
            await self._rest()

    def expect(self, delay: int) -> None:
        """Poll when a task is due after `delay` milliseconds, if that is sooner than planned."""
        self._poll_at(self._clock.monotonic() + max(delay / 1000, MIN_PAUSE))

    def on_limited(self) -> None:
        """Poll soon after tasks with a limit key were claimed, if limits have rates: the next start may be due soon."""
        if self._rated:
            self.expect(0)
        else:
            self.notify()  # one may have got a rate since the last poll

    def on_signal(self, queue_ids: tuple[int, ...]) -> None:
        """Poll sooner after a signal that tasks may be due, or that servers have changed."""
        if queue_ids and all(queue_id in (STREAM, CHANGED) for queue_id in queue_ids):
            return
        if SERVERS in queue_ids:
            self.on_servers()
            self.expect(0)
        self.notify()

    def notify(self) -> None:
        """Report activity: polling returns to its normal interval."""
        self._poll_at(self._polled_at + WAKE_EVERY)

    def _poll_at(self, at: float) -> None:
        if at < self._next_at:
            self._next_at = at
            self._sooner.set()

    async def _rest(self) -> None:
        """Sleep until the next poll, which may be moved forward meanwhile."""
        while (remaining := self._next_at - self._clock.monotonic()) > 0:
            self._sooner.clear()
            await wait_or_sleep(self._sooner, self._clock, remaining)


def _pause(woken: Woken) -> float:
    """Seconds until the next poll."""
    if woken.next_for is None or woken.next_for > QUIET_FOR:
        return WAKE_EVERY if woken.count else QUIET_EVERY
    return min(max(woken.next_for / 1000, MIN_PAUSE), WAKE_EVERY)
