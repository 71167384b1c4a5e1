"""One history: processes that share a store, on one loop, one thread and one seed."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

from treadle.engine import Engine
from treadle.engine.worker_host import WorkerHost
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import arm
from treadle.kernel.store.value_store import Codec
from treadle.kernel.telemetry.events import TelemetryEvent
from treadle.kernel.watchers.scan import SourceReader
from treadle.model.clock import Clock
from treadle.model.errors import StoreError
from treadle.model.names import DEFAULT_LIST
from treadle.settings import Settings
from treadle.stores.sqlite import SqliteStore
from treadle.testing.simulation.process import Faults, Process, VirtualClock, current_process, make_task
from treadle.testing.simulation.store import SimulatedSignals, simulated_store, summary

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NothingToDo(RuntimeError):
    """Every task waits, and no timer is left."""


class _Timers:
    """Replaces the selector: instead of waiting, it advances the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingToDo("Every task waits, and no timer is left to wake one.")
        self._loop.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Time begins at 0 seconds. Calls for an executor run on the loop, in their turn."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0
        self._selector = _Timers(self)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual

    def advance(self, seconds: float) -> None:
        """Advance the time. Rounding may miss a timer by one float, which is within the resolution of the loop's clock."""
        self._virtual += max(seconds, 0.0)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call the function on the loop."""
        answer: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if answer.cancelled():
                return
            try:
                answer.set_result(func(*args))
            except Exception as error:
                answer.set_exception(error)

        self.call_soon(call)
        return answer

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there is no IO."""

    def _write_to_self(self) -> None:
        """Do nothing: no selector blocks."""


LAST = 400
"""Maximum number of lines in a report, from the end of the history."""


class SimulationTrace:
    """Lines of (seconds, process, text)."""

    def __init__(self) -> None:
        self._lines: list[tuple[float, str, str]] = []

    def add(self, at: float, who: str, what: str) -> None:
        """Append a line."""
        self._lines.append((at, who, what))

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def digest(self) -> str:
        """Return the digest of the whole history."""
        whole = hashlib.sha256()
        for at, who, what in self._lines:
            whole.update(f"{at:.9f} {who} {what}\n".encode())
        return whole.hexdigest()

    def lines(self, last: int | None = LAST, about: str = "") -> list[str]:
        """Return the last lines as text, or all; only those that contain `about`."""
        chosen = [line for line in self._lines if about in line[2] or about in line[1]]
        left_out = 0 if last is None else max(len(chosen) - last, 0)
        texts = [f"{at:10.3f}  {who:<10} {what}" for at, who, what in chosen[left_out:]]
        return [f"({left_out} lines before)", *texts] if left_out else texts


LEASE = 6.0
"""Seconds of a lease in simulations: short, so that it expires soon."""


