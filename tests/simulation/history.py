"""One history: servers, users and people on one store, with everything that goes wrong; then it is looked at.

Faults happen until all submissions were sent and some time has passed. Then nothing goes wrong any more, and whatever was
promised must come to its end by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from tests.simulation.actors.agents import Agent
from tests.simulation.actors.client import Client
from tests.simulation.actors.operator import Operator
from tests.simulation.actors.people import People
from tests.simulation.actors.remote_workers import RemoteWorker
from tests.simulation.actors.services import CallingService
from tests.simulation.archive import Archive
from tests.simulation.auditor import Auditor
from tests.simulation.crew import furnish
from tests.simulation.faults import Fault, FaultySimulation
from tests.simulation.files import Files
from tests.simulation.invariants import check_end, is_quiet
from tests.simulation.submissions import draw_submissions
from tests.simulation.wire import Wire
from tests.simulation.world import World

from treadle import Engine
from treadle.engine.codecs import Zlib
from treadle.kernel.telemetry.events import (
    ClockJumped,
    LeaseLost,
    LeasesExpired,
    LoopError,
    PresumedDead,
    Recovered,
    ResultDropped,
    TelemetryEvent,
    WronglyPresumedDead,
)
from treadle.model.errors import StoreError
from treadle.testing.simulation import Process, SimulationTrace

HISTORY_TIMEOUT = 900.0
"""Seconds of its own time after which a history that has no more faults must have come to an end."""


EXPECTED = ("could not report", "could not send", "was not stored", "workers in a row lost this task", "while starting a worker")
"""Log lines for errors that loops survive."""


@dataclass(slots=True)
class Report:
    """The result of a history."""

    seed: int
    problems: list[str]
    digest: str
    lines: int
    seconds: float
    """In its own time."""
    faults: dict[str, int]
    submissions: int
    given_up: int
    """Submissions that ended as dead letters, as their workers were lost too often."""
    trace: SimulationTrace

    def text(self, lines: int = 400) -> str:
        """The problems, the faults, and the last lines of the trace."""
        said = [*self.trace.lines(lines)] if lines else []
        said += [f"Seed {self.seed}: {len(self.problems)} problem(s) after {self.seconds:.0f} s of its own time."]
        said += [f"  - {problem}" for problem in self.problems]
        said += [f"  faults: {', '.join(f'{count} x {fault}' for fault, count in sorted(self.faults.items())) or 'none'}"]
        return "\n".join([*said, f"  again: make simulate SEED={self.seed}"])


def play(
    seed: int,
    longest: float = HISTORY_TIMEOUT,
    often: Collection[Fault] = (),
    kinds: Collection[str] = (),
    acts: Collection[str] = (),
) -> Report:
    """The history of that seed, optionally with more faults, only some kinds of submissions, or a limited operator."""
    simulation = FaultySimulation(seed, often)
    history = History(simulation, longest, kinds, acts)
    try:
        simulation.run(history.play)
    except Exception as error:  # the history itself broke: that is a finding too
        simulation.wrong(f"the history ended with {error!r}")
    return report_of(simulation, history)


def report_of(simulation: FaultySimulation, history: History) -> Report:
    """Build the report of a history."""
    trace = simulation.trace
    return Report(
        simulation.seed,
        simulation.problems,
        trace.digest,
        len(trace),
        simulation.loop.time(),
        simulation.faults.counts,
        len(history.submissions),
        history.given_up,
        trace,
    )


class History:
    """The story that is played."""

    def __init__(
        self,
        simulation: FaultySimulation,
        longest: float = HISTORY_TIMEOUT,
        kinds: Collection[str] = (),
        acts: Collection[str] = (),
    ) -> None:
        self.simulation = simulation
        self._longest = longest
        self.rng = simulation.rng
        self.world = World(simulation)
        self.servers = self.rng.choice((1, 2, 2, 3))
        self.submissions = draw_submissions(self.rng, self.rng.choice((3, 6, 10)), kinds)
        self.wire = Wire(simulation)
        self.files = Files(simulation)
        self.skewed = bool(simulation.faults.skew)
        simulation.source_reader = self.files.looks_of
        self.auditor = Auditor(simulation)
        self.kept_effects: set[str] = set()
        """Effects that a fork of a run has from that."""
        self.given_up = 0
        self.acts = acts
        self.operated = self.rng.random() < 0.5 or bool(acts)
        self.prunes = self.rng.random() < 0.3 or "prune" in acts
        self.archive = Archive(self)
        self.sweeps = True
        """Whether all of it is pruned in the end, to see whether anything stays."""
        self._keep = self.rng.choice((10, 30)) if self.prunes else 1e6
        self.codec = self.rng.choice((None, None, Zlib()))
        self._warm = self.rng.choice((0, 1, 1000))
        self._over = False
        simulation.on_event.append(self._event)

    async def play(self, simulation: FaultySimulation) -> None:
        """From the first start of a server to the last check."""
        self.auditor.watch()
        self.archive.watch()
        runners = [asyncio.create_task(self._serve(f"server{number}")) for number in range(self.servers)]
        runners += [asyncio.create_task(self._repeat(name, activity)) for name, activity in self._actors()]
        runners += [
            asyncio.create_task(self._look()),
            asyncio.create_task(self.files.write([submission for submission in self.submissions if submission.kind == "watch"])),
        ]
        until = self.rng.choice((5.0, 20.0, 40.0))
        await asyncio.sleep(until)
        while any(submission.id is None for submission in self.submissions) and simulation.loop.time() < 3 * until:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        simulation.faults.heal(simulation)
        give_up_at = simulation.loop.time() + self._longest
        while simulation.loop.time() < give_up_at and not simulation.problems and not await is_quiet(self):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        await asyncio.sleep(2.0)
        self._over = True
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)
        await simulation.end()
        self.given_up = await check_end(self)

    def _event(self, process: Process, event: TelemetryEvent) -> None:
        match event:
            case LoopError() if any(words in event.error for words in EXPECTED):
                process.trace(f"--- {event.loop}: {event.error}")
            case LoopError():
                process.trace(f"--- {event.loop}: {event.error}")
                self.simulation.wrong(f"{process.shown}: {event.loop}: {event.error}")
            case LeaseLost() | ResultDropped() | LeasesExpired() | ClockJumped() | PresumedDead() | WronglyPresumedDead():
                process.trace(f"--- {event}")
            case Recovered() if any("its task was restored" in each for each in event.missed):
                self.simulation.wrong(f"{process.shown}: a start-up found work without a task: {event.missed}")

    def engine(self, process: Process, **settings: Any) -> Engine:
        """An engine in that process, as all of this history are."""
        keep = {"keep_completed": self._keep, "keep_failed": self._keep}
        return self.simulation.engine(process, codec=self.codec, warm_functions=self._warm, **keep, **settings)

    async def stand_still(self, process: Process) -> None:
        """A point at which a worker may stall for long enough to lose its lease."""
        if self.simulation.faults.happens(Fault.STALL, 30.0):
            self.simulation.faults.counts[Fault.STALL] += 1
            process.stall(self.simulation.faults.standstill())
        await process.pass_gate()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(3 * self.rng.random())
            await self.auditor.look()

    # who plays

    def _actors(self) -> list[tuple[str, Callable[[Process], Coroutine[Any, Any, None]]]]:
        """Those who are there in every history, and those whom its submissions need."""
        actors: list[tuple[str, Callable[[Process], Coroutine[Any, Any, None]]]] = [
            ("client", Client(self).play),
            ("people", People(self).play),
            ("operator", Operator(self).play),
        ]
        needed = {submission.needs for submission in self.submissions}
        if "service" in needed:
            actors.append(("service", CallingService(self).play))
        for number in range(self.rng.choice((1, 2, 3))):
            if "remote_workers" in needed:
                actors.append((f"remote{number}", RemoteWorker(self).play))
            if "agents" in needed:
                actors.append((f"agent{number}", Agent(self).play))
        return actors

    async def _serve(self, name: str) -> None:
        """A server that is started again whenever it has ended."""
        while True:
            process = self.simulation.start_process(name)
            process.spawn(self._host(process))
            await process.gone.wait()
            await asyncio.sleep(self.rng.uniform(0.1, 1.5) * self.simulation.lease)

    async def _host(self, process: Process) -> None:
        """The life of a server: start, work, and perhaps stop by itself."""
        simulation = self.simulation
        lives = self.rng.uniform(3, 60)
        while True:
            engine = self.engine(process)
            furnish(engine, self.world)
            host = simulation.worker(
                engine, process, concurrency=self.rng.choice((1, 3, 20)), grace=self.rng.choice((0.0, 2.0, 20.0))
            )
            try:
                await engine.open()
                await host.start()
                self.wire.serve(process, engine)
                break
            except StoreError as error:
                process.trace(f"could not start: {error}")
                await engine.close()
                await asyncio.sleep(1.0)
        if simulation.faults.on and self.rng.random() < 0.3:
            await asyncio.sleep(lives)
            process.trace("=== stops")
            self.wire.leave(process)
            await host.stop()
            await engine.close()
            process.crash("has stopped")
        await asyncio.Event().wait()

    async def _repeat(self, name: str, activity: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        """A process that does one thing, and is started again if it dies."""
        while not self._over:
            process = self.simulation.start_process(name)
            process.spawn(activity(process))
            await process.gone.wait()
            await asyncio.sleep(self.rng.uniform(0.1, 2))
