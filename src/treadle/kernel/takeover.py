"""Takeover: sees that other servers have died, and frees their work without waiting for its leases.

Two kinds of evidence count. The process: a server of the same kernel can see that it has ended, which is certain. The session: the
database has closed the server's connection, and no new one came for `CONFIRM_AFTER`. A server of the same kernel is judged by its
process alone, because a session can also end while its process lives. A wrong judgement is harmless: every write of a server is
fenced by its claims, so the server finds that they are gone, stops their handlers, and registers itself again.

Any number of servers may look; each step is idempotent, and one of them records a death. A server that is alone does not look: it
learns of others by a signal, or with its next heartbeat. `judge` decides, and is pure; `FailureDetector` is the part of one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import msgspec

from treadle.kernel.core import Core, Service
from treadle.kernel.store.ports import SERVERS, Store
from treadle.kernel.store.process import wait_or_sleep
from treadle.kernel.store.queries import Membership, Sighting
from treadle.kernel.telemetry.events import LoopError, PresumedDead, StoreBack, StoreTrouble, WronglyPresumedDead
from treadle.model.errors import StoreError
from treadle.model.tasks import LOST_AFTER, PROCESS, SESSION, evidence_text

CONFIRM_AFTER = 0.5
"""Seconds for which a session must be gone: a process that lost only its connection opens another one within that time."""

LOOK_EVERY = 1.0
LOOK_EVERY_EACH = 0.25
"""Seconds between the looks of all servers of a store together: each looks less often if there are many."""

HasEnded = Callable[[str], bool | None]
"""Whether the process with this identity has ended; None if that cannot be seen from here."""


class LivenessReport(msgspec.Struct, frozen=True):
    """The conclusion of one look."""

    dead: Mapping[str, tuple[Sighting, str]]
    """Dead workers and the kind of evidence, by their id."""
    suspects: Mapping[str, float]
    """Servers without their session, and the time at which that was first seen."""
    local: frozenset[str]
    """The processes of live workers of this kernel."""
    pause: float | None
    """Seconds until the next look; None: there is nobody to look at."""


def judge(
    sightings: Iterable[Sighting], own_id: str, has_ended: HasEnded, suspects: Mapping[str, float], now: float
) -> LivenessReport:
    """Judge all servers except this one. `suspects` are those of the previous look; `now` is monotonic, in seconds."""
    dead: dict[str, tuple[Sighting, str]] = {}
    missing: dict[str, float] = {}
    local, others = set(), 0
    for sighting in sightings:
        if sighting.server_id == own_id:
            continue
        ended = None if sighting.process is None else has_ended(sighting.process)
        is_gone = ended is None and sighting.has_session is False
        since = suspects.get(sighting.server_id, now)
        if ended or (is_gone and now - since >= CONFIRM_AFTER):
            dead[sighting.server_id] = sighting, PROCESS if ended else SESSION
        else:
            if is_gone:
                missing[sighting.server_id] = since
            elif ended is False and sighting.process is not None:
                local.add(sighting.process)
            is_silent = sighting.silent_for > LOST_AFTER * sighting.beat_every_for  # its leases will end its work, if anything does
            others += (sighting.process is not None or sighting.has_session is not None) and not is_silent
    return LivenessReport(dead, missing, frozenset(local), _pause(missing, others, now))


def _pause(suspects: Mapping[str, float], others: int, now: float) -> float | None:
    if suspects:
        return max(min(suspects.values()) + CONFIRM_AFTER - now, 0.0)
    return max(LOOK_EVERY, LOOK_EVERY_EACH * (others + 1)) if others else None


CHECK_EVERY = 0.2
"""Seconds between checks of known processes of this kernel, which cost no statement."""

WITHDRAWN_FOR = 600.0
"""Seconds for which a server that was wrongly taken for dead is not judged by the same evidence."""


async def declare_dead(store: Store, evidence: Mapping[str, str | None]) -> tuple[int, list[str]]:
    """Expire the leases of dead workers and record their end; return the number of leases, and the servers that this call recorded.

    In this order: if this process dies in between, another one repeats it.
    """
    leases = await store.tasks.expire_leases_of(sorted(evidence))
    return leases, await store.servers.end(evidence)


class FailureDetector(Service):
    """Shows others that this server lives, and looks for servers that have died."""

    def __init__(
        self,
        core: Core,
        server_id: str,
        process: Callable[[], str | None],
        has_ended: HasEnded,
        on_freed: Callable[[], None],
        *,
        enabled: bool,
    ) -> None:
        """`process` returns the identity of this process. `on_freed` is called when leases of a dead worker were expired, here or
        by its lease sidecar. Unless `enabled`, the server shows no evidence, and looks at nobody."""
        super().__init__(core)
        self._server_id = server_id
        self._process = process
        self._has_ended = has_ended
        self._on_freed = on_freed
        self._enabled = enabled
        self._withdrawn: dict[str, float] = {}
        self._has_liveness_lock: bool | None = False
        """None: not known."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acquiring: set[asyncio.Future[None]] = set()
        self._suspects: Mapping[str, float] = {}
        self._local: frozenset[str] = frozenset()
        self._next_at = float("-inf")
        self._sooner = asyncio.Event()

    # the evidence by which others may judge this server

    @property
    def process(self) -> str | None:
        """The identity of this process for the server's row, if it may be judged by that. Any thread may read it."""
        return self._process() if self._shows(PROCESS) else None

    async def join(self) -> None:
        """Hold the liveness lock of the registered server, from now on until `leave`."""
        self._loop = asyncio.get_running_loop()
        await self._acquire_liveness_lock()

    async def leave(self) -> None:
        """Release the liveness lock; never raises if the store is unreachable."""
        self._loop = None
        await asyncio.gather(*self._acquiring)
        await self._release_liveness_lock()

    def on_heartbeat(self, membership: Membership) -> None:
        """Process the response to a heartbeat, in any thread: evidence of a wrong judgement does not count for a while."""
        if membership.lost_by is not None:
            self._withdrawn[membership.lost_by] = self._clock.monotonic() + WITHDRAWN_FOR
            self._has_liveness_lock = None  # the row has no session any more
            self._emit(WronglyPresumedDead(evidence_text(membership.lost_by)))
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._after_beat, membership)

    def _after_beat(self, membership: Membership) -> None:
        if membership.others and self._next_at == float("inf"):  # it had stopped looking, because there was nobody
            self.notify()
        if self._loop is not None and self._has_liveness_lock is not self._shows(SESSION):
            self._acquiring.add(task := asyncio.ensure_future(self._acquire_liveness_lock()))
            task.add_done_callback(self._acquiring.discard)

    async def _acquire_liveness_lock(self) -> None:
        """Acquire the liveness lock of the registered server, or release it; notify other servers.

        If the store is unreachable, the next heartbeat shows that it is still to be done.
        """
        if not self._shows(SESSION):
            await self._release_liveness_lock()
            return
        with suppress(StoreError):
            await self._store.servers.acquire_liveness_lock(self._server_id)
            self._has_liveness_lock = True
            await self._store.notify((SERVERS,))

    async def _release_liveness_lock(self) -> None:
        """Release the lock; if the store is unreachable, it is released when the process ends."""
        if self._has_liveness_lock is not False:
            with suppress(StoreError):
                await self._store.servers.release_liveness_lock(self._server_id)
                self._has_liveness_lock = False

    def _shows(self, kind: str) -> bool:
        return self._enabled and self._clock.monotonic() >= self._withdrawn.get(kind, float("-inf"))

    # the search for dead workers

    async def look(self) -> None:
        """Look at all servers once, and declare the dead ones dead."""
        ended = any(self._has_ended(process) for process in self._local)
        sightings = await self._store.servers.list_sightings()
        now = self._clock.monotonic()
        judgement = judge(sightings, self._server_id, self._has_ended, self._suspects, now)
        for server_id, (sighting, kind) in judgement.dead.items():
            leases, recorded = await declare_dead(self._store, {server_id: kind})
            if recorded:
                self._emit(PresumedDead(server_id, sighting.name, evidence_text(kind), leases))
        self._suspects, self._local = judgement.suspects, judgement.local
        spread = 1 + 0.25 * self._ids.random()  # the looks of several servers do not coincide, and no confirmation is shortened
        self._next_at = float("inf") if judgement.pause is None else now + judgement.pause * spread
        if ended or judgement.dead:
            self._on_freed()

    def notify(self) -> None:
        """Look soon, because servers may have changed. Several servers may be notified at the same time."""
        at = self._clock.monotonic() + CHECK_EVERY * self._ids.random()
        if at < self._next_at:
            self._next_at = at
            self._sooner.set()

    async def run(self) -> None:
        """Look for dead workers until canceled; store errors are logged and retried."""
        trouble = False
        while self._enabled:
            if self._clock.monotonic() >= self._next_at or any(self._has_ended(process) for process in self._local):
                try:
                    await self.look()
                    if trouble:
                        trouble = False
                        self._emit(StoreBack("looking for dead workers"))
                except StoreError as error:
                    if not trouble:
                        self._emit(StoreTrouble("looking for dead workers", str(error), 1.0))
                    trouble = True
                    self._retry(1.0)
                except Exception as error:
                    self._emit(LoopError("failure detector", repr(error)))
                    self._retry(10.0)
            self._sooner.clear()
            delay = min(self._next_at - self._clock.monotonic(), CHECK_EVERY if self._local else float("inf"))
            if delay > 0:
                await wait_or_sleep(self._sooner, self._clock, delay)

    def _retry(self, pause: float) -> None:
        self._local = frozenset()
        self._next_at = self._clock.monotonic() + pause
