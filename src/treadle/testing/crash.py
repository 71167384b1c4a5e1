"""Crash tests for users: their workflow or function, with the worker killed at every one of its writes.

    report = crash_test(setup, start)
    report.check()  # raises `CrashTestFailed`, with what was lost or repeated, and where the code was when it happened

A clean history is played first. Then the worker's process dies before its first commit, after it, before the second one,
and so on; each time a new process takes over, and the work comes to its end. Time is virtual: sleeps and leases cost
nothing. The store is the real SQLite store, in memory; it all happens in this thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import treadle
from treadle.engine import Engine
from treadle.kernel.queue.service import Enqueued
from treadle.kernel.runs.service import StartedRun
from treadle.model.errors import TreadleError
from treadle.model.values import encode
from treadle.testing.simulation import Faults, Process, Simulation
from treadle.wiring.worker_host import WorkerHost

Effects = list[Any]
"""The outside world: whatever the work does to it is appended, as JSON values."""
Setup = Callable[[Engine, Effects], None]
Start = Callable[[Engine], Awaitable[Enqueued | StartedRun]]

LONGEST = 100 * 86_400.0
"""Seconds of its own time after which a history must have come to an end."""
MOST_WRITES = 500

_OWN = str(Path(treadle.__file__).parent)
_LIBRARY = str(Path(asyncio.__file__).parent.parent)


class CrashTestFailed(AssertionError):
    """A crash made a difference that it must not make."""


@dataclass(frozen=True, slots=True)
class CrashCase:
    """One history with one crash."""

    crash: str
    """`before write 3`, `after write 3`."""
    places: tuple[str, ...]
    """Where the code under test was: `orders.py:12 in order: await ctx.sleep(60)`."""
    outcome: str
    """What it came to, as JSON; or how it ended instead."""
    lost: tuple[Any, ...]
    """Effects of the clean history that were not made."""
    repeated: tuple[Any, ...]
    """Effects that were made more often than in the clean history."""

    def text(self) -> str:
        """The case in a line or two."""
        found = [f"{word} {each!r}" for word, many in (("lost", self.lost), ("repeated", self.repeated)) for each in many]
        where = "; ".join(self.places) or "no code of yours was running"
        return f"crash {self.crash} ({where}): {', '.join(found) or f'it came to {self.outcome}'}"


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What all crashes came to."""

    writes: int
    """Commits of the worker in the clean history; each was a crash before it and one after it."""
    outcome: str
    effects: tuple[Any, ...]
    cases: tuple[CrashCase, ...]

    @property
    def problems(self) -> tuple[CrashCase, ...]:
        """The cases in which something was lost or repeated, or came to something else."""
        return tuple(each for each in self.cases if each.lost or each.repeated or each.outcome != self.outcome)

    def text(self) -> str:
        """All of it, for reading."""
        head = f"{len(self.cases)} crashes at {self.writes} writes; without any it came to {self.outcome}"
        return "\n".join([head, *(each.text() for each in self.problems)])

    def check(self) -> None:
        """`CrashTestFailed` unless no crash made a difference."""
        if self.problems:
            raise CrashTestFailed(self.text())


def crash_test(setup: Setup, start: Start, *, most_writes: int = MOST_WRITES) -> CrashReport:
    """Play the work once without a crash, and then with one at every write of its worker.

    `setup(engine, effects)` registers handlers and functions, whose effects on the outside world are appended to `effects`;
    `start(engine)` enqueues a task or starts a run. Both are called anew for each history, so that nothing is carried over.
    What is appended inside of a `ctx.effect` whose outcome got lost may be there twice: the promise is that this is said, not
    that it cannot happen; deduplicate by `ctx.dedupe_key`, as a service would.
    """
    clean = _History(setup, start, None)
    outcome = clean.play()
    if clean.writes > most_writes:
        raise ValueError(f"It writes {clean.writes} times; crash_test was told to crash at most {most_writes} times.")
    cases = []
    for write in range(1, clean.writes + 1):
        for after in (False, True):
            history = _History(setup, start, (write, after))
            came_to = history.play()
            if not history.crashed:
                continue  # the worker got by with fewer writes this time
            had, has = _counted(clean.effects), _counted(history.effects)
            lost, repeated = tuple((had - has).elements()), tuple((has - had).elements())
            cases.append(
                CrashCase(
                    f"{'after' if after else 'before'} write {write}",
                    history.places,
                    came_to,
                    tuple(clean.effects[_index(clean.effects, each)] for each in lost),
                    tuple(history.effects[_index(history.effects, each)] for each in repeated),
                )
            )
    return CrashReport(clean.writes, outcome, tuple(clean.effects), tuple(cases))


