"""A simulated process: its clock, ids, tasks, and its crash.

Everything started from within a process belongs to it. A crash cuts it off from the outside (the store, the services that its
handlers call), and then cancels its tasks; the effects of their `finally` blocks reach nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from treadle.kernel.telemetry.events import Emit, LoopError
from treadle.kernel.watchers.scan import SourceReader
from treadle.model.clock import Clock
from treadle.testing.clock import START_AT, SeededIds
from treadle.testing.simulation.machine import NoFiles, VirtualExecutor, VirtualScripts
from treadle.workers.builtins import Scripts
from treadle.workers.call import Executor
from treadle.workers.lease_renewer import LeaseRenewer

if TYPE_CHECKING:
    from treadle.testing.simulation.simulation import Simulation


class Fault(StrEnum):
    """A kind of fault."""

    CRASH_BEFORE = "crash before"
    """The process dies, and the store never receives the call."""
    CRASH_AFTER = "crash after"
    """The store has executed the call, and the process dies before the answer."""
    CRASH_AT = "crash at"
    """The process dies at a named failpoint of the kernel (`kernel.store.process`)."""
    CRASH_OUTSIDE = "crash outside"
    """The process dies while a handler waits for a service, which has done the work."""
    REFUSED = "refused"
    """The store is unreachable; nothing was done."""
    LOST_ANSWER = "lost answer"
    """The store has executed the call, and the connection breaks before the answer."""
    TWICE = "twice"
    """A commit arrives twice."""
    SLOW = "slow"
    """A call takes as long as a lease, before or after the store executes it."""
    STALL = "stall"
    """The process stops for longer than a lease, and then continues."""
    DEAF = "deaf"
    """A signal is lost."""
    FULL = "full"
    """The disk is full for a while: nothing can be written."""
    PRESUMED_DEAD = "presumed dead"
    """A process takes another one for dead that is alive, and frees its work."""
    JUMP = "jump"
    """The clock of a process jumps."""
    OUTSIDE = "outside"
    """A service called by a handler raises, before or after it has done the work."""


RATES: Mapping[Fault, tuple[float, float]] = {
    Fault.CRASH_BEFORE: (0.0005, 0.01),
    Fault.CRASH_AFTER: (0.0005, 0.01),
    Fault.CRASH_AT: (0.001, 0.03),
    Fault.CRASH_OUTSIDE: (0.03, 0.3),
    Fault.REFUSED: (0.002, 0.1),
    Fault.LOST_ANSWER: (0.002, 0.1),
    Fault.TWICE: (0.01, 0.3),
    Fault.SLOW: (0.001, 0.02),
    Fault.STALL: (0.002, 0.01),
    Fault.DEAF: (0.1, 1.0),
    Fault.FULL: (0.0005, 0.003),
    Fault.PRESUMED_DEAD: (0.001, 0.03),
    Fault.JUMP: (0.0002, 0.002),
    Fault.OUTSIDE: (0.05, 0.5),
}
"""The range of rates of each kind per opportunity, in histories that have it."""


_CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_AT, Fault.CRASH_OUTSIDE)


@dataclass(slots=True)
class Faults:
    """The faults of one history; missing `rates` are 0. `lease` is in seconds."""

    rng: random.Random
    lease: float
    rates: dict[Fault, float] = field(default_factory=dict)
    skew: float = 0.0
    """Maximum difference between the clocks of two processes, in seconds."""
    crashes_left: int = 8
    jumps_left: int = 2
    on: bool = True

    @classmethod
    def draw(cls, rng: random.Random, lease: float, often: Collection[Fault] = ()) -> Faults:
        """Draw a mix: each kind is in about half of the histories, and one in sixteen has none; the kinds in `often` are always
        included."""
        rates: dict[Fault, float] = {}
        if rng.random() >= 1 / 16:
            for fault, (low, high) in RATES.items():
                if rng.random() < 0.5:
                    rates[fault] = low * (high / low) ** rng.random()
        rates |= {fault: RATES[fault][1] for fault in often}
        skew = rng.choice((0.0, 0.0, lease / 10, lease / 3)) if rates else 0.0
        return cls(rng, lease, rates, skew)

    def happens(self, fault: Fault, weight: float = 1.0) -> bool:
        """Whether the fault happens now; `weight` raises the rate at some moments."""
        rate = self.rates.get(fault)
        if not rate or not self.on or self.rng.random() >= rate * weight:
            return False
        if fault in _CRASHES:
            if not self.crashes_left:
                return False
            self.crashes_left -= 1
        elif fault is Fault.JUMP:
            if not self.jumps_left:
                return False
            self.jumps_left -= 1
        return True

    def offset(self) -> int:
        """Return the clock error of a new process, in milliseconds."""
        return round(self.rng.uniform(-self.skew, self.skew) * 1000)

    def latency(self) -> float:
        """Return the one-way latency of a message, in seconds."""
        return self.rng.random() * 0.004

    def standstill(self) -> float:
        """Return the seconds for which a process stalls: usually long enough to lose its leases."""
        return self.rng.uniform(0.5, 3.0) * self.lease

    def long(self) -> float:
        """Return the seconds of a very slow call: sometimes longer than the lease."""
        return self.rng.uniform(0.05, 1.5) * self.lease


_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated_process", default=None)

_ROUNDS = 1000
"""Rounds of cancellation after which a task counts as immortal."""


def current_process() -> Process | None:
    """Return the running process, if any."""
    return _current.get()


class VirtualClock:
    """Implements `treadle.model.clock.Clock` on the running virtual loop; wall clocks deviate by their `offset` (ms)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset: int = 0) -> None:
        self._loop = loop
        self.offset = offset

    def now(self) -> int:
        """Return the wall clock, in milliseconds since 1970 UTC."""
        return START_AT + int(self._loop.time() * 1000) + self.offset

    def monotonic(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await asyncio.sleep(seconds)


class Process:
    """One process of the simulation. `name` is that of the server; each start has a new `pid`."""

    def __init__(self, simulation: Simulation, name: str, pid: int) -> None:
        self.simulation = simulation
        self.name, self.pid, self.host = name, pid, "simulated"
        self.shown = f"{name}.{pid}"
        self.clock = VirtualClock(simulation.loop, simulation.faults.offset())
        self.ids = SeededIds(simulation.rng.getrandbits(64), self.clock)
        self.owner_ids: set[str] = set()
        self.alive = True
        self.stalled_until = 0.0
        self.gone = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # life cycle

    def spawn(self, doing: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a coroutine in this process, from outside."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return self.simulation.loop.create_task(doing, context=context)

    def run(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in this process, from outside."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        context.run(call, *arguments)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Register a task that was started from within."""
        self._tasks[task] = None
        task.set_name(self.shown)
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if not self.alive:
            task.cancel()

    def had(self, task: asyncio.Task[Any]) -> bool:
        """Whether the task was started in this process."""
        return task.get_name() == self.shown

    @property
    def tasks(self) -> tuple[asyncio.Task[Any], ...]:
        """Return the tasks of this process."""
        return tuple(self._tasks)

    def tell(self, what: str) -> None:
        """Add a line to the trace, unless the process is dead."""
        if self.alive:
            self.simulation.trace.add(self.simulation.loop.time(), self.shown, what)

    def crash(self, why: str) -> None:
        """Crash immediately."""
        if not self.alive:
            return
        self.tell(f"=== {why}")
        self.alive = False
        self.simulation.loop.call_soon(self._cancel_tasks, _ROUNDS)

    def _cancel_tasks(self, rounds: int) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            self.gone.set()
        elif rounds:
            self.simulation.loop.call_soon(self._cancel_tasks, rounds - 1)
        else:
            self.simulation.wrong(f"{self.shown}: tasks that cannot be canceled: {tasks}")
            self.gone.set()

    def stall(self, seconds: float) -> None:
        """Stall: until the end, nothing leaves the process, and it reacts to nothing."""
        self.tell(f"=== stalls for {seconds:.1f} s")
        self.stalled_until = max(self.stalled_until, self.simulation.loop.time() + seconds)

    async def pass_gate(self) -> None:
        """Pass everything that enters or leaves the process: a stalled process waits here, a dead one never returns."""
        while self.alive and (remaining := self.stalled_until - self.simulation.loop.time()) > 0:  # noqa: ASYNC110 - it may be put off
            await asyncio.sleep(remaining + self.simulation.faults.latency())
        if not self.alive:
            raise asyncio.CancelledError

    # the machine of a worker host: `treadle.engine.machine.HostMachine`

    def is_alive(self, pid: int) -> bool:
        """Whether another live process of the simulation has that pid."""
        return pid != self.pid and self.simulation.is_alive(pid)

    def identity(self) -> str | None:
        """Return the pid, which no other process of the simulation gets; None in histories that only know leases."""
        return str(self.pid) if self.simulation.sees_deaths else None

    def has_ended(self, identity: str) -> bool | None:
        """Whether that process is dead; sometimes a live one seems to be."""
        pid, simulation = int(identity), self.simulation
        if not simulation.is_alive(pid):
            return True
        if pid != self.pid and simulation.faults.happens(Fault.PRESUMED_DEAD):
            simulation.trace.count(Fault.PRESUMED_DEAD)
            simulation.presumed.add((self.pid, pid))
            self.tell(f"!!! {Fault.PRESUMED_DEAD}: takes process {pid} for dead")
            return True
        return False

    def executor(self, threads: int) -> VirtualExecutor:
        """Return threads and processes that are coroutines."""
        return VirtualExecutor(self)

    def source_reader(self, executor: Executor, clock: Clock, allowed: Sequence[str]) -> SourceReader:
        """Return the simulated files."""
        return NoFiles() if self.simulation.source_reader is None else self.simulation.source_reader(self)

    def scripts(self) -> Scripts:
        """Return scripts that run in this process, without isolation."""
        return VirtualScripts(self)

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Tick it in a coroutine, as `RenewerThread` does in a thread."""
        stopping = asyncio.Event()
        renewing = asyncio.get_running_loop().create_task(self._renew_leases(renewer, emit, stopping))

        async def stop() -> None:
            stopping.set()
            await asyncio.wait([renewing])

        return stop

    async def _renew_leases(self, renewer: LeaseRenewer, emit: Emit, stopping: asyncio.Event) -> None:
        faults = self.simulation.faults
        while not stopping.is_set():
            try:
                async with asyncio.timeout(renewer.tick_every + faults.latency()):
                    await stopping.wait()
            except TimeoutError:
                await self.pass_gate()
                _do(renewer.tick, emit)
        await self.pass_gate()
        _do(renewer.beat, emit, "could not send the last heartbeat: ")
        renewer.close()


def _do(what: Callable[[], None], emit: Emit, unsaid: str = "") -> None:
    """Report an error as `RenewerThread` does."""
    try:
        what()
    except Exception as error:
        emit(LoopError("lease renewer", f"{unsaid}{error!r}"))


def make_task(
    loop: asyncio.AbstractEventLoop, doing: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    """The task factory of the loop: tasks started by a process belong to it. The options depend on the Python version."""
    context: contextvars.Context | None = options.get("context")
    process = context[_current] if context is not None and _current in context else _current.get()
    task: asyncio.Task[Any] = asyncio.Task(doing, loop=loop, **options)
    if process is not None:
        process.adopt(task)
    return task
