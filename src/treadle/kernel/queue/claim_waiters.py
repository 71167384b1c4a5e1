"""Claim waiters: long-polling claims share their claim queries per lane, first come first served.

Hundreds may wait. A signal that a lane has ready tasks lets only the first waiter of that lane claim; the remaining tasks go to
the next one, and a claim that returns nothing counts for all waiters of those lanes. So the number of claims sent is the number
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
from itertools import groupby, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from treadle.kernel.queue.waker import SHORTEST_PAUSE, WAKE_EVERY, Waker
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import LATER, Store
from treadle.kernel.telemetry.events import Emit, LoopError, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreError, StoreUnavailable, TreadleError
from treadle.model.names import Lane

T = TypeVar("T")

SHARED_LIMIT = 250
"""Maximum number of tasks per query that several waiters share."""

POLL_EVERY = 5.0
"""Seconds after which all lanes are polled regardless of signals."""


_CACHED_WANTS = 1000
"""Limit on the cached wants."""

CLOSE_WITHIN = 5.0
"""Seconds that pending claims get to finish on close."""


class Claimed(NamedTuple, Generic[T]):
    """The result of one claim query: the lanes it took tasks from, and the tasks to hand out."""

    lane_ids: frozenset[int]
    found: list[T]


ClaimSome = Callable[[str, Sequence[int], int, int], Awaitable[Claimed[T]]]
"""Claims for a worker from some lanes, under a lease of some milliseconds, up to a number of tasks."""


class Wants(Protocol):
    """Selects the lanes to claim from. Equal selections share a cache entry."""

    def __hash__(self) -> int: ...

    def __call__(self, lane: Lane) -> bool: ...


@dataclass(slots=True, eq=False)
class Waiter(Generic[T]):
    """One waiting claim."""

    who: str
    wants: Wants
    claim: ClaimSome[T]
    give_back: Callable[[list[T]], Coroutine[Any, Any, None]]
    limit: int
    """Maximum number of tasks for this waiter."""
    lease_for: int
    until: float
    """End of the wait on the monotonic clock."""
    came: int
    answer: asyncio.Future[list[T]]
    lane_ids: frozenset[int] = field(default_factory=frozenset)
    polled: bool = False
    """Whether a claim query has covered its lanes since it arrived."""

    def same_claim(self) -> tuple[Hashable, ...]:
        """Return equal values for waiters that can share a query."""
        return (self.who, self.lease_for, self.wants, self.lane_ids)


class ClaimWaiters(Generic[T]):
    """The waiting claims of one process. Everything runs on one event loop."""

    def __init__(self, store: Store, committer: Committer, clock: Clock, lease_for: int, emit: Emit) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock
        self._emit = emit
        self._waker = Waker(store, clock, lease_for, committer.notify, emit)
        self._concurrency = max(store.parallel_commits, 1)
        self._line: dict[Waiter[T], None] = {}
        self._runner: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._signal = asyncio.Event()
        self._lanes: dict[int, Lane] = {}
        self._wanted: dict[Wants, frozenset[int]] = {}
        self._turn = 0
        """Logical clock: counts arrivals, signals and claim queries."""
        self._hot: set[int] = set()
        """Lanes with a signal since they were last seen empty."""
        self._skipped: set[int] = set()
        """Lanes that are not polled for a while."""
        self._resting: set[asyncio.Task[None]] = set()
        self._signaled: dict[int, int] = {}
        self._signaled_all = 0
        self._lanes_as_of = 0
        self._ticked_at = self._all_at = float("-inf")
        self._token_at = float("inf")
        """When a rate-limited lane next has a token for a waiter, as far as known."""
        self._tokens_known = False
        self.on_tick: Callable[[Collection[str]], Awaitable[None]] | None = None
        """Called about once a second with the names of the waiters."""

    def __len__(self) -> int:
        return len(self._line)

    # waiters

    async def wait(
        self,
        who: str,
        wants: Wants,
        claim: ClaimSome[T],
        give_back: Callable[[list[T]], Coroutine[Any, Any, None]],
        *,
        limit: int,
        lease_for: int,
        seconds: float,
    ) -> list[T]:
        """Return up to `limit` tasks that a claim from the wanted lanes brings within `seconds`, or nothing.

        A store error is raised to all waiters. A canceled caller releases the tasks it would have received.
        """
        self._turn += 1
        answer: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
        until = self._clock.monotonic() + seconds
        waiter = Waiter(who, wants, claim, give_back, limit, lease_for, until, self._turn, answer, self._lanes_for(wants))
        self._line[waiter] = None
        self._signal.set()
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        try:
            return await answer
        except asyncio.CancelledError:
            self._line.pop(waiter, None)
            if answer.done() and not answer.cancelled() and answer.exception() is None and (found := answer.result()):
                self._send(give_back(found))
            raise

    def dismiss(self, who: str, error: TreadleError | None = None) -> None:
        """End the wait of this waiter with nothing, or with the error."""
        for waiter in [waiter for waiter in self._line if waiter.who == who]:
            self._answer(waiter, [], error)

    def on_ready(self, lane_ids: tuple[int, ...]) -> None:
        """Signal that tasks may be ready in these lanes (empty: in any)."""
        ready = tuple(lane_id for lane_id in lane_ids if lane_id > LATER)
        if lane_ids and not ready:
            return
        lane_ids = ready
        self._turn += 1
        if not lane_ids or any(lane_id not in self._lanes for lane_id in lane_ids):
            self._lanes_as_of = 0
        if not lane_ids:
            self._signaled_all = self._turn
            self._hot.update(self._lanes)
        for lane_id in lane_ids:
            self._signaled[lane_id] = self._turn
            self._hot.add(lane_id)
        if not self._lanes_as_of or any(not waiter.lane_ids.isdisjoint(lane_ids) for waiter in self._line):
            self._signal.set()

    def skip_lane(self, lane_id: int, seconds: float) -> None:
        """Do not poll this lane for `seconds`: its ready tasks are for others."""
        if lane_id not in self._skipped:
            self._skipped.add(lane_id)
            self._resting.add(resting := self._send(self._resume_lane(lane_id, seconds)))
            resting.add_done_callback(self._resting.discard)

    async def _resume_lane(self, lane_id: int, seconds: float) -> None:
        try:
            await self._clock.sleep(seconds)
        finally:
            self._skipped.discard(lane_id)
            self.on_ready((lane_id,))

    async def close(self) -> None:
        """Answer all waiters with nothing and finish pending claims; idempotent."""
        for waiter in list(self._line):
            self._answer(waiter, [])
        self._signal.set()
        for errand in self._resting:
            errand.cancel()
        if left := [*([self._runner] if self._runner is not None else []), *self._errands]:
            _, late = await asyncio.wait(left, timeout=CLOSE_WITHIN)
            for task in late:  # the store does not respond: their tasks are left to lease expiry
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            self._committer.on_ready.remove(self.on_ready)
        self._lanes_as_of = 0

    # the loop, while there are waiters

    async def _run(self) -> None:
        """Serve until no waiter is left; errors go to all waiters."""
        try:
            while self._line:
                try:
                    await self._round()
                except StoreError as error:
                    self._emit(StoreTrouble("claiming for remote workers", str(error), 0.0))
                    self._answer_all(error)
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
        if not self._lanes_as_of:
            await self._refresh_lanes()
        if self._clock.monotonic() - self._ticked_at >= WAKE_EVERY:
            await self._tick()
        chosen = list(islice(self._next_claims(), self._concurrency))
        if chosen:
            await asyncio.gather(*(self._serve(waiters) for waiters in chosen))
        self._end_expired()
        if any(waiter.came > self._lanes_as_of and not self._may_get(waiter) for waiter in self._line):
            await self._refresh_lanes()  # the waiter may want a lane created after the last listing
        elif self._line and not chosen:
            await self._rest()

    def _end_expired(self) -> None:
        """End the expired waits, once all their lanes have been polled."""
        now = self._clock.monotonic()
        for waiter in list(self._line):
            if waiter.until <= now and waiter.came <= self._lanes_as_of and (waiter.polled or not self._open_to(waiter)):
                self._answer(waiter, [])

    def _may_get(self, waiter: Waiter[T]) -> bool:
        lane_ids = self._open_to(waiter)
        return bool(lane_ids) and (not waiter.polled or not self._hot.isdisjoint(lane_ids))

    def _open_to(self, waiter: Waiter[T]) -> frozenset[int]:
        return waiter.lane_ids - self._skipped if self._skipped else waiter.lane_ids

    def _next_claims(self) -> Iterator[list[Waiter[T]]]:
        """The waiters that may get something, in order of arrival; those of one list share a query."""
        for _, same in groupby((waiter for waiter in self._line if self._may_get(waiter)), Waiter.same_claim):
            waiters, count = list[Waiter[T]](), 0
            for waiter in same:
                if waiters and count + waiter.limit > SHARED_LIMIT:
                    break  # the next round serves the others
                waiters.append(waiter)
                count += waiter.limit
            yield waiters

    async def _serve(self, waiters: list[Waiter[T]]) -> None:
        """Claim once for these waiters; an empty result counts for all."""
        for waiter in waiters:
            if waiter.answer.done():
                self._line.pop(waiter, None)
        waiters = [waiter for waiter in waiters if not waiter.answer.done()]
        if not waiters:
            return
        first = waiters[0]
        self._turn += 1
        sent, lane_ids = self._turn, self._open_to(first)
        try:
            lanes, found = await first.claim(first.who, list(lane_ids), first.lease_for, sum(each.limit for each in waiters))
        except StoreError as error:
            self._emit(StoreTrouble("claiming for remote workers", str(error), 0.0))
            self._answer_all(error)
            return
        self._hot.update(lanes)
        if not lanes:
            self._seen_empty(lane_ids, sent)
        for waiter in waiters:
            if found and not waiter.answer.done():
                self._answer(waiter, found[: waiter.limit])
                found = found[waiter.limit :]
        if found:  # some have left meanwhile
            await first.give_back(found)

    def _seen_empty(self, lane_ids: frozenset[int], sent: int) -> None:
        """Record that a claim sent at `sent` found these lanes empty; later signals stay."""
        self._tokens_known = False
        self._hot.difference_update(
            [lane_id for lane_id in lane_ids if max(self._signaled.get(lane_id, 0), self._signaled_all) <= sent]
        )
        for waiter in self._line:
            if waiter.came < sent and self._open_to(waiter) <= lane_ids:
                waiter.polled = True

    async def _refresh_lanes(self) -> None:
        """Refresh the list of lanes; waiters that want a new lane are polled again."""
        self._lanes_as_of = self._turn
        lanes = await self._store.tasks.list_lanes()
        if lanes.keys() == self._lanes.keys():  # a lane never changes
            return
        self._lanes = lanes
        self._wanted.clear()
        for waiter in self._line:
            wanted = self._lanes_for(waiter.wants)
            waiter.polled = waiter.polled and wanted <= waiter.lane_ids
            waiter.lane_ids = wanted

    def _lanes_for(self, wants: Wants) -> frozenset[int]:
        if (known := self._wanted.get(wants)) is None:
            if len(self._wanted) >= _CACHED_WANTS:
                self._wanted.clear()
            known = frozenset(lane_id for lane_id, lane in self._lanes.items() if wants(lane))
            self._wanted[wants] = known
        return known

    async def _tick(self) -> None:
        """Wake due tasks, since no other process may be there to do it; at most once a second for all waiters."""
        self._ticked_at = now = self._clock.monotonic()
        self._tokens_known = False
        if now - self._all_at >= POLL_EVERY:
            if self._all_at != float("-inf"):
                self.on_ready(())
            self._all_at = now
        await self._waker.tick()
        if self.on_tick is not None:
            await self.on_tick({waiter.who for waiter in self._line})

    async def _rest(self) -> None:
        """Sleep until a signal, the end of a wait, a token of a rate-limited lane, or the next tick."""
        lane_ids = frozenset[int]().union(*(waiter.lane_ids for waiter in self._line))
        if not self._tokens_known:
            self._tokens_known = True
            token_for = await self._store.tasks.next_token_for(list(lane_ids)) if lane_ids else None
            self._token_at = float("inf") if token_for is None else self._clock.monotonic() + token_for / 1000
        pause = (
            min(self._ticked_at + WAKE_EVERY, self._token_at, *(waiter.until for waiter in self._line)) - self._clock.monotonic()
        )
        ways = [
            asyncio.ensure_future(self._clock.sleep(max(pause, SHORTEST_PAUSE))),
            asyncio.ensure_future(self._signal.wait()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        if self._clock.monotonic() >= self._token_at:
            self._token_at = float("inf")
            self._hot.update(lane_ids)

    # answers

    def _answer(self, waiter: Waiter[T], found: list[T], error: TreadleError | None = None) -> None:
        self._line.pop(waiter, None)
        if waiter.answer.done():
            return
        if error is None:
            waiter.answer.set_result(found)
        else:
            waiter.answer.set_exception(error)

    def _answer_all(self, error: TreadleError) -> None:
        for waiter in list(self._line):
            self._answer(waiter, [], error)

    def _send(self, errand: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it independently of its waiter."""
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, errand: asyncio.Task[None]) -> None:
        self._errands.discard(errand)
        if not errand.cancelled() and (error := errand.exception()) is not None:
            self._emit(LoopError("claim waiters", repr(error)))
