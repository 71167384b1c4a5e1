"""Crash tests for users: a workflow or function whose worker is killed at every write.

    report = crash_test(setup, start)
    report.check()  # raises `CrashTestFailed` with the lost or repeated effects, and the place in the code

A clean history runs first. Then the worker's process dies before its first commit, after it, before the second one, and so on;
each time a new process takes over, and the work ends. Time is virtual: sleeps and leases cost nothing. The store is the real
SQLite store, in memory; everything runs in this thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import treadle
from treadle.engine import Engine
from treadle.kernel.queue.service import Enqueued
from treadle.kernel.runs.records import StartedRun
from treadle.model.errors import TreadleError
from treadle.model.values import encode
from treadle.testing.simulation import Process, Simulation

Effects = list[Any]
"""The outside world: the work appends its effects, as JSON values."""
Setup = Callable[[Engine, Effects], None]
Start = Callable[[Engine], Awaitable[Enqueued | StartedRun]]

HISTORY_TIMEOUT = 100 * 86_400.0
"""Seconds of virtual time within which a history must end."""
MAX_WRITES = 500

_OWN = str(Path(treadle.__file__).parent)
_LIBRARY = str(Path(asyncio.__file__).parent.parent)


class CrashTestFailed(AssertionError):
    """A crash changed the result."""


@dataclass(frozen=True, slots=True)
class CrashCase:
    """One history with one crash."""

    crash: str
    """`before write 3`, `after write 3`."""
    places: tuple[str, ...]
    """The places in the code under test: `orders.py:12 in order: await ctx.sleep(60)`."""
    outcome: str
    """The result as JSON, or the error."""
    lost: tuple[Any, ...]
    """Effects of the clean history that are missing."""
    repeated: tuple[Any, ...]
    """Effects that occurred more often than in the clean history."""
    effects: tuple[Any, ...] = ()
    """All effects of this history, in order."""

    def text(self) -> str:
        """Return the case in a line or two."""
        differences = [f"{word} {effect!r}" for word, many in (("lost", self.lost), ("repeated", self.repeated)) for effect in many]
        where = "; ".join(self.places) or "no user code was running"
        return f"crash {self.crash} ({where}): {', '.join(differences) or f'the result was {self.outcome}'}"


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The results of all crashes."""

    writes: int
    """Commits of the worker in the clean history; there was a crash before and after each."""
    outcome: str
    effects: tuple[Any, ...]
    cases: tuple[CrashCase, ...]

    @property
    def problems(self) -> tuple[CrashCase, ...]:
        """The cases with lost or repeated effects, or another result."""
        return tuple(case for case in self.cases if case.lost or case.repeated or case.outcome != self.outcome)

    def text(self) -> str:
        """Return the report as text."""
        head = f"{len(self.cases)} crashes at {self.writes} writes; without a crash, the result was {self.outcome}"
        return "\n".join([head, *(case.text() for case in self.problems)])

    def check(self) -> None:
        """Raise `CrashTestFailed` if a crash changed the result."""
        if self.problems:
            raise CrashTestFailed(self.text())


def crash_test(setup: Setup, start: Start, *, most_writes: int = MAX_WRITES) -> CrashReport:
    """Run the work once without a crash, and then with one at every write of its worker.

    `setup(engine, effects)` registers handlers and functions, which append their effects on the outside world to `effects`;
    `start(engine)` enqueues a task or starts a run. Both are called anew for each history. Effects inside a `ctx.effect` whose
    outcome was lost may occur twice: Treadle reports this but cannot prevent it; deduplicate by `ctx.idempotency_key`, as a service
    would.
    """
    clean = _History(setup, start, None)
    outcome = clean.play()
    if clean.writes > most_writes:
        raise ValueError(f"The work writes {clean.writes} times; most_writes allows only {most_writes} crashes.")
    cases = []
    for write in range(1, clean.writes + 1):
        for after in (False, True):
            history = _History(setup, start, (write, after))
            came_to = history.play()
            if not history.crashed:
                continue  # this history had fewer writes
            had, has = _counted(clean.effects), _counted(history.effects)
            lost, repeated = tuple((had - has).elements()), tuple((has - had).elements())
            cases.append(
                CrashCase(
                    f"{'after' if after else 'before'} write {write}",
                    history.places,
                    came_to,
                    tuple(clean.effects[_index(clean.effects, text)] for text in lost),
                    tuple(history.effects[_index(history.effects, text)] for text in repeated),
                    tuple(history.effects),
                )
            )
    return CrashReport(clean.writes, outcome, tuple(clean.effects), tuple(cases))


class _History:
    """One history: a caller without faults, and a worker that dies once, at a write."""

    def __init__(self, setup: Setup, start: Start, crash: tuple[int, bool] | None) -> None:
        self._setup, self._start, self._crash = setup, start, crash
        self.effects: Effects = []
        self.writes = 0
        self.crashed = False
        self.places: tuple[str, ...] = ()

    def play(self) -> str:
        """Run the history; return the result as JSON, or the error."""
        self._simulation = Simulation(0)
        self._simulation.before.append(self._before)
        self._simulation.after.append(self._after)
        return self._simulation.run(self._story)

    async def _story(self, simulation: Simulation) -> str:
        caller = simulation.start_process("caller")
        ended: asyncio.Future[str] = simulation.loop.create_future()
        caller.spawn(self._call(caller, ended))
        async with asyncio.timeout(HISTORY_TIMEOUT):
            while not ended.done():
                worker = simulation.start_process("worker")
                worker.spawn(self._work(worker))
                gone: asyncio.Future[Any] = asyncio.ensure_future(worker.gone.wait())
                either: set[asyncio.Future[Any]] = {ended, gone}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
        return ended.result()

    async def _call(self, process: Process, ended: asyncio.Future[str]) -> None:
        """Start the work and wait for its result."""
        try:
            async with self._simulation.engine(process) as engine:
                self._setup(engine, [])
                work = await self._start(engine)
                ended.set_result(encode(await engine.result(work)))
        except TreadleError as error:
            ended.set_result(f"{error.code}: {error}")
        except Exception as error:
            ended.set_exception(error)

    async def _work(self, process: Process) -> None:
        """Run a worker until its process dies."""
        simulation = self._simulation
        async with simulation.engine(process) as engine:
            self._setup(engine, self.effects)
            host = simulation.worker(engine, process, concurrency=10, threads=4, grace=1.0)
            await host.start()
            await asyncio.Event().wait()

    async def _before(self, process: Process, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "commit" and process.name == "worker":
            self.writes += 1
            self._die_at(process, after=False)

    async def _after(self, process: Process, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
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
    """Return the places in user code where that process is."""
    places: dict[str, None] = {}
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
            places[f"{Path(code.co_filename).name}:{inmost.f_lineno} in {code.co_name}"] = None
    return tuple(places)


def _counted(effects: Effects) -> Counter[str]:
    return Counter(encode(effect) for effect in effects)


def _index(effects: Effects, text: str) -> int:
    return next(number for number, effect in enumerate(effects) if encode(effect) == text)
