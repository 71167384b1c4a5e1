"""One run, from the first process to the verdict."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.client import read_acks
from tests.chaos.evidence import Evidence, gather
from tests.chaos.judge import Verdict, judge
from tests.chaos.service_client import ServiceClient
from tests.chaos.stage import Plan, Stage, read_events, until
from tests.chaos.storms import Storms
from tests.chaos.submissions import draw_submissions
from tests.chaos.takeovers import Times, measure, note_dead, times
from tests.crash.private_server import PrivateServer, private_server
from tests.limits import BOUND
from tests.simulation.auditor import LIVE

from treadle import Engine
from treadle.kernel.store.process import SystemClock
from treadle.model.errors import StoreError, TreadleError
from treadle.model.names import UPKEEP
from treadle.settings import Settings

EVERY = 5.0
"""Seconds between two lines of progress."""

LOOK_EVERY = 0.25

COUNTED_EVENTS = ("LeaseLost", "ResultDropped", "StoreTrouble", "ClockJumped")

EXCUSED = (
    "could not act for its worker",
    "could not report",
    "could not send",
    "was not stored",
    "workers in a row lost this task",
)
"""Loop errors that a store which is away explains, and what is said of the engine's own work that was lost too often: it rests."""


@dataclass(slots=True)
class Played:
    """The result of a run."""

    plan: Plan
    verdict: Verdict
    evidence: Evidence
    storms: Counter[str]
    takeovers: dict[str, Times]
    told: Counter[str]
    """How often processes told of trouble."""
    seconds: float
    calm_after: float
    """Seconds during which things went wrong."""
    folder: Path | None
    """The folder with logs and databases, for analysing a failure."""
    pids: list[int]
    """All processes that there were."""


def _quiet(line: str) -> None:
    pass


async def play(plan: Plan, say: Callable[[str], None] = _quiet) -> Played:
    """Do it. Whatever happens, no process is left."""
    with _database(plan) as server:
        return await play_on(plan, say, lambda folder: server.url if server else f"sqlite:///{folder / 'chaos.db'}", Run, server)


async def play_on(
    plan: Plan,
    say: Callable[[str], None],
    url: Callable[[Path], str],
    run: Callable[[Stage, Callable[[str], None]], Run],
    server: PrivateServer | None = None,
) -> Played:
    """Do it on the store of that URL, which may be in the folder of the run."""
    folder = Path(tempfile.mkdtemp(prefix=f"treadle-chaos-{plan.store}-"))
    keep = True
    try:
        stage = Stage(plan, url(folder), folder, random.Random(f"chaos {plan.seed} {plan.store}"), server)
        try:
            played = await run(stage, say).play()
        finally:
            stage.close()
        keep = plan.keep or bool(played.verdict.problems)
        played.folder = folder if keep else None
        return played
    except (asyncio.CancelledError, KeyboardInterrupt):  # somebody has seen enough
        keep = plan.keep
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"logs and diaries of all processes are in {folder}")


@contextmanager
def _database(plan: Plan) -> Iterator[PrivateServer | None]:
    if plan.store == "sqlite":
        yield None
        return
    with private_server() as server:
        yield server


