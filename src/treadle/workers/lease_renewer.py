"""The lease renewer: renews the leases of a process, in its own thread and on its own connection.

A blocked event loop therefore loses no leases. A claim ends here in four ways: the renewal finds that another owner has the row
(and a second read confirms it, D6), the local deadline passes without a successful renewal, the handler reports no progress in
time, or the task was canceled. In each case the loop stops the handler; the store refuses any later result anyway. A second
thread enforces the local deadlines, because a call to the store may hang.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from treadle.kernel.queue.why import InterpreterHold, hold_text
from treadle.kernel.store.operator_ports import LeaseConnection
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Membership, Renewal
from treadle.kernel.telemetry.events import Emit, InterpreterHeld, LoopBlocked, LoopError, StoreBack, StoreTrouble
from treadle.kernel.telemetry.observer import StoreCalled, telemetry_of
from treadle.model.clock import Clock
from treadle.model.errors import StoreError
from treadle.model.tasks import Claim, Server
from treadle.workers.call import handler_in
from treadle.workers.context import Context
from treadle.workers.lease_sidecar.link import LeaseSidecar, SidecarOptions
from treadle.workers.lease_sidecar.process import STARTED, Slot, margin_of

_STOP_WITHIN = 10.0
"""Seconds that `RenewerThread.stop` waits for a call to the store that does not return."""

_MIN_TICK = 0.02
_ASK_EVERY = 0.25
"""Seconds between two looks at the event loop while tasks are held."""
_BLOCKED_AFTER = 1.0
_CHECK_EVERY = 1.0
_CHECKS_PER_SECOND = 2000
"""Maximum number of claims that are checked for cancellation per second; with more claims, each is checked less often."""


class _Holding(msgspec.Struct, eq=False):
    context: Context
    renewed_at: float
    """Monotonic time at which the last successful claim or renewal was sent; the lease counts from there."""
    every: float
    checked_at: float
    progress_within: float | None
    """Seconds within which the handler must report progress, or None."""
    progressed_at: float
    ends_at: float = math.inf
    """When the attempt times out."""
    slot: Slot | None = None
    """The claim's slot on the lease table of the lease sidecar."""
    started: bool = False


