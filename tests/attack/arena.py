"""Real `treadle` processes on one store, the work that is sent to them over HTTP, and everything that became of it."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.attack.judge import Evidence, judge, read_ledger
from tests.attack.tally import Tally
from tests.chaos.stage import Process
from tests.crash.private_server import PrivateServer, private_server
from tests.limits import BOUND

from treadle import Engine
from treadle.model.access import Scope
from treadle.model.errors import StoreError
from treadle.model.names import UPKEEP
from treadle.settings import Settings

HANDLERS = Path(__file__).parent / "handlers.py"
FLOW = """
namespace attack {
    event facet Note(key: String) => (done: String)
    event facet Charge(key: String) => (receipt: String)
    workflow Pair(key: String) => (receipt: String) andThen {
        n = Note(key = $.key ++ ".note")
        c = Charge(key = n.done ++ ".charge")
        yield Pair(receipt = c.receipt)
    }
}
"""
AGAIN = 0.1
"""Seconds until an unanswered request is sent again."""
UNAVAILABLE = (429, 503, 507)
"""Statuses with which a server refuses work that it cannot store at the moment."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything, on each store."""

    tasks: int
    """Submissions per section."""
    faults: int
    """Kills and restarts per section."""
    inputs: int
    """Malformed requests and commands; 0: every combination."""
    every_bomb: bool
    answers_within: float
    """Seconds within which a server must answer while bombs explode; it once did not for a minute."""
    patience: float
    """Seconds after which a section that has not ended is stuck."""