class Simulation:
    """Everything that one seed decides. `run` plays a story to its end; `problems` lists the violations.

    `before` and `after` are awaited around each store call, at the same instant, with (process, name, arguments), and `after`
    also with the answer.
    """

    def __init__(self, seed: int, *, faults: Callable[[random.Random, float], Faults] = Faults, lease: float = LEASE) -> None:
        self.seed = seed
        self.lease = lease
        self.rng = random.Random(seed)
        self.faults = faults(self.rng, lease)
        self.parallel_commits = self.rng.choice((1, 2))
        self.sees_deaths = self.rng.random() < 0.6
        """Whether processes see that another one is dead, before its leases expire."""
        self.trace = SimulationTrace()
        self.problems: list[str] = []
        self.loop = VirtualLoop()
        self.loop.set_task_factory(make_task)
        self.loop.set_exception_handler(self._unhandled)
        self.signals = SimulatedSignals()
        self.on_done: list[Callable[[Process, str, tuple[Any, ...], dict[str, Any], Any], None]] = []
        """Called with (process, name, arguments, options, answer) after each store call, including the lease renewer's."""
        self.before: list[Callable[[Process, str, tuple[Any, ...]], Awaitable[None]]] = []
        self.after: list[Callable[[Process, str, tuple[Any, ...], Any], Awaitable[None]]] = []
        self.on_event: list[Callable[[Process, TelemetryEvent], None]] = []
        self.source_reader: Callable[[Process], SourceReader] | None = None
        """The files that watchers of a process see, if there are any."""
        self._processes: list[Process] = []
        self.store = SqliteStore(None, clock=VirtualClock(self.loop))
        """The store without faults, for observers."""

    def run(self, story: Callable[[Simulation], Awaitable[T]]) -> T:
        """Play the story; nothing of it runs when this returns."""
        arm(self._reach)
        try:
            return self.loop.run_until_complete(self._play(story))
        finally:
            arm(None)
            self.loop.close()

    async def _play(self, story: Callable[[Simulation], Awaitable[T]]) -> T:
        await self.store.open()
        try:
            return await story(self)
        finally:
            self.faults.stop()
            await self.end()
            await self.store.close()

    async def end(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.crash("ends")
        for process in self._processes:
            await process.gone.wait()

    # processes

    def start_process(self, name: str) -> Process:
        """Start a new process of that name."""
        process = Process(self, name, len(self._processes) + 1)
        self._processes.append(process)
        process.trace(f"starts, its clock off by {process.clock.offset} ms")
        return process

    def is_alive(self, pid: int) -> bool:
        """Whether that process is alive."""
        return 0 < pid <= len(self._processes) and self._processes[pid - 1].alive

    @property
    def alive(self) -> list[Process]:
        """Return the live processes."""
        return [process for process in self._processes if process.alive]

    def engine(self, process: Process, *, codec: Codec | None = None, **settings: Any) -> Engine:
        """Create an engine in that process, on the shared store."""

        def store_of(url: str, clock: Clock) -> Store:
            return simulated_store(self.store.beside(clock), process)

        def emit(event: TelemetryEvent) -> None:
            if process.alive:
                for heard in self.on_event:
                    heard(process, event)

        return Engine(
            "memory://",
            settings=Settings(**settings),
            clock=process.clock,
            ids=process.ids,
            emit=emit,
            codec=codec,
            store_of=store_of,
        )

    def worker(
        self,
        engine: Engine,
        process: Process,
        *,
        concurrency: int = 20,
        threads: int = 2,
        processes: int = 1,
        grace: float = 0.0,
        task_lists: tuple[str, ...] = (DEFAULT_LIST,),
    ) -> WorkerHost:
        """Create a worker of that engine in its process, with the simulation's lease; the caller starts it."""
        return WorkerHost(
            engine.kernel,
            concurrency=concurrency,
            threads=threads,
            processes=processes,
            task_lists=task_lists,
            lease_for=round(self.lease * 1000),
            grace=grace,
            name=process.name,
            machine=process,
        )

    # observations

    def wrong(self, problem: str) -> None:
        """Record a violation."""
        self.problems.append(problem)
        self.trace.add(self.loop.time(), "", f"### {problem}")

    def done(self, process: Process, name: str, arguments: tuple[Any, ...], options: dict[str, Any], answer: Any) -> None:
        """Record that the store has executed a call of a process."""
        for heard in self.on_done:
            heard(process, name, arguments, options, answer)
        if (line := summary(name, arguments, answer)) is not None:
            process.trace(line)
        self.faults.after_call(process)

    def _reach(self, point: str) -> None:
        """Record that a process passes a failpoint."""
        process = current_process()
        if process is not None and process.alive:
            self.faults.at(process, point)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an unhandled error, except those of dead processes, which may raise anything at any time."""
        future, error = context.get("future") or context.get("task"), context.get("exception")
        if not isinstance(future, asyncio.Task) and isinstance(error, StoreError):
            return  # a commit refused by a closed engine, whose sender is gone
        if isinstance(future, asyncio.Task) and any(process.had(future) and not process.alive for process in self._processes):
            return
        self.wrong(f"unhandled: {context.get('message')}: {error!r}")