class LeaseRenewer:
    """Renews the claims of one process. Any thread may call `hold` and `drop`; only the renewer's thread calls `tick`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        lease_for: int,
        on_lost: Callable[[Claim, str], None],
        describe: Callable[[], Server],
        emit: Emit,
        beat_every: float = 10.0,
        sidecar_options: SidecarOptions | None = None,
        on_beat: Callable[[Membership], None] = lambda membership: None,
    ) -> None:
        """`sidecar_options`: None for no lease sidecar. `on_beat` is called in the renewer's thread."""
        self._connection: LeaseConnection = store.servers.lease_connection()
        self._clock = clock
        self._lease_for = lease_for
        self._lease = lease_for / 1000
        self.renew_every = self._lease / 3
        """Seconds between renewals."""
        self._on_lost = on_lost
        self._describe = describe
        self._on_beat = on_beat
        self._emit = emit
        self._telemetry = telemetry_of(emit)
        self._beat_every = beat_every
        self._beaten_at = float("-inf")
        self._margin = margin_of(self._lease)
        self._watch_every = min(1.0, self._lease / 10)
        self._held: dict[str, _Holding] = {}
        self._lost: dict[Claim, _Holding] = {}
        """Lost claims whose handlers have not ended: the lease sidecar must not take them for tasks that never started."""
        self._stalled: list[Claim] = []
        """Lost claims of handlers without progress, whose leases the next tick ends."""
        self._losing = threading.Lock()
        self._trouble = False
        self._sidecar_options = sidecar_options
        self._sidecar: LeaseSidecar | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None
        """When the event loop was asked to answer, until it does."""
        self._asks_at = float("-inf")
        """When it was last looked whether the event loop has answered."""
        self._blocked = False
        """Whether a block of the event loop was reported that has not ended."""
        self._watched_at = clock.monotonic()
        self.last_hold: InterpreterHold | None = None
        """The last time that some code of this process held the interpreter lock for too long."""

    def start_sidecar(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the lease sidecar of this process act when this renewer cannot; handlers run on that loop."""
        self._loop = loop
        if self._sidecar_options is not None:
            self._sidecar = LeaseSidecar(self._sidecar_options, self._lease, self._watch_every, self._clock, self._emit)

    @property
    def tick_every(self) -> float:
        """Seconds between ticks: short enough to renew in time, and to store progress within a second."""
        paces = [holding.every for holding in list(self._held.values()) if holding.progress_within is not None]
        return min(1.0, self._lease / 4, max(min(paces, default=1.0), _MIN_TICK))

    def hold(self, context: Context, claimed_at: float, progress_for: int | None = None, timeout_for: int | None = None) -> None:
        """Renew this claim from now on; `claimed_at` is the monotonic time at which the claim was sent.

        `progress_for` and `timeout_for` are the handler's deadlines in milliseconds; the task's own take precedence.
        """
        task, token = context.task, context.token
        every, progress_within, ends_at = self.renew_every, None, math.inf
        within = task.progress_for if task.progress_for is not None else progress_for
        if within is not None:
            every, progress_within = min(every, within / 3000), within / 1000
        timeout_for = task.timeout_for if task.timeout_for is not None else timeout_for
        if timeout_for is not None:
            ends_at = claimed_at + timeout_for / 1000
        holding = _Holding(context, claimed_at, every, claimed_at, progress_within, claimed_at, ends_at)
        if self._sidecar is not None:
            kept_until = ends_at if progress_within is None else _kept_until(holding)
            holding.slot = self._sidecar.table.hold(token.task_id, token.version, claimed_at, kept_until)
        with self._losing:
            older = self._held.get(token.task_id)
            self._held[token.task_id] = holding
            if older is not None:
                self._hide(older)

    def set_claiming(self, claiming: bool) -> None:
        """Show the lease sidecar whether a claim is on its way, which nobody has started if this process dies."""
        if self._sidecar is not None:
            self._sidecar.table.state.claiming = claiming

    def start(self, claim: Claim) -> bool:
        """Note that the handler starts; return false if the claim is lost, so that the handler must not start."""
        holding = self._held.get(claim.task_id)
        if holding is None or holding.context.token.version != claim.version:
            return False
        if (now := self._clock.monotonic()) >= self._ends_at(holding):
            self._adopt(holding)
            if now >= self._ends_at(holding):
                return False
        holding.started = True
        if holding.slot is not None:
            holding.slot.state = STARTED
        return True

    def drop(self, claim: Claim) -> None:
        """Stop renewing a claim that was settled or lost. A later claim on the same task stays."""
        with self._losing:
            if self._lost and (lost := self._lost.pop(claim, None)) is not None:
                self._hide(lost)
            holding = self._held.get(claim.task_id)
            if holding is not None and holding.context.token.version == claim.version:
                del self._held[claim.task_id]
                self._hide(holding)

    def tick(self) -> None:
        """Enforce local deadlines, renew the leases that are due or have progress, check for cancellation, send a heartbeat."""
        self.enforce_deadlines()  # first: after a standstill, a lease that was given up is not renewed
        now = self._clock.monotonic()
        held = list(self._held.items())
        try:
            self._renew(held, now)
            if stalled := list(self._stalled):
                self._connection.renew([Renewal(claim) for claim in stalled], round(self._margin * 1000))
                del self._stalled[: len(stalled)]
            self._check(held, now)
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
            self.enforce_deadlines()

    def enforce_deadlines(self) -> float:
        """Lose the claims past their local deadline; return the seconds until the next one. Never calls the store.

        The deadline is shortly before the end of the lease, so that the handler has stopped when another worker takes over.
        """
        now = self._clock.monotonic()
        if (sidecar := self._sidecar) is not None:
            with self._losing:
                since, self._watched_at = self._watched_at, now
                holder = sidecar.beat(now)
            if holder and now - since > 2 * self._watch_every:
                self._report_hold(handler_in(holder, self._loop, since, now), since, now)
        self._watch_loop(now)
        next_at = now + min(self._watch_every, _ASK_EVERY if self._held else math.inf)
        for task_id, holding in list(self._held.items()):
            self._adopt(holding)
            ends_at = self._ends_at(holding)
            if now >= ends_at:
                self._lose(task_id, holding, "its lease expired before it could be renewed")
            elif (within := holding.progress_within) is None or holding.context.progressed:
                next_at = min(next_at, ends_at)
            elif now >= holding.progressed_at + within:
                self._lose(task_id, holding, f"it made no progress for {within:g} s; its lease ends")
                self._stalled.append(holding.context.token)
            else:
                next_at = min(next_at, ends_at, holding.progressed_at + within)
        return next_at - now

    def _watch_loop(self, now: float) -> None:
        """Report an event loop that does not answer for a second, once, with the handler that it executes."""
        is_late = now - self._asks_at > 2 * self._watch_every  # this thread could not run either
        self._asks_at = now
        if self._loop is None or self._loop.is_closed():
            return
        if self._asked_at is None and self._held:
            self._asked_at = now
            with suppress(RuntimeError):  # it was closed just now
                self._loop.call_soon_threadsafe(self._loop_answered)
        elif self._asked_at is not None and is_late:
            self._asked_at = now
        elif self._asked_at is not None and not self._blocked and now - self._asked_at >= _BLOCKED_AFTER:
            self._blocked = True
            handler = handler_in(0, self._loop, self._asked_at, now)
            self._emit(LoopBlocked(handler or "unknown code", now - self._asked_at))

    def _loop_answered(self) -> None:
        self._asked_at, self._blocked = None, False

    def _report_hold(self, handler: str | None, since: float, now: float) -> None:
        slots = [holding.slot for holding in list(self._held.values())]
        renewed_count = sum(slot is not None and slot.extended_at >= since for slot in slots)
        text = hold_text(handler, now - since)
        self.last_hold = InterpreterHold(handler=handler, seconds=round(now - since, 1), at=self._clock.now(), message=text)
        self._emit(InterpreterHeld(handler, now - since, renewed_count, text))
        self._beaten_at = float("-inf")  # store it with the next tick

    def beat(self) -> None:
        """Send this server's heartbeat; after others had taken it for dead another one, because its description has changed."""
        membership = self._connection.beat(self._describe())
        self._on_beat(membership)
        if membership.lost_by is not None:
            self._connection.beat(self._describe())
        self._beaten_at = self._clock.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def leave_sidecar(self) -> None:
        """Show the lease sidecar no claim any more; idempotent."""
        with self._losing:
            for holding in (*self._held.values(), *self._lost.values()):
                self._hide(holding)
            sidecar, self._sidecar = self._sidecar, None
        if sidecar is not None:
            sidecar.close()

    def _renew(self, held: list[tuple[str, _Holding]], now: float) -> None:
        for _, holding in held:
            if holding.context.before_renewal is not None:
                holding.context.before_renewal()
        due = [item for item in held if now - item[1].renewed_at >= item[1].every or item[1].context.progressed]
        if not due:
            return
        renewals = []
        for _, holding in due:
            context = holding.context
            progressed, context.progressed = context.progressed, False
            if progressed:
                holding.progressed_at = now
                if holding.slot is not None:
                    holding.slot.ends_at = _kept_until(holding)
            renewals.append(Renewal(context.token, progressed, context.progress_text if progressed else None))
        failed = True
        sent_at = self._clock.monotonic()
        try:
            extended = self._connection.renew(renewals, self._lease_for)
            failed = False
        except StoreError:
            for (_, holding), renewal in zip(due, renewals, strict=True):
                holding.context.progressed |= renewal.progressed  # the next renewal reports it again
            raise
        finally:
            if self._telemetry.observe is not None:
                self._telemetry.observe(StoreCalled("renew", self._clock.monotonic() - sent_at, len(renewals), failed))
        for task_id, holding in due:
            if task_id in extended:
                holding.renewed_at = holding.checked_at = now
                if holding.slot is not None:
                    holding.slot.renewed_at = now
        self._lose_unheld([item for item in due if item[0] not in extended])

    def _check(self, held: list[tuple[str, _Holding]], now: float) -> None:
        every = max(_CHECK_EVERY, len(held) / _CHECKS_PER_SECOND)
        due = [item for item in held if now - item[1].checked_at >= every]
        for _, holding in due:
            holding.checked_at = now
        self._lose_unheld(due)

    def _lose_unheld(self, suspects: list[tuple[str, _Holding]]) -> None:
        """Lose the claims that the store no longer has, except those that were dropped meanwhile."""
        suspects = [item for item in suspects if item[0] in self._held]
        if not suspects:
            return
        still = self._connection.held([holding.context.token for _, holding in suspects])
        for task_id, holding in suspects:
            if task_id not in still:
                self._lose(task_id, holding, "it was canceled, or taken over by another worker")

    def _lose(self, task_id: str, holding: _Holding, reason: str) -> None:
        with self._losing:
            if self._held.get(task_id) is not holding:
                return
            del self._held[task_id]
            if holding.started and holding.slot is not None:
                self._lost[holding.context.token] = holding
                holding.slot.ends_at = 0.0
            else:
                self._hide(holding)
        holding.context.cancel()
        self._on_lost(holding.context.token, reason)

    def _ends_at(self, holding: _Holding) -> float:
        return holding.renewed_at + self._lease - self._margin

    def _adopt(self, holding: _Holding) -> None:
        """Take over the lease sidecar's renewal of a claim, which it made while this process could not."""
        if holding.slot is not None:
            holding.renewed_at = max(holding.renewed_at, holding.slot.extended_at)

    def _hide(self, holding: _Holding) -> None:
        """Remove the claim from the lease table of the lease sidecar."""
        if holding.slot is not None and self._sidecar is not None:
            slot, holding.slot = holding.slot, None
            self._sidecar.table.drop(slot)


def _kept_until(holding: _Holding) -> float:
    """Return when the attempt times out or has made no progress for too long, whichever comes first."""
    return min(holding.ends_at, math.inf if holding.progress_within is None else holding.progressed_at + holding.progress_within)


class RenewerThread:
    """Runs a renewer's ticks in a thread until stopped, then sends one last heartbeat; a second thread enforces deadlines."""

    def __init__(self, renewer: LeaseRenewer, emit: Emit) -> None:
        self._renewer = renewer
        self._emit = emit
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="treadle-lease-renewer", daemon=True),
            threading.Thread(target=self._enforce_deadlines, name="treadle-lease-deadlines", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads and wait for the tick in progress, unless the store does not answer."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_STOP_WITHIN)
        self._renewer.leave_sidecar()

    def _enforce_deadlines(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = self._renewer.enforce_deadlines()
            except Exception as error:
                pause = self._renewer.tick_every
                self._emit(LoopError("lease deadlines", repr(error)))

    def _run(self) -> None:
        while not self._stop.wait(self._renewer.tick_every):
            try:
                self._renewer.tick()
            except Exception as error:
                self._emit(LoopError("lease renewer", repr(error)))
        try:
            self._renewer.beat()
        except Exception as error:
            self._emit(LoopError("lease renewer", f"could not send the last heartbeat: {error!r}"))
        self._renewer.close()
