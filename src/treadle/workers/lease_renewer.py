"""The lease keeper: renews what is held, in a thread and on a connection of its own, so that a blocked event loop costs no leases.

Four things end a holding: the renewal finds that the row is no longer ours (and a second look confirms it, D6), the local
deadline passes without a renewal having succeeded, the handler makes no progress, or somebody canceled the task. Each is
told to the loop, which stops the handler; whatever the handler still produces is refused by the store anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from treadle.kernel.store.ports import LeaseConnection, ServerStore
from treadle.kernel.store.queries import Renewal
from treadle.kernel.telemetry.events import Emit, LoopError, StoreBack, StoreTrouble
from treadle.kernel.telemetry.observer import StoreCalled, telemetry_of
from treadle.model.clock import Clock
from treadle.model.errors import StoreError
from treadle.model.tasks import Claim, Server
from treadle.workers.context import Context

_LOOK_EVERY = 1.0
_LOOKS_PER_SECOND = 2000
"""Claims that are looked at per second for cancels by others: with more, each is looked at less often."""


@dataclass(slots=True)
class _Holding:
    context: Context
    renewed_at: float
    """When the last successful claim or renewal was sent, on the monotonic clock: the lease is counted from there."""
    every: float
    looked_at: float
    progress_within: float | None
    """Seconds within which it must say that it gets on, or None."""
    progressed_at: float


class LeaseRenewer:
    """Keeps the claims of one process. `hold` and `drop` may be called from any thread; `tick` from the keeper's own."""

    def __init__(
        self,
        store: ServerStore,
        clock: Clock,
        lease_for: int,
        on_lost: Callable[[Claim, str], None],
        describe: Callable[[], Server],
        emit: Emit,
        beat_every: float = 10.0,
    ) -> None:
        self._line: LeaseConnection = store.lease_connection()
        self._clock = clock
        self._lease_for = lease_for
        self._lease = lease_for / 1000
        self.renew_every = self._lease / 3
        """Seconds between renewals."""
        self._on_lost = on_lost
        self._describe = describe
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._beat_every = beat_every
        self._beaten_at = float("-inf")
        self._held: dict[str, _Holding] = {}
        self._trouble = False

    @property
    def tick_every(self) -> float:
        """Seconds between ticks: often enough for a third of the lease, and for progress to be seen within a second."""
        return min(1.0, self._lease / 4)

    def hold(self, context: Context, claimed_at: float, progress_for: int | None = None) -> None:
        """Keep this claim from now on; `claimed_at` is the monotonic time at which the claim was sent.

        `progress_for` is the handler's own progress deadline, for a task that brings none.
        """
        every = self.renew_every
        within = context.task.progress_for if context.task.progress_for is not None else progress_for
        if within is not None:
            every = min(every, within / 3000)
        self._held[context.task.id] = _Holding(
            context, claimed_at, every, claimed_at, None if within is None else within / 1000, claimed_at
        )

    def drop(self, claim: Claim) -> None:
        """Forget the claim: it was settled, or lost. A later claim on the same task stays."""
        holding = self._held.get(claim.task_id)
        if holding is not None and holding.context.token.version == claim.version:
            self._held.pop(claim.task_id, None)

    def tick(self) -> None:
        """One round: renew what is due or has progressed, look for cancels, enforce local deadlines, beat."""
        now = self._clock.monotonic()
        held = list(self._held.items())
        try:
            self._renew(held, now)
            self._look(held, now)
            if now - self._beaten_at >= self._beat_every:
                self.beat()
            if self._trouble:
                self._trouble = False
                self._emit(StoreBack("renewing leases"))
        except StoreError as error:
            if not self._trouble:
                self._emit(StoreTrouble("renewing leases", str(error), self.tick_every))
            self._trouble = True
        finally:
            self._enforce(held)

    def beat(self) -> None:
        """Tell the store that this server lives."""
        self._line.beat(self._describe())
        self._beaten_at = self._clock.monotonic()

    def close(self) -> None:
        """Give the line back."""
        self._line.close()

    def _renew(self, held: list[tuple[str, _Holding]], now: float) -> None:
        due = [item for item in held if now - item[1].renewed_at >= item[1].every or item[1].context.progressed]
        if not due:
            return
        renewals = []
        for _, holding in due:
            context = holding.context
            progressed, context.progressed = context.progressed, False
            if progressed:
                holding.progressed_at = now
            renewals.append(Renewal(context.token, progressed, context.progress_text if progressed else None))
        failed = True
        sent_at = self._clock.monotonic()
        try:
            extended = self._line.renew(renewals, self._lease_for)
            failed = False
        except StoreError:
            for (_, holding), renewal in zip(due, renewals, strict=True):
                holding.context.progressed |= renewal.progressed  # say it again with the next one
            raise
        finally:
            if self._telemetry.observe is not None:
                self._telemetry.observe(StoreCalled("renew", self._clock.monotonic() - sent_at, len(renewals), failed))
        for task_id, holding in due:
            if task_id in extended:
                holding.renewed_at = holding.looked_at = now
        self._give_up([item for item in due if item[0] not in extended])

    def _look(self, held: list[tuple[str, _Holding]], now: float) -> None:
        every = max(_LOOK_EVERY, len(held) / _LOOKS_PER_SECOND)
        old = [item for item in held if now - item[1].looked_at >= every]
        for _, holding in old:
            holding.looked_at = now
        self._give_up(old)

    def _give_up(self, suspects: list[tuple[str, _Holding]]) -> None:
        """Lose those that the store says are not ours; one that was settled meanwhile is none of our business."""
        suspects = [item for item in suspects if item[0] in self._held]
        if not suspects:
            return
        still = self._line.held([holding.context.token for _, holding in suspects])
        for task_id, holding in suspects:
            if task_id not in still:
                self._lose(task_id, holding, "it was canceled, or taken over by another worker")

    def _enforce(self, held: list[tuple[str, _Holding]]) -> None:
        """Local deadlines hold whatever the store says, or does not say."""
        now = self._clock.monotonic()
        for task_id, holding in held:
            if now >= holding.renewed_at + self._lease:
                self._lose(task_id, holding, "its lease ran out before it could be renewed")
            elif holding.progress_within is not None and now >= holding.progressed_at + holding.progress_within:
                self._lose(task_id, holding, f"it made no progress for {holding.progress_within:g} s; its lease is left to run out")

    def _lose(self, task_id: str, holding: _Holding, reason: str) -> None:
        if self._held.get(task_id) is holding:
            del self._held[task_id]
            holding.context.cancel()
            self._on_lost(holding.context.token, reason)


class KeeperThread:
    """Runs a keeper's ticks in a thread until stopped; the last thing it does is one more beat."""

    def __init__(self, keeper: LeaseRenewer, emit: Emit) -> None:
        self._keeper = keeper
        self._emit = emit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop it and wait for the tick in progress."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._keeper.tick_every):
            try:
                self._keeper.tick()
            except Exception as error:
                self._emit(LoopError("lease keeper", repr(error)))
        try:
            self._keeper.beat()
        except Exception as error:
            self._emit(LoopError("lease keeper", f"could not say goodbye: {error!r}"))
        self._keeper.close()