class _History:
    """One history: a caller that nothing happens to, and a worker that dies at a write, once."""

    def __init__(self, setup: Setup, start: Start, crash: tuple[int, bool] | None) -> None:
        self._setup, self._start, self._crash = setup, start, crash
        self.effects: Effects = []
        self.writes = 0
        self.crashed = False
        self.places: tuple[str, ...] = ()

    def play(self) -> str:
        """What it came to, as JSON; or how it ended instead."""
        self._simulation = Simulation(0, faults=lambda dice, lease: Faults(dice, lease))
        self._simulation.before.append(self._before)
        self._simulation.after.append(self._after)
        return self._simulation.run(self._story)

    async def _story(self, simulation: Simulation) -> str:
        caller = simulation.start_process("caller")
        ended: asyncio.Future[str] = simulation.loop.create_future()
        caller.spawn(self._call(caller, ended))
        async with asyncio.timeout(LONGEST):
            while not ended.done():
                worker = simulation.start_process("worker")
                worker.spawn(self._work(worker))
                gone: asyncio.Future[Any] = asyncio.ensure_future(worker.gone.wait())
                either: set[asyncio.Future[Any]] = {ended, gone}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
        return ended.result()

    async def _call(self, process: Process, ended: asyncio.Future[str]) -> None:
        """Start the work and wait for what it comes to."""
        try:
            async with self._simulation.engine(process) as engine:
                self._setup(engine, [])
                work = await self._start(engine)
                waiting: Coroutine[Any, Any, Any] = engine.run_result(work) if isinstance(work, StartedRun) else engine.result(work)
                ended.set_result(encode(await waiting))
        except TreadleError as error:
            ended.set_result(f"{error.code}: {error}")
        except Exception as error:
            ended.set_exception(error)

    async def _work(self, process: Process) -> None:
        """A worker, until its process dies."""
        simulation = self._simulation
        async with simulation.engine(process) as engine:
            self._setup(engine, self.effects)
            host = WorkerHost(
                engine.kernel,
                concurrency=10,
                threads=4,
                processes=1,
                task_lists=("default",),
                lease_for=round(simulation.lease * 1000),
                grace=1.0,
                name=process.name,
                machine=process,
            )
            await host.start()
            await asyncio.Event().wait()

    async def _before(self, process: Process, name: str, said: tuple[Any, ...]) -> None:
        if name == "commit" and process.name == "worker":
            self.writes += 1
            self._die_at(process, after=False)

    async def _after(self, process: Process, name: str, said: tuple[Any, ...], answer: Any) -> None:
        if name == "commit" and process.name == "worker":
            self._die_at(process, after=True)

    def _die_at(self, process: Process, *, after: bool) -> None:
        if self.crashed or self._crash != (self.writes, after):
            return
        self.crashed = True
        self.places = places_of(process)
        process.crash(f"crashes {'after' if after else 'before'} write {self.writes}")
        raise asyncio.CancelledError


def places_of(process: Process) -> tuple[str, ...]:
    """Where code that is neither Treadle's nor Python's own stands in that process."""
    found: dict[str, None] = {}
    for task in process.tasks:
        inmost = None
        step: Any = task.get_coro()
        while step is not None:
            frame = getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None) or getattr(step, "ag_frame", None)
            if frame is not None and not frame.f_code.co_filename.startswith((_OWN, _LIBRARY, "<", sys.prefix)):
                inmost = frame
            step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
        if inmost is not None:
            code = inmost.f_code
            found[f"{Path(code.co_filename).name}:{inmost.f_lineno} in {code.co_name}"] = None
    return tuple(found)


def _counted(effects: Effects) -> Counter[str]:
    return Counter(encode(each) for each in effects)


def _index(effects: Effects, text: str) -> int:
    return next(number for number, each in enumerate(effects) if encode(each) == text)
