"""Where claims wait for tasks: one looks for all who want the same lanes, first come first served.

Hundreds may wait; a signal that something is ready in a lane makes only the first of those who want that lane look. What it
leaves is for the next one; the first who finds nothing has looked for all the others. So the claims that are sent are as
many as there are tasks to be had, and one more. Signals are hints: everybody looks once when coming, and now and then one
looks for the rest whatever was heard.

Who looks is not who waits: a look is never broken off, and what it brings to somebody who has gone is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from treadle.kernel.queue.waker import SHORTEST_PAUSE, WAKE_EVERY, Waker
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import LATER, Store
from treadle.kernel.telemetry.events import Emit, LoopError, StoreTrouble
from treadle.model.clock import Clock
from treadle.model.errors import StoreError, StoreUnavailable, TreadleError
from treadle.model.names import Lane

T = TypeVar("T")

LOOK_EVERY = 5.0
"""Seconds after which one looks for all, whatever signals were heard or missed."""


_MOST_KNOWN = 1000
"""Different wants of which it is remembered which lanes they are about."""

CLOSE_WITHIN = 5.0
"""Seconds that looks on their way get when the room is closed."""


class Look(NamedTuple, Generic[T]):
    """What a look came to: the lanes in which it took something, and what of that is to be handed out."""

    lane_ids: frozenset[int]
    found: list[T]


class Wants(Protocol):
    """Which lanes somebody wants to have tasks from. Two that are equal want the same."""

    def __hash__(self) -> int: ...

    def __call__(self, lane: Lane) -> bool: ...


@dataclass(slots=True, eq=False)
class Wish(Generic[T]):
    """Somebody waits: for what, and what to do when there may be some of it."""

    who: str
    wants: Wants
    look: Callable[[Sequence[int]], Awaitable[Look[T]]]
    give_back: Callable[[list[T]], Coroutine[Any, Any, None]]
    until: float
    """When to wait no longer, on the monotonic clock."""
    came: int
    answer: asyncio.Future[list[T]]
    lane_ids: frozenset[int] = field(default_factory=frozenset)
    looked: bool = False
    """Whether somebody has looked for it since it came."""


class ClaimWaiters(Generic[T]):
    """The claims of one process that wait. Everything here happens on one event loop."""

    def __init__(self, store: Store, committer: Committer, clock: Clock, lease_for: int, emit: Emit) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock
        self._emit = emit
        self._waker = Waker(store, clock, lease_for, committer.tell, emit)
        self._at_once = max(store.parallel_commits, 1)
        self._line: dict[Wish[T], None] = {}
        self._runner: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._signal = asyncio.Event()
        self._lanes: dict[int, Lane] = {}
        self._wanted: dict[Wants, frozenset[int]] = {}
        self._turn = 0
        """Counts what happens: who comes, what is heard, looks that are sent."""
        self._hot: set[int] = set()
        """Lanes of which something was heard since they were last seen empty."""
        self._left_alone: set[int] = set()
        """Lanes that are not looked in for a while; what waits for each to be over is resting."""
        self._resting: set[asyncio.Task[None]] = set()
        self._heard: dict[int, int] = {}
        self._heard_all = 0
        self._lanes_as_of = 0
        self._ticked_at = self._all_at = float("-inf")
        self._token_at = float("inf")
        """When a lane with a rate has a token for somebody who waits, as far as that is known."""
        self._tokens_known = False
        self.on_tick: Callable[[Collection[str]], Awaitable[None]] | None = None
        """Told about once a second who waits."""

    def __len__(self) -> int:
        return len(self._line)

    # who waits

    async def wait(
        self,
        who: str,
        wants: Wants,
        look: Callable[[Sequence[int]], Awaitable[Look[T]]],
        give_back: Callable[[list[T]], Coroutine[Any, Any, None]],
        seconds: float,
    ) -> list[T]:
        """What a look in the lanes that are wanted brings, now or within `seconds`; nothing when there was none.

        Store trouble is told to all who wait. A caller that is canceled gives back what it would have been given.
        """
        self._turn += 1
        answer: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
        wish = Wish(who, wants, look, give_back, self._clock.monotonic() + seconds, self._turn, answer)
        wish.lane_ids = self._lanes_for(wants)
        self._line[wish] = None
        self._signal.set()
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        try:
            return await answer
        except asyncio.CancelledError:
            self._line.pop(wish, None)
            if answer.done() and not answer.cancelled() and answer.exception() is None and (found := answer.result()):
                self._send(give_back(found))
            raise

    def dismiss(self, who: str, error: TreadleError | None = None) -> None:
        """Whoever waits under that name waits no longer: gets nothing, or the error."""
        for wish in [wish for wish in self._line if wish.who == who]:
            self._answer(wish, [], error)

    def heard(self, lane_ids: tuple[int, ...]) -> None:
        """Something may be ready in those lanes (empty: anywhere)."""
        if lane_ids == (LATER,):
            return
        self._turn += 1
        if not lane_ids or any(lane_id not in self._lanes for lane_id in lane_ids):
            self._lanes_as_of = 0
        if not lane_ids:
            self._heard_all = self._turn
            self._hot.update(self._lanes)
        for lane_id in lane_ids:
            self._heard[lane_id] = self._turn
            self._hot.add(lane_id)
        if not self._lanes_as_of or any(not wish.lane_ids.isdisjoint(lane_ids) for wish in self._line):
            self._signal.set()

    def leave_alone(self, lane_id: int, seconds: float) -> None:
        """Do not look in that lane for so long: what is ready there is for others."""
        if lane_id not in self._left_alone:
            self._left_alone.add(lane_id)
            self._resting.add(resting := self._send(self._take_up(lane_id, seconds)))
            resting.add_done_callback(self._resting.discard)

    async def _take_up(self, lane_id: int, seconds: float) -> None:
        try:
            await self._clock.sleep(seconds)
        finally:
            self._left_alone.discard(lane_id)
            self.heard((lane_id,))

    async def close(self) -> None:
        """Let all go with nothing, and finish what is on its way; idempotent."""
        for wish in list(self._line):
            self._answer(wish, [])
        self._signal.set()
        for errand in self._resting:
            errand.cancel()
        if left := [*([self._runner] if self._runner is not None else []), *self._errands]:
            _, late = await asyncio.wait(left, timeout=CLOSE_WITHIN)
            for task in late:  # the store does not answer: what they hold is left to its lease
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
            self._committer.on_ready.remove(self.heard)
        self._lanes_as_of = 0

    # the loop, while somebody waits

    async def _run(self) -> None:
        """Serve until nobody waits; trouble is told to all who do."""
        try:
            while self._line:
                try:
                    await self._round()
                except StoreError as error:
                    self._emit(StoreTrouble("claiming for outside workers", str(error), 0.0))
                    self._answer_all(error)
                except Exception as error:
                    self._emit(LoopError("waiting room", repr(error)))
                    self._answer_all(StoreUnavailable(f"Tasks could not be claimed: {error!r}"))
        finally:
            self._runner = None

    async def _round(self) -> None:
        """See to what is due, look for those for whom there may be something, let go whose time is over; else rest."""
        self._signal.clear()  # before looking: what is heard meanwhile is looked at again
        if self._unsubscribe is None:
            self._unsubscribe = await self._store.subscribe(self.heard)
            self._committer.on_ready.append(self.heard)
        if not self._lanes_as_of:
            await self._look_up()
        if self._clock.monotonic() - self._ticked_at >= WAKE_EVERY:
            await self._tick()
        chosen = list(islice((wish for wish in self._line if self._hopes(wish)), self._at_once))
        if chosen:
            await asyncio.gather(*(self._serve(wish) for wish in chosen))
        self._let_go()
        if any(wish.came > self._lanes_as_of for wish in self._line):
            await self._look_up()  # a lane may be newer than what was known when it came
        elif self._line and not chosen:
            await self._rest()

    def _let_go(self) -> None:
        """Whose time is over, and for whom was looked in all lanes that there are."""
        now = self._clock.monotonic()
        for wish in list(self._line):
            if wish.until <= now and wish.came <= self._lanes_as_of and (wish.looked or not self._open_to(wish)):
                self._answer(wish, [])

    def _hopes(self, wish: Wish[T]) -> bool:
        lane_ids = self._open_to(wish)
        return bool(lane_ids) and (not wish.looked or not self._hot.isdisjoint(lane_ids))

    def _open_to(self, wish: Wish[T]) -> frozenset[int]:
        return wish.lane_ids - self._left_alone if self._left_alone else wish.lane_ids

    async def _serve(self, wish: Wish[T]) -> None:
        """Look once for this one; when there is nothing, that is known to all."""
        if wish.answer.done():
            self._line.pop(wish, None)
            return
        self._turn += 1
        sent, lane_ids = self._turn, self._open_to(wish)
        try:
            lanes, found = await wish.look(list(lane_ids))
        except StoreError as error:
            self._emit(StoreTrouble("claiming for outside workers", str(error), 0.0))
            self._answer_all(error)
            return
        self._hot.update(lanes)
        if not lanes:
            self._seen_empty(lane_ids, sent)
        if found and wish.answer.done():
            await wish.give_back(found)
        elif found:
            self._answer(wish, found)

    def _seen_empty(self, lane_ids: frozenset[int], sent: int) -> None:
        """A look that was sent then has found nothing in these lanes; what was heard since stands."""
        self._tokens_known = False
        self._hot.difference_update([lane_id for lane_id in lane_ids if max(self._heard.get(lane_id, 0), self._heard_all) <= sent])
        for wish in self._line:
            if wish.came < sent and self._open_to(wish) <= lane_ids:
                wish.looked = True

    async def _look_up(self) -> None:
        """Learn which lanes there are; those who want a new one have not looked yet."""
        self._lanes_as_of = self._turn
        lanes = await self._store.list_lanes()
        if lanes.keys() == self._lanes.keys():  # a lane never changes
            return
        self._lanes = lanes
        self._wanted.clear()
        for wish in self._line:
            wanted = self._lanes_for(wish.wants)
            wish.looked = wish.looked and wanted <= wish.lane_ids
            wish.lane_ids = wanted

    def _lanes_for(self, wants: Wants) -> frozenset[int]:
        if (known := self._wanted.get(wants)) is None:
            if len(self._wanted) >= _MOST_KNOWN:
                self._wanted.clear()
            known = frozenset(lane_id for lane_id, lane in self._lanes.items() if wants(lane))
            self._wanted[wants] = known
        return known

    async def _tick(self) -> None:
        """Make ready what is due, as nobody else may be there to do it; at most once a second, however many wait."""
        self._ticked_at = now = self._clock.monotonic()
        self._tokens_known = False
        if now - self._all_at >= LOOK_EVERY:
            if self._all_at != float("-inf"):
                self.heard(())
            self._all_at = now
        await self._waker.tick()
        if self.on_tick is not None:
            await self.on_tick({wish.who for wish in self._line})

    async def _rest(self) -> None:
        """Until something is heard, somebody's time is over, a lane with a rate has a token, or the next tick."""
        lane_ids = frozenset[int]().union(*(wish.lane_ids for wish in self._line))
        if not self._tokens_known:
            self._tokens_known = True
            token_for = await self._store.next_token_for(list(lane_ids)) if lane_ids else None
            self._token_at = float("inf") if token_for is None else self._clock.monotonic() + token_for / 1000
        pause = min(self._ticked_at + WAKE_EVERY, self._token_at, *(wish.until for wish in self._line)) - self._clock.monotonic()
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

    def _answer(self, wish: Wish[T], found: list[T], error: TreadleError | None = None) -> None:
        self._line.pop(wish, None)
        if wish.answer.done():
            return
        if error is None:
            wish.answer.set_result(found)
        else:
            wish.answer.set_exception(error)

    def _answer_all(self, error: TreadleError) -> None:
        for wish in list(self._line):
            self._answer(wish, [], error)

    def _send(self, errand: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do it whoever waits for it."""
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, errand: asyncio.Task[None]) -> None:
        self._errands.discard(errand)
        if not errand.cancelled() and (error := errand.exception()) is not None:
            self._emit(LoopError("waiting room", repr(error)))
