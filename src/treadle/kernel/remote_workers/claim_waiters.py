"""Claim waiters: long-polling claims share their claim queries per queue, first come first served.

Hundreds may wait. A signal that a queue has ready tasks lets only the first waiter of that queue claim; the remaining tasks go to
the next one, and a claim that returns nothing counts for all waiters of those queues. So the number of claims sent is the number
of available tasks plus one, or fewer: waiters that are next to each other in the line and make the same claim share one query,
whose tasks they receive in order of arrival. Signals are hints: every waiter claims once on arrival, and one claims for all every
few seconds regardless of signals.

A claim query runs independently of its waiters: it is never interrupted, and tasks claimed for a waiter that has left are
released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice
from typing import Any

from treadle.kernel.core import Core, Service
from treadle.kernel.queue.waker import MIN_PAUSE, WAKE_EVERY, Waker
from treadle.kernel.remote_workers.decide import Wants
from treadle.kernel.store.ports import LATER
from treadle.kernel.store.process import wait_or_sleep
from treadle.kernel.telemetry.events import LoopError, StoreTrouble
from treadle.model.errors import StoreError, StoreUnavailable, TreadleError
from treadle.model.names import QueueKey
from treadle.model.tasks import ClaimedTask

SHARED_LIMIT = 250
"""Maximum number of tasks per query that several waiters share."""

POLL_EVERY = 5.0
"""Seconds after which all queues are polled regardless of signals."""

CLOSE_WITHIN = 5.0
"""Seconds that pending claims get to finish on close."""

ClaimSome = Callable[[str, Sequence[int], int, int], Awaitable[tuple[frozenset[int], list[ClaimedTask]]]]
"""Claims for a worker from some queues, under a lease of some milliseconds, up to a number of tasks; returns the queues from which
it took tasks, and the tasks to hand out."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One waiting claim."""

    worker_id: str
    wants: Wants
    limit: int
    """Maximum number of tasks for this waiter."""
    lease_for: int
    until: float
    """End of the wait on the monotonic clock."""
    queue_ids: frozenset[int]
    answer: asyncio.Future[list[ClaimedTask]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    polled: bool = False
    """Whether a claim query has covered its queues since it arrived."""
    listed: bool = False
    """Whether the queues were listed since it arrived."""

    def same_claim(self) -> tuple[Hashable, ...]:
        """Return equal values for waiters that can share a query."""
        return (self.worker_id, self.lease_for, self.wants, self.queue_ids)


class ClaimWaiters(Service):
    """The waiting claims of one process. Everything runs on one event loop."""

    def __init__(
        self,
        core: Core,
        lease_for: int,
        claim: ClaimSome,
        give_back: Callable[[list[ClaimedTask]], Coroutine[Any, Any, None]],
        on_tick: Callable[[Collection[str]], Awaitable[None]],
    ) -> None:
        """`give_back` releases tasks whose waiter has left; `on_tick` is called about once a second with the waiting workers."""
        super().__init__(core)
        self._claim = claim
        self._give_back = give_back
        self._on_tick = on_tick
        self._waker = Waker(core.store, core.clock, lease_for, core.committer.notify, core.emit)
        self._concurrency = max(core.store.parallel_commits, 1)
        self._line: dict[Waiter, None] = {}
        self._runner: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._signal = asyncio.Event()
        self._queues: dict[int, QueueKey] = {}
        self._queues_for = lru_cache(1000)(self._select_queues)
        self._is_stale = True
        """Whether there may be queues that are not in `_queues`."""
        self._hot: set[int] = set()
        """Queues with a signal since they were last seen empty."""
        self._skipped: dict[int, float] = {}
        """Queues that are not polled, and the end of that on the monotonic clock."""
        self._ticked_at = self._all_at = float("-inf")
        self._token_at: float | None = None
        """When a rate-limited queue next has a token for a waiter; None: not known."""

    def __len__(self) -> int:
        return len(self._line)

    # waiters

    async def wait(self, worker_id: str, wants: Wants, *, limit: int, lease_for: int, seconds: float) -> list[ClaimedTask]:
        """Return up to `limit` tasks that a claim from the wanted queues brings within `seconds`, or nothing.

        A store error is raised to all waiters. A canceled caller releases the tasks it would have received.
        """
        until = self._clock.monotonic() + seconds
        waiter = Waiter(worker_id, wants, limit, lease_for, until, self._queues_for(wants))
        self._line[waiter] = None
        self._signal.set()
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        answer = waiter.answer
        try:
            return await answer
        except asyncio.CancelledError:
            self._line.pop(waiter, None)
            if answer.done() and not answer.cancelled() and answer.exception() is None and (tasks := answer.result()):
                errand = asyncio.get_running_loop().create_task(self._give_back(tasks))
                self._errands.add(errand)
                errand.add_done_callback(self._done)
            raise

    def dismiss(self, worker_id: str, error: TreadleError | None = None) -> None:
        """End the waits of this worker with nothing, or with the error."""
        for waiter in [waiter for waiter in self._line if waiter.worker_id == worker_id]:
            self._answer(waiter, [], error)

    def on_ready(self, queue_ids: tuple[int, ...]) -> None:
        """Signal that tasks may be ready in these queues (empty: in any)."""
        ready = {queue_id for queue_id in queue_ids if queue_id > LATER}
        if queue_ids and not ready:
            return
        if not queue_ids or not ready <= self._queues.keys():
            self._is_stale = True
        self._hot.update(ready or self._queues)
        if self._is_stale or any(not waiter.queue_ids.isdisjoint(ready) for waiter in self._line):
            self._signal.set()

    def skip_queue(self, queue_id: int, seconds: float) -> None:
        """Do not poll this queue for `seconds`: its ready tasks are for others."""
        self._skipped.setdefault(queue_id, self._clock.monotonic() + seconds)

    async def close(self) -> None:
        """Answer all waiters with nothing and finish pending claims; idempotent."""
        for waiter in list(self._line):
            self._answer(waiter, [])
        self._signal.set()
        if unfinished := [*([self._runner] if self._runner is not None else []), *self._errands]:
            _, late = await asyncio.wait(unfinished, timeout=CLOSE_WITHIN)
            for task in late:  # the store does not respond: their tasks are left to lease expiry
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            self._committer.on_ready.remove(self.on_ready)
        self._is_stale = True

    # the loop, while there are waiters

    async def _run(self) -> None:
        """Serve until no waiter is left; errors go to all waiters."""
        try:
            while self._line:
                try:
                    await self._round()
                except StoreError as error:
                    self._refuse_all(error)
                except Exception as error:
                    self._emit(LoopError("claim waiters", repr(error)))
                    self._answer_all(StoreUnavailable(f"Tasks could not be claimed: {error!r}"))
        finally:
            self._runner = None

    async def _round(self) -> None:
        """Wake due tasks, claim for waiters that may get some, end expired waits; otherwise rest."""
        self._signal.clear()  # before polling, so that later signals cause another poll
        if self._unsubscribe is None:
            self._unsubscribe = await self._store.subscribe(self.on_ready)
            self._committer.on_ready.append(self.on_ready)
        if self._is_stale:
            await self._refresh_queues()
        now = self._clock.monotonic()
        for queue_id in [queue_id for queue_id, until in self._skipped.items() if until <= now]:
            del self._skipped[queue_id]
            self._hot.add(queue_id)
        if now - self._ticked_at >= WAKE_EVERY:
            await self._tick(now)
        chosen = list(islice(self._next_claims(), self._concurrency))
        if chosen:
            await asyncio.gather(*(self._serve(waiters) for waiters in chosen))
        now = self._clock.monotonic()
        for waiter in list(self._line):
            if waiter.until <= now and waiter.listed and (waiter.polled or not self._open_to(waiter)):
                self._answer(waiter, [])
        if any(not waiter.listed and not self._may_get(waiter) for waiter in self._line):
            await self._refresh_queues()  # the waiter may want a queue created after the last listing
        elif self._line and not chosen:
            await self._rest()

    def _may_get(self, waiter: Waiter) -> bool:
        queue_ids = self._open_to(waiter)
        return bool(queue_ids) and not waiter.answer.done() and (not waiter.polled or not self._hot.isdisjoint(queue_ids))

    def _open_to(self, waiter: Waiter) -> frozenset[int]:
        return waiter.queue_ids - self._skipped.keys() if self._skipped else waiter.queue_ids

    def _next_claims(self) -> Iterator[list[Waiter]]:
        """The waiters that may get something, in order of arrival; those of one list share a query."""
        for _, same in groupby((waiter for waiter in self._line if self._may_get(waiter)), Waiter.same_claim):
            waiters, count = list[Waiter](), 0
            for waiter in same:
                if waiters and count + waiter.limit > SHARED_LIMIT:
                    break  # the next round serves the others
                waiters.append(waiter)
                count += waiter.limit
            yield waiters

    async def _serve(self, waiters: list[Waiter]) -> None:
        """Claim once for these waiters; an empty result counts for all that have arrived before."""
        first, present = waiters[0], list(self._line)
        queue_ids = self._open_to(first)
        hot = self._hot & queue_ids
        self._hot -= hot  # signals during the claim add them again
        limit = sum(waiter.limit for waiter in waiters)
        try:
            queues, tasks = await self._claim(first.worker_id, list(queue_ids), first.lease_for, limit)
        except StoreError as error:
            self._hot |= hot
            self._refuse_all(error)
            return
        if queues:
            self._hot |= hot | queues
        else:
            self._token_at = None
            for waiter in present:
                waiter.polled = waiter.polled or self._open_to(waiter) <= queue_ids
        for waiter in waiters:
            if tasks and not waiter.answer.done():
                self._answer(waiter, tasks[: waiter.limit])
                tasks = tasks[waiter.limit :]
        if tasks:  # some have left meanwhile
            await self._give_back(tasks)

    async def _refresh_queues(self) -> None:
        """Refresh the list of queues; waiters that want a new queue are polled again."""
        self._is_stale, present = False, list(self._line)
        queues = await self._store.tasks.list_queues()
        for waiter in present:
            waiter.listed = True
        if queues.keys() == self._queues.keys():  # a queue never changes
            return
        self._queues = queues
        self._queues_for.cache_clear()
        for waiter in self._line:
            wanted = self._queues_for(waiter.wants)
            waiter.polled = waiter.polled and wanted <= waiter.queue_ids
            waiter.queue_ids = wanted

    def _select_queues(self, wants: Wants) -> frozenset[int]:
        return frozenset(queue_id for queue_id, queue in self._queues.items() if wants(queue))

    async def _tick(self, now: float) -> None:
        """Wake due tasks, since no other process may be there to do it; at most once a second for all waiters."""
        self._ticked_at = now
        self._token_at = None
        if now - self._all_at >= POLL_EVERY:
            if self._all_at != float("-inf"):
                self.on_ready(())
            self._all_at = now
        await self._waker.tick()
        await self._on_tick({waiter.worker_id for waiter in self._line})

    async def _rest(self) -> None:
        """Sleep until a signal, the end of a wait, a token of a rate-limited queue, or the next tick."""
        queue_ids = frozenset[int]().union(*(waiter.queue_ids for waiter in self._line))
        if self._token_at is None:
            token_for = await self._store.tasks.next_token_for(list(queue_ids)) if queue_ids else None
            self._token_at = float("inf") if token_for is None else self._clock.monotonic() + token_for / 1000
        ends = [waiter.until for waiter in self._line]
        next_at = min(self._ticked_at + WAKE_EVERY, self._token_at, *ends, *self._skipped.values())
        await wait_or_sleep(self._signal, self._clock, max(next_at - self._clock.monotonic(), MIN_PAUSE))
        if self._token_at is not None and self._clock.monotonic() >= self._token_at:
            self._token_at = float("inf")
            self._hot.update(queue_ids)

    # answers

    def _answer(self, waiter: Waiter, tasks: list[ClaimedTask], error: TreadleError | None = None) -> None:
        self._line.pop(waiter, None)
        if waiter.answer.done():
            return
        if error is None:
            waiter.answer.set_result(tasks)
        else:
            waiter.answer.set_exception(error)

    def _answer_all(self, error: TreadleError) -> None:
        for waiter in list(self._line):
            self._answer(waiter, [], error)

    def _done(self, errand: asyncio.Task[None]) -> None:
        self._errands.discard(errand)
        if not errand.cancelled() and (error := errand.exception()) is not None:
            self._emit(LoopError("claim waiters", repr(error)))

    def _refuse_all(self, error: StoreError) -> None:
        self._emit(StoreTrouble("claiming for remote workers", str(error), 0.0))
        self._answer_all(error)