SIZES = {
    "smoke": Size(tasks=24, faults=2, inputs=40, every_bomb=False, answers_within=60, patience=240),
    "small": Size(tasks=400, faults=12, inputs=800, every_bomb=True, answers_within=10, patience=240),
    "full": Size(tasks=10_000, faults=150, inputs=0, every_bomb=True, answers_within=10, patience=3600),
}


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, PrivateServer | None]]:
    """The URL of a new database, and its server if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'attack.db'}", None
        return
    with private_server() as server:
        yield server.url, server


@dataclass(slots=True)
class Arena:
    """The processes of one section, started and ended in any case."""

    tally: Tally
    url: str
    folder: Path
    size: Size
    rng: random.Random
    engine: Engine
    server: PrivateServer | None
    http: httpx.AsyncClient
    secret: str = ""
    base: str = ""
    """The URL of the HTTP server."""
    found: Evidence = field(default_factory=Evidence)
    running: dict[str, tuple[list[str], Process]] = field(default_factory=dict)
    """Processes by name, with their arguments."""
    started: list[Process] = field(default_factory=list)
    bombs: dict[str, str] = field(default_factory=dict)
    """Runs that must not succeed, and their names."""

    async def start(self, name: str, *arguments: str) -> Process:
        """Start a `treadle` process and wait until it says that it has started."""
        log = self.folder / f"{len(self.started):03}-{name}.log"
        environment = {"TREADLE_STORE": self.url, "ATTACK_LEDGER": str(self.folder / "ledger")}
        process = Process("treadle", ["--json", *arguments], log, **environment)
        self.started.append(process)
        self.running[name] = [*arguments], process
        event = await process.told("started")
        self.base = event.get("url") or self.base
        return process

    async def serve(self) -> Process:
        return await self.start("serve", "serve", "--port", "0")

    async def work(self, name: str, lease: float = 10) -> Process:
        options = {
            "--handlers": HANDLERS,
            "--name": name,
            "--lease": lease,
            "--concurrency": 8,
            "--poll-interval": 1,
            "--grace": 20,
        }
        return await self.start(name, "worker", *(str(each) for option in options.items() for each in option))

    async def end(self, name: str, number: signal.Signals) -> None:
        """Send the signal and wait for the end."""
        _, process = self.running[name]
        if number == signal.SIGKILL:
            self.found.killed.add(process.pid)
        process.send(number)
        code = await process.ended()
        wanted = -number if number == signal.SIGKILL else 0
        self.tally.check(code == wanted, f"{name} ended with {code} after {number.name}")

    async def restart(self, name: str, number: signal.Signals) -> None:
        """End the process and start another one like it."""
        await self.end(name, number)
        await self.start(name, *self.running[name][0])

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request with the administrator's token; raises `httpx.TransportError`."""
        headers = {"Authorization": f"Bearer {self.secret}", **options.pop("headers", {})}
        return await self.http.request(method, self.base + path, headers=headers, **options)

    async def submit(self, key: str, path: str, body: dict[str, Any]) -> None:
        """Send the work under its key until it is acknowledged."""
        while True:
            try:
                answer = await self.ask("POST", path, json=body, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                self.tally.counts["requests without an answer"] += 1
            else:
                if answer.status_code == 201:
                    self.found.acks.setdefault(key, set()).add(answer.json()["id"])
                    return
                if answer.status_code not in UNAVAILABLE:
                    self.tally.problems.append(f"{key} was answered {answer.status_code}: {answer.text[:300]}")
                    return
                self.tally.counts["requests refused as unavailable"] += 1
            await asyncio.sleep(AGAIN)

    async def submit_some(self, first: int, count: int, *, effects: bool = True) -> None:
        """Submit plain tasks, tasks with effects and runs, in turn."""
        published = {"sources": [{"name": "attack.afl", "text": FLOW}]}
        for number in range(first, first + count):
            key = f"w{number}"
            match number % 6:
                case 0 if effects:
                    await self.submit(key, "/v1/runs/from-source", {**published, "inputs": {"key": key}})
                case 1 if effects:
                    await self.submit(key, "/v1/tasks", {"name": "attack.effect", "payload": {"key": key}})
                case _:
                    payload = {"key": key, "takes": round(self.rng.uniform(0, 0.05), 3)}
                    await self.submit(key, "/v1/tasks", {"name": "attack.plain", "payload": payload})

    async def settle(self) -> None:
        """Wait until no work is left, then judge what became of all of it and of the processes."""
        store = self.engine.kernel.store
        while True:
            with suppress(StoreError):
                if {depth.queue.kind for depth in await store.tasks.list_depths()} <= UPKEEP:
                    break
            await asyncio.sleep(AGAIN)
        for work_id in {each for ids in self.found.acks.values() for each in ids}:
            run = await store.runs.find(work_id)
            task = None if run is not None else await store.tasks.find(work_id)
            state = run.state if run is not None else task.state if task is not None else "lost"
            self.found.ends[work_id] = str(state)
        read_ledger(self.folder / "ledger", self.found)
        executions = [len(each) for each in self.found.executions.values()]
        self.tally.counts["acknowledged"] = len(self.found.acks)
        self.tally.counts["executions"] = sum(executions)
        self.tally.counts["of them repeated"] = sum(executions) - len(executions)
        self.tally.problems += judge(self.found)
        await self.verify()

    async def verify(self) -> None:
        """Check the log with the command, and stop all processes."""
        log = self.folder / "verify.log"
        process = Process("treadle", ["store", "verify"], log, TREADLE_STORE=self.url)
        self.started.append(process)
        self.tally.check(await process.ended() == 0, f"`treadle store verify` found: {log.read_text()[:2000]}")
        for name, (_, running) in self.running.items():
            if running.exit_code is None:
                await self.end(name, signal.SIGTERM)
        for each in self.started:
            text = each.log.read_bytes()
            if (at := text.find(b"Traceback")) >= 0:
                self.tally.problems.append(f"{each.log.name} has a traceback: {text[at : at + 1500].decode(errors='replace')}")


@asynccontextmanager
async def arena(tally: Tally, size: Size, seed: int, place: Path | None = None) -> AsyncIterator[Arena]:
    """A new database with its processes; `place` is the folder of the database if that is not a temporary one."""
    folder = Path(tempfile.mkdtemp(prefix=f"treadle-attack-{tally.section}-"))
    try:
        with database(tally.store, place or folder) as (url, server):
            engine = Engine(url, settings=Settings(), emit=lambda event: None)
            rng = random.Random(f"{seed} {tally.section} {tally.store}")
            http = httpx.AsyncClient(timeout=BOUND, verify=False)
            made = Arena(tally, url, folder, size, rng, engine, server, http)
            try:
                async with engine, http, asyncio.timeout(size.patience):
                    made.secret = (await engine.kernel.tokens.create("attacker", [Scope.ADMIN])).secret
                    yield made
            except TimeoutError:
                tally.problems.append(f"not everything came to an end within {size.patience:.0f} s")
            finally:
                for process in made.started:
                    process.destroy()
    finally:
        if not tally.problems:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            tally.problems.append(f"the logs of the processes are in {folder}")
