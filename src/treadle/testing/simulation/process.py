"""A simulated process: its clock, ids, tasks, and its crash.

Everything started from within a process belongs to it. A crash cuts it off from the outside (the store, the services that its
handlers call), and then cancels its tasks; the effects of their `finally` blocks reach nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
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


class Faults:
    """The faults of a history: none. A subclass decides at each of these points whether something goes wrong there."""

    def __init__(self, rng: random.Random, lease: float) -> None:
        """`lease` is in seconds."""
        self.rng, self.lease = rng, lease

    def latency(self) -> float:
        """Return the one-way latency of a message, in seconds."""
        return self.rng.random() * 0.004

    def offset(self) -> int:
        """Return the clock error of a new process, in milliseconds."""
        return 0

    def stop(self) -> None:
        """Called when the story has ended: nothing goes wrong from now on."""

    async def delay_call(self, process: Process, name: str) -> None:
        """Called when a call of the store leaves its process."""

    async def delay_answer(self, process: Process, name: str) -> None:
        """Called when the answer of the store leaves for the process."""

    def before(self, process: Process, name: str) -> None:
        """Called before the store receives a call; an exception is raised in the process instead."""

    def after(self, process: Process, name: str) -> None:
        """Called after the store has executed a call; an exception is raised in the process in place of the answer."""

    def repeats(self, process: Process, name: str) -> bool:
        """Whether the call arrives twice."""
        return False

    def at(self, process: Process, point: str) -> None:
        """Called at a named failpoint of the kernel (`kernel.store.process`)."""

    def after_call(self, process: Process) -> None:
        """Called after each call, also the lease renewer's."""

    def loses_signal(self) -> bool:
        """Whether a signal to another process is lost."""
        return False

    def presumes_dead(self, process: Process, pid: int) -> bool:
        """Whether the process takes a live one for dead."""
        return False


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
        self.alive = True
        self.stalled_until = 0.0
        self.gone = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # life cycle

    def spawn(self, activity: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a coroutine in this process, from outside."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return self.simulation.loop.create_task(activity, context=context)

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

    def trace(self, what: str) -> None:
        """Add a line to the trace, unless the process is dead."""
        if self.alive:
            self.simulation.trace.add(self.simulation.loop.time(), self.shown, what)

    def crash(self, why: str) -> None:
        """Crash immediately."""
        if not self.alive:
            return
        self.trace(f"=== {why}")
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
        self.trace(f"=== stalls for {seconds:.1f} s")
        self.stalled_until = max(self.stalled_until, self.simulation.loop.time() + seconds)

    async def pass_gate(self) -> None:
        """Pass everything that enters or leaves the process: a stalled process waits here, a dead one never returns."""
        while self.alive and (remaining := self.stalled_until - self.simulation.loop.time()) > 0:  # noqa: ASYNC110 - it may be put off
            await asyncio.sleep(remaining + self.simulation.faults.latency())
        if not self.alive:
            raise asyncio.CancelledError

    # the machine of a worker host: `treadle.engine.machine.HostMachine`

    def identity(self) -> str | None:
        """Return the pid, which no other process of the simulation gets; None in histories that only know leases."""
        return str(self.pid) if self.simulation.sees_deaths else None

    def has_ended(self, identity: str) -> bool | None:
        """Whether that process is dead; sometimes a live one seems to be."""
        pid, simulation = int(identity), self.simulation
        return not simulation.is_alive(pid) or (pid != self.pid and simulation.faults.presumes_dead(self, pid))

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
    loop: asyncio.AbstractEventLoop, activity: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    """The task factory of the loop: tasks started by a process belong to it. The options depend on the Python version."""
    context: contextvars.Context | None = options.get("context")
    process = context[_current] if context is not None and _current in context else _current.get()
    task: asyncio.Task[Any] = asyncio.Task(activity, loop=loop, **options)
    if process is not None:
        process.adopt(task)
    return task
