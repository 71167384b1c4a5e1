"""One history: servers, users and people on one store, with everything that goes wrong; then it is looked at.

Faults happen until all wishes were sent and some time has passed. Then nothing goes wrong any more, and whatever was
promised must come to its end by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.auditor import Auditor
from tests.simulation.crew import furnish
from tests.simulation.invariants import check_end, is_quiet
from tests.simulation.wishes import Wish, draw_wishes
from tests.simulation.world import World

from treadle import Engine
from treadle.codecs import Zlib
from treadle.kernel.lookups import RunFilter
from treadle.kernel.telemetry import ClockJumped, Event, LeaseLost, LeasesExpired, LoopError, Recovered, ResultDropped
from treadle.model.errors import FunctionNotFound, StoreError, TreadleError
from treadle.model.states import Hold
from treadle.testing.simulation import Fault, Faults, Process, Simulation, Trace

LONGEST = 900.0
"""Seconds of its own time after which a history that has no more faults must have come to an end."""


@dataclass(slots=True)
class Report:
    """What became of a history."""

    seed: int
    problems: list[str]
    digest: str
    lines: int
    seconds: float
    """In its own time."""
    faults: dict[str, int]
    wishes: int
    given_up: int
    """Wishes that ended as dead letters, as their workers were lost too often."""
    trace: Trace

    def text(self, lines: int = 400) -> str:
        """What is wrong, the faults, and the last lines of what happened."""
        said = [*self.trace.lines(lines)] if lines else []
        said += [f"Seed {self.seed}: {len(self.problems)} problem(s) after {self.seconds:.0f} s of its own time."]
        said += [f"  - {problem}" for problem in self.problems]
        said += [f"  faults: {', '.join(f'{count} x {fault}' for fault, count in sorted(self.faults.items())) or 'none'}"]
        return "\n".join([*said, f"  again: make simulate SEED={self.seed}"])


def play(seed: int, longest: float = LONGEST, often: Collection[Fault] = (), kinds: Collection[str] = ()) -> Report:
    """The history of that seed; with more faults of some kinds, or with wishes of some kinds only, where that is said."""
    simulation = Simulation(seed, faults=partial(Faults.draw, often=often))
    history = History(simulation, longest, kinds)
    try:
        simulation.run(history.play)
    except Exception as error:  # the history itself broke: that is a finding too
        simulation.wrong(f"the history ended with {error!r}")
    return report_of(simulation, history)


def report_of(simulation: Simulation, history: History) -> Report:
    """What became of it."""
    trace = simulation.trace
    return Report(
        simulation.seed,
        simulation.problems,
        trace.digest,
        len(trace),
        simulation.loop.time(),
        trace.counts,
        len(history.wishes),
        history.given_up,
        trace,
    )


class History:
    """The story that is played."""

    def __init__(self, simulation: Simulation, longest: float = LONGEST, kinds: Collection[str] = ()) -> None:
        self.simulation = simulation
        self._longest = longest
        self.dice = simulation.dice
        self.world = World(simulation)
        self.servers = self.dice.choice((1, 2, 2, 3))
        self.wishes = draw_wishes(self.dice, self.dice.choice((3, 6, 10)), kinds)
        self.auditor = Auditor(simulation)
        self.given_up = 0
        self.operated = self.dice.random() < 0.5
        self._codec = self.dice.choice((None, None, Zlib()))
        self._warm = self.dice.choice((0, 1, 1000))
        self._over = False
        simulation.on_event.append(self._event)

    async def play(self, simulation: Simulation) -> None:
        """From the first start of a server to the last check."""
        self.auditor.watch()
        runners = [asyncio.create_task(self._serve(f"server{number}")) for number in range(self.servers)]
        runners += [
            asyncio.create_task(self._repeat("client", self._send_all)),
            asyncio.create_task(self._repeat("people", self._decide)),
            asyncio.create_task(self._repeat("operator", self._operate)),
            asyncio.create_task(self._look()),
        ]
        until = self.dice.choice((5.0, 20.0, 40.0))
        await asyncio.sleep(until)
        while any(wish.id is None for wish in self.wishes) and simulation.loop.time() < 3 * until:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        simulation.heal()
        give_up_at = simulation.loop.time() + self._longest
        while simulation.loop.time() < give_up_at and not await is_quiet(simulation.store, self.wishes):  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        await asyncio.sleep(2.0)
        self._over = True
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)
        await simulation.end()
        self.given_up = await check_end(self)

    def _event(self, process: Process, event: Event) -> None:
        match event:
            case LoopError() if event.error.startswith(("could not say", "nothing will be pruned")):
                process.tell(f"--- {event.loop}: {event.error}")
            case LoopError():
                process.tell(f"--- {event.loop}: {event.error}")
                self.simulation.wrong(f"{process.shown}: {event.loop}: {event.error}")
            case LeaseLost() | ResultDropped() | LeasesExpired() | ClockJumped():
                process.tell(f"--- {event}")
            case Recovered() if any("has a task again" in each for each in event.missed):
                self.simulation.wrong(f"{process.shown}: a start-up found work without a task: {event.missed}")

    def engine(self, process: Process) -> Engine:
        """An engine in that process, as all of this history are."""
        return self.simulation.engine(process, codec=self._codec, warm_functions=self._warm)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(3 * self.dice.random())
            await self.auditor.look()

    # who plays

    async def _serve(self, name: str) -> None:
        """A server that is started again whenever it has ended."""
        while True:
            process = self.simulation.start_process(name)
            process.spawn(self._host(process))
            await process.gone.wait()
            await asyncio.sleep(self.dice.uniform(0.1, 1.5) * self.simulation.lease)

    async def _host(self, process: Process) -> None:
        """What a server does in its life: start, work, and perhaps stop by itself."""
        simulation = self.simulation
        lives = self.dice.uniform(3, 60)
        while True:
            engine = self.engine(process)
            furnish(engine, self.world)
            host = simulation.worker(
                engine, process, concurrency=self.dice.choice((1, 3, 20)), grace=self.dice.choice((0.0, 2.0, 20.0))
            )
            try:
                await engine.open()
                await host.start()
                break
            except StoreError as error:
                process.tell(f"could not start: {error}")
                await engine.close()
                await asyncio.sleep(1.0)
        if simulation.faults.on and self.dice.random() < 0.3:
            await asyncio.sleep(lives)
            process.tell("=== stops")
            await host.stop()
            await engine.close()
            process.crash("has stopped")
        await asyncio.Event().wait()

    async def _repeat(self, name: str, doing: Any) -> None:
        """A process that does one thing, and is started again if it dies."""
        while not self._over:
            process = self.simulation.start_process(name)
            process.spawn(doing(process))
            await process.gone.wait()
            await asyncio.sleep(self.dice.uniform(0.1, 2))

    async def _send_all(self, process: Process) -> None:
        """Send wishes until all are acknowledged; what is not known to be there is sent again."""
        engine = self.engine(process)
        async with engine:
            for wish in self.wishes:
                while wish.id is None:
                    try:
                        wish.id = await wish.send(engine)
                        process.tell(f"{wish.key} is {wish.id[-6:]}")
                    except (StoreError, FunctionNotFound):  # no server has said yet that it has the function
                        await asyncio.sleep(0.5)
                await asyncio.sleep(self.dice.random() * self.dice.choice((0.05, 2)))
            await asyncio.Event().wait()

    async def _decide(self, process: Process) -> None:
        """People who answer what they are asked, and tell runs something."""
        engine = self.engine(process)
        async with engine:
            while True:
                await asyncio.sleep(0.5 + 3 * self.dice.random())
                try:
                    for approval in await engine.approvals.list():
                        decision = "approve" if self.dice.random() < 0.8 else "deny"
                        await engine.approvals.decide(approval.id, decision, actor="ada")
                        process.tell(f"{decision} {approval.id[-6:]}")
                    for wish in self.wishes:
                        if wish.id is not None and wish.options.get("waits") and self.dice.random() < 0.3:
                            await engine.signal(wish.id, "told", "something", idempotency_key=f"told {wish.key}")
                except TreadleError as error:
                    process.tell(f"people: {type(error).__name__}")

    async def _operate(self, process: Process) -> None:
        """An operator who does what seems right to him; once nothing goes wrong any more, he lets everything go on."""
        engine = self.engine(process)
        acts = (
            self._pause_something,
            self._let_go_on,
            self._cancel_something,
            self._retry_something,
            self._hold_the_list,
            self._poll,
            self._slow_down,
        )
        async with engine:
            while True:
                await asyncio.sleep(1 + 4 * self.dice.random())
                if not self.operated:
                    continue
                try:
                    act = self.dice.choice(acts) if self.simulation.faults.on else self._let_go_on
                    await act(engine, process)
                except TreadleError as error:
                    process.tell(f"operator: {type(error).__name__}")

    def _some_wish(self) -> Wish | None:
        sent = [wish for wish in self.wishes if wish.id is not None and wish.kind in ("task", "run")]
        return self.dice.choice(sent) if sent else None

    async def _pause_something(self, engine: Engine, process: Process) -> None:
        if (wish := self._some_wish()) is not None and wish.id is not None:
            process.tell(f"pauses {wish.key}")
            await (engine.runs.pause(wish.id) if wish.kind == "run" else engine.pause(wish.id))

    async def _cancel_something(self, engine: Engine, process: Process) -> None:
        if self.dice.random() < 0.3 and (wish := self._some_wish()) is not None and wish.id is not None:
            process.tell(f"cancels {wish.key}")
            wish.may = (*wish.may, "canceled")
            await (engine.runs.cancel(wish.id) if wish.kind == "run" else engine.cancel(wish.id))

    async def _retry_something(self, engine: Engine, process: Process) -> None:
        if (wish := self._some_wish()) is not None and wish.id is not None:
            process.tell(f"retries {wish.key}")
            wish.retried = True
            await (engine.runs.retry(wish.id) if wish.kind == "run" else engine.retry(wish.id))

    async def _hold_the_list(self, engine: Engine, process: Process) -> None:
        process.tell("pauses the list")
        await engine.lists.pause("default")

    async def _poll(self, engine: Engine, process: Process) -> None:
        for job in await engine.externals.list():
            process.tell(f"polls {job.id[-6:]}")
            await engine.externals.poll_now(job.id, actor="operator")

    async def _slow_down(self, engine: Engine, process: Process) -> None:
        rate = self.dice.choice((None, 0.5, 5))
        process.tell(f"rate of work: {rate}")
        await engine.lists.limit_rate("default", "work", rate)

    async def _let_go_on(self, engine: Engine, process: Process) -> None:
        await engine.lists.resume("default")
        for task in await engine.list_tasks(states=("paused",), kind=None):
            if task.hold & Hold.TASK_PAUSED:
                process.tell(f"resumes {task.id[-6:]}")
                await engine.resume(task.id)
        for run in await engine.store.list_runs(RunFilter(states=("paused",)), 100):
            process.tell(f"resumes run {run.id[-6:]}")
            await engine.runs.resume(run.id)
