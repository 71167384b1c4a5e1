"""The processes of one run and the store that they share: started, killed, restarted, and stopped in every case."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.crash.private_server import PrivateServer
from tests.fork_server import ROOT, start
from tests.limits import BOUND

from treadle.settings import child_environment

HANGS_FOR = 1.3
"""Leases for which the proxy hangs."""


@dataclass(slots=True)
class Plan:
    """How a run goes."""

    store: str
    tasks: int
    seed: int
    seconds: float
    """How long things go wrong, at most."""
    lease: float = 3.0
    workers: int = 4
    pause: float = 1.2
    """Seconds between two blows, on average."""
    blows: int = 5
    """At least so many, also when the work is done before."""
    script: tuple[str, ...] = ()
    """The first of them; all others are drawn."""
    patience: float = 60.0
    """Seconds without anything that ended, once nothing goes wrong any more, after which all that is left is stuck."""
    deadline: float = 1800.0
    """Seconds that everything gets to come to its end."""
    keep: bool = False
    """Keep the folder also when nothing is wrong."""
    chunk: int = 100
    backlog: int = 500


class Process:
    """One process, from its start to its end."""

    def __init__(self, module: str, arguments: list[str], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("wb") as output:
            fd = output.fileno()
            values = child_environment(**environment)
            self._born = start(module, arguments, cwd=ROOT, environment=values, stdout=fd, stderr=fd)
        self.pid = self._born.pid

    @property
    def exit_code(self) -> int | None:
        return self._born.poll()

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still lives."""
        self._born.send_signal(number)

    def events(self, what: str) -> list[dict[str, Any]]:
        """The log lines of that kind so far."""
        return [said for said in read_events(self.log) if said["event"] == what]

    async def told(self, what: str) -> dict[str, Any]:
        """The first event of that kind; it is an error if the process ends without telling it."""
        await until(lambda: bool(self.events(what)) or self.exit_code is not None)
        if not self.events(what):
            raise RuntimeError(f"a process ended without saying {what!r}:\n{self.log.read_text(errors='replace')}")
        return self.events(what)[0]

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        await until(lambda: self.exit_code is not None)
        return self.exit_code or 0

    def destroy(self) -> None:
        """Kill it in any state, even while it is stopped."""
        self.send(signal.SIGKILL)
        self._born.wait(BOUND)


@dataclass(slots=True)
class Worker:
    """A worker's slot: its current process and name."""

    number: int
    name: str
    process: Process
    diary: Path
    busy: bool = False
    """Something happens to it at the moment."""


@dataclass(slots=True)
class Stage:
    """Everything that runs."""

    plan: Plan
    url: str
    folder: Path
    rng: random.Random
    server: PrivateServer | None = None
    port: int = 0
    workers: list[Worker] = field(default_factory=list)
    client: Process | None = None
    service: Process | None = None
    proxy: Process | None = None
    started: list[Process] = field(default_factory=list)
    _far_url: str = ""
    """The way to the store through the proxy, which the client and the last worker take."""

    @property
    def acks(self) -> Path:
        return self.folder / "acks"

    async def open(self) -> None:
        """Start all of them."""
        self.service = self._start("tests.chaos.service", [], "service")
        self.port = (await self.service.told("ready"))["port"]
        if self.server is not None:
            await self._open_proxy()
        self.workers = [self._worker(number, f"worker{number}") for number in range(self.plan.workers)]
        self.start_client()
        await asyncio.gather(*(worker.process.told("ready") for worker in self.workers))

    async def _open_proxy(self) -> None:
        (host,) = parse_qs(urlsplit(self.url).query)["host"]
        (self.folder / "proxy").mkdir()
        hang_for = str(HANGS_FOR * self.plan.lease)
        self.proxy = self._start("tests.chaos.proxy", [str(self.folder / "proxy"), host, hang_for], "proxy")
        self._far_url = self.url.replace(host, str(self.folder / "proxy"))
        await self.proxy.told("ready")

    def start_client(self) -> None:
        """The client, or the next one of it."""
        plan = self.plan
        options = {"acks": self.acks, "seed": plan.seed, "count": plan.tasks, "chunk": plan.chunk, "backlog": plan.backlog}
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.client = self._start("tests.chaos.client", arguments, "client", TREADLE_STORE=self._far_url or self.url)

    def start_again(self, worker: Worker, name: str) -> None:
        """Another process in the place of one that has ended."""
        again = self._worker(worker.number, name)
        worker.name, worker.process, worker.diary = name, again.process, again.diary

    def _worker(self, number: int, name: str) -> Worker:
        diary = self.folder / f"{len(self.started):04}-{name}.diary"
        options = {"diary": diary, "port": self.port, "name": name, "lease": self.plan.lease, "kernel": f"machine{number % 3}"}
        arguments = [str(self.folder), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        environment = {"TREADLE_WARM_FUNCTIONS": self.rng.choice(("0", "1000", "1000"))}
        if number == self.plan.workers - 1 and self._far_url:
            environment["TREADLE_STORE"] = self._far_url
        return Worker(number, name, self._start("tests.chaos.worker", arguments, name, **environment), diary)

    def _start(self, module: str, arguments: list[str], name: str, **environment: str) -> Process:
        log = self.folder / f"{len(self.started):04}-{name}.log"
        process = Process(module, arguments, log, **{"TREADLE_STORE": self.url} | environment)
        self.started.append(process)
        return process

    def close(self) -> None:
        """End every process that was started here."""
        for process in self.started:
            process.destroy()


def read_events(log: Path) -> list[dict[str, Any]]:
    """The log lines of a process."""
    lines = log.read_bytes().decode(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"event": ') and line.endswith("}")]


async def until(holds: Callable[[], bool], bound: float = BOUND) -> None:
    """Look until it holds."""
    async with asyncio.timeout(bound):
        while not holds():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