class Run:
    """The parts of a run, in their order."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self._stage, self._plan = stage, stage.plan
        self._clock = SystemClock()
        self._began = self._said_at = self._clock.monotonic()
        self._tell = say
        self._storms = Storms(stage)
        self._problems: list[str] = []
        self._left = -1

    async def play(self) -> Played:
        """Start everything, let things go wrong, let things come to an end, and look."""
        engine = Engine(self._stage.url, settings=Settings(), emit=lambda event: None)
        async with engine:
            await self._stage.open()
            self._tell(f"{self._now()} {len(self._stage.workers)} workers are up")
            await self._rage(engine)
            calm_after = self._passed()
            self._tell(f"{self._now()} nothing goes wrong any more: everything must come to an end by itself")
            await self._settle_down(engine)
            self._tell(f"{self._now()} checking")
            found = await self._gather(engine)
            verdict = judge(found)
            verdict.problems[:0] = self._problems
        takeovers = measure(self._stage.folder, self._storms.blows, found)
        lines = [json.dumps(dataclasses.asdict(each)) for each in takeovers]
        (self._stage.folder / "takeovers.jsonl").write_text("\n".join(lines))
        told = Counter(each["event"] for process in self._stage.started for each in read_events(process.log))
        counted = Counter({name: told[name] for name in COUNTED_EVENTS})
        pids = [process.pid for process in self._stage.started]
        passed = self._passed()
        return Played(
            self._plan, verdict, found, self._storms.counts, times(takeovers), counted, passed, calm_after, self._stage.folder, pids
        )

    def _passed(self) -> float:
        return self._clock.monotonic() - self._began

    def _now(self) -> str:
        return f"{self._plan.store} {self._passed():5.0f} s:"

    async def _rage(self, engine: Engine) -> None:
        """Until the work is done, or the time is over."""
        blows = 0
        over_at = self._passed() + self._plan.seconds
        next_at = self._passed() + self._pause()
        try:
            while blows < self._plan.blows or self._passed() < over_at:
                if self._passed() >= next_at:
                    await self._storms.blow()
                    blows += 1
                    next_at = self._passed() + self._pause()
                if await self._is_done(engine) and blows >= self._plan.blows:
                    break
                self._check_client()
                await asyncio.sleep(min(LOOK_EVERY, max(next_at - self._passed(), 0.01)))
        finally:
            await self._storms.calm()

    def _pause(self) -> float:
        return self._stage.rng.uniform(0.2, 1.8) * self._plan.pause

    def _check_client(self) -> None:
        client = self._stage.client
        if client is not None and client.exit_code not in (None, 0, -signal.SIGKILL):
            raise RuntimeError(f"the client ended with {client.exit_code}:\n{client.log.read_text(errors='replace')[-3000:]}")

    async def _is_done(self, engine: Engine) -> bool:
        """Whether everything was sent and nothing is left to do; tells how far it is."""
        with suppress(StoreError):
            if self._clock.monotonic() - self._said_at > EVERY:
                self._said_at = self._clock.monotonic()
                await self._progress(engine)
            sent = self._stage.client is not None and self._stage.client.exit_code == 0
            return sent and {depth.queue.kind for depth in await engine.kernel.store.tasks.list_depths()} <= UPKEEP
        return False

    async def _progress(self, engine: Engine) -> None:
        try:
            depths = [depth for depth in await engine.kernel.store.tasks.list_depths() if depth.queue.kind not in UPKEEP]
            live = f"{sum(each.ready for each in depths)} ready, {sum(each.running for each in depths)} running, "
            live += f"{sum(each.waiting + each.blocked for each in depths)} waiting"
        except StoreError:
            live = "the store is away"
        blows = sum(self._storms.counts.values())
        sent = len(read_acks(self._stage.acks))
        self._tell(f"{self._now()} {sent} of {self._plan.tasks} sent; {live}; {blows} blows")

    async def _settle_down(self, engine: Engine) -> None:
        """Wait until the remaining work has ended without help; then stop the workers."""
        finished, moved_at, give_up_at = 0, self._passed(), self._passed() + self._plan.deadline
        while not await self._is_done(engine):
            self._check_client()
            now = sum((await engine.kernel.store.tasks.count_finished()).by_state.values())
            if now > finished:
                finished, moved_at = now, self._passed()
            if self._passed() > min(moved_at + self._plan.patience, give_up_at):
                await self._complain(engine, self._passed() - moved_at)
                break
            await asyncio.sleep(LOOK_EVERY)
        for worker in self._stage.workers:
            await worker.process.told("ready")
            worker.process.send(signal.SIGTERM)
        for worker in self._stage.workers:
            try:
                await until(lambda worker=worker: worker.process.exit_code is not None, BOUND)  # type: ignore[misc]
                if worker.process.exit_code != 0:
                    self._problems.append(f"{worker.name} ended with {worker.process.exit_code} when it was told to stop")
            except TimeoutError:
                self._problems.append(f"{worker.name} did not stop when it was told to")

    async def _complain(self, engine: Engine, quiet_for: float) -> None:
        """Say what did not come to an end, and why it waits."""
        tasks = [
            task for task in await engine.kernel.reads.list_tasks(states=LIVE, kind=None, limit=1000) if task.kind not in UPKEEP
        ]
        self._problems.append(f"not everything came to an end by itself; nothing did for the last {quiet_for:.0f} s")
        for task in tasks[:20]:
            with suppress(TreadleError):
                self._problems.append(f"task {task.id} ({task.kind} {task.name}): {(await engine.why(task.id)).text}")

    async def _gather(self, engine: Engine) -> Evidence:
        service = ServiceClient(self._stage.port)
        ledger = await service.ask("GET", "/ledger")
        service.close()
        submissions = draw_submissions(self._plan.seed, self._plan.tasks)
        found = await gather(engine, submissions, read_acks(self._stage.acks), ledger)
        found.loop_errors = [*self._loop_errors()]
        found.expiries = note_dead(self._stage.folder, self._storms.blows, found.expiries)
        return found

    def _loop_errors(self) -> Iterator[str]:
        """Log lines that no process is expected to write."""
        for process in self._stage.started:
            for said in read_events(process.log):
                if said["event"] == "LoopError" and not any(each in said["error"] for each in EXCUSED):
                    yield f"{process.log.name}: {said['loop']}: {said['error']}"
                elif said["event"] == "Recovered" and any("its task was restored" in each for each in said["missed"]):
                    yield f"{process.log.name}: a start-up found work without a task: {said['missed']}"
            text = process.log.read_bytes()
            if b"Traceback" in text:
                yield f"{process.log.name}: {text[text.index(b'Traceback') :].decode(errors='replace')[:2000]}"
