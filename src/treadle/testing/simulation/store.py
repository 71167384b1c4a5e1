"""The connection of one simulated process to the shared store: SQLite in memory, with faults before and after each call.

Every call has a latency each way, so that calls interleave according to the seed. The store executes a call at one
instant, by the clock of the calling process (skewed clocks: `Faults.skew`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from treadle.kernel.store.database import Port
from treadle.kernel.store.operator_ports import LeaseConnection
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Membership, Renewal
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.model.tasks import Claim, Server
from treadle.stores.sqlite import SqliteStore
from treadle.testing.simulation.process import Process

READS = ("find", "list_", "load_", "count", "walk", "group", "next_", "now", "describe", "check", "read_")
"""Prefixes of the names of calls that write nothing."""


def is_read(name: str) -> bool:
    """Whether the call of that name, such as `tasks.find`, writes nothing."""
    return name.rpartition(".")[2].startswith(READS)


def simulated_store(inner: SqliteStore, process: Process) -> Store:
    """Return the store as the process sees it."""
    return cast("Store", SimulatedStore(inner, process))


class SimulatedPort:
    """Sends each call of one port through `SimulatedStore.call`."""

    def __init__(self, store: SimulatedStore, name: str, inner: object) -> None:
        self._store, self._name, self._inner = store, name, inner

    def __getattr__(self, name: str) -> Any:
        return self._store.wrap(self, name, getattr(self._inner, name), f"{self._name}.{name}")


class SimulatedServers(SimulatedPort):
    """The port of servers, whose lease connections are simulated too."""

    def lease_connection(self) -> LeaseConnection:
        """The lease renewer's connection."""
        return SimulatedLeaseConnection(self._store, self._store._inner.servers.lease_connection())


class SimulatedStore:
    """Sends each call of the ports through `_call`, except signals and the lease connection."""

    def __init__(self, inner: SqliteStore, process: Process) -> None:
        self._inner = inner
        self._process = process
        self._simulation = process.simulation
        self.url = inner.url
        self.parallel_commits = self._simulation.parallel_commits

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._inner, name)
        if isinstance(member, Port):
            port = (SimulatedServers if name == "servers" else SimulatedPort)(self, name, member)
            setattr(self, name, port)
            return port
        return self.wrap(self, name, member, name)

    def wrap(self, port: object, name: str, method: Any, shown: str) -> Any:
        """Return the method of the port as one that sends its calls through `_call`; other attributes as they are."""
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._call(shown, method, arguments, options)

        setattr(port, name, call)
        return call

    async def open(self, *, migrate: bool = True) -> None:
        """Do nothing: the simulation has opened the store."""

    async def close(self) -> None:
        """Do nothing: other processes use the store."""

    async def _call(self, name: str, method: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        process, faults = self._process, self._simulation.faults
        await asyncio.sleep(faults.latency())
        await faults.delay_call(process, name)
        await process.pass_gate()
        faults.before(process, name)
        answer = await self._do(name, method, arguments, options)
        if faults.repeats(process, name):
            await self._do(name, method, arguments, options)
        faults.after(process, name)
        await faults.delay_answer(process, name)
        await asyncio.sleep(faults.latency())
        await process.pass_gate()
        return answer

    async def _do(self, name: str, method: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Execute the call in the store; no other event runs meanwhile."""
        process, simulation = self._process, self._simulation
        parameters = (*arguments, *options.values())
        for look in simulation.before:
            await look(process, name, parameters)
        try:
            answer = await method(*arguments, **options)
        except Exception as error:
            process.trace(f"{name} -> {type(error).__name__}: {error}")
            raise
        simulation.done(process, name, arguments, options, answer)
        for seen in simulation.after:
            await seen(process, name, parameters, answer)
        return answer

    # signals

    async def subscribe(self, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Receive signals of other processes, unless they are lost."""
        return self._simulation.signals.subscribe(self._process, heard)

    async def notify(self, queue_ids: Sequence[int]) -> None:
        """Signal the other processes; the signal may be lost."""
        await self._process.pass_gate()
        self._simulation.signals.send(self._process, tuple(sorted(queue_ids)))


class SimulatedLeaseConnection:
    """Lease renewals take effect immediately; like other calls they may be refused, or their answer lost."""

    def __init__(self, store: SimulatedStore, inner: LeaseConnection) -> None:
        self._store = store
        self._inner = inner

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        process = self._store._process
        faults = process.simulation.faults
        if not process.alive:
            raise asyncio.CancelledError
        faults.before(process, name)
        answer = method(*arguments)
        process.simulation.done(process, name, arguments, {}, answer)
        faults.after(process, name)
        return answer

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        """Extend the claims that are still held."""
        return cast("set[str]", self._call("renew", self._inner.renew, renewals, lease_for))

    def held(self, claims: Sequence[Claim]) -> set[str]:
        """Return the tasks with an unchanged claim."""
        return cast("set[str]", self._call("list_held", self._inner.held, claims))

    def beat(self, server: Server) -> Membership:
        """Record a heartbeat of the server."""
        return cast("Membership", self._call("beat", self._inner.beat, server))

    def now(self) -> int:
        """Return the store's clock."""
        return self._inner.now()

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()


class SimulatedSignals:
    """Subscribers to ready tasks; signals have a latency and may be lost."""

    def __init__(self) -> None:
        self._heard: dict[object, tuple[Process, Callable[[tuple[int, ...]], None]]] = {}

    def subscribe(self, process: Process, heard: Callable[[tuple[int, ...]], None]) -> Callable[[], None]:
        """Add a callback; returns a function that removes it."""
        key = object()
        self._heard[key] = (process, heard)
        return lambda: self._heard.pop(key, None) and None

    def send(self, sender: Process, queue_ids: tuple[int, ...]) -> None:
        """Signal all other processes."""
        simulation = sender.simulation
        for key, (process, _) in list(self._heard.items()):
            if process is sender:
                continue
            if not process.alive:
                del self._heard[key]
            elif not simulation.faults.loses_signal():
                simulation.loop.call_later(simulation.faults.latency(), self._reach, key, queue_ids)

    def _reach(self, key: object, queue_ids: tuple[int, ...]) -> None:
        process, heard = self._heard.get(key, (None, None))
        if process is not None and heard is not None and process.alive:
            process.run(heard, queue_ids)


def summary(name: str, arguments: tuple[Any, ...], answer: Any) -> str | None:
    """Return one line about a call for the trace, or None to omit it."""
    match name:
        case "commit":
            return "commit " + "; ".join(_unit(unit, unit_answer) for unit, unit_answer in zip(arguments[0], answer, strict=True))
        case "tasks.claim":
            return f"claim {' '.join(f'{task.id[-6:]}#{task.claim_version}({task.name})' for task in answer)}" if answer else None
        case "tasks.wake":
            return f"wake {answer.count}, {answer.expired} expired" if answer.count else None
        case "renew":
            return f"renew {' '.join(sorted(task_id[-6:] for task_id in answer))}"
        case _ if is_read(name) or name in ("beat", "log.append_lines"):
            return None
        case _:
            return name


def _unit(unit: Unit, answer: UnitAnswer) -> str:
    parts = []
    if unit.guard is not None:
        version = unit.guard.version if isinstance(unit.guard, Claim) else f"seen {unit.guard.version}"
        parts.append(f"{unit.guard.task_id[-6:]}#{version}")
    if unit.settlement is not None:
        parts.append(getattr(unit.settlement, "transition", None) or type(unit.settlement).__name__.lower())
    parts += [f"+{task.id[-6:]}({task.queue.name})" for task in unit.tasks]
    parts += [f"also {claim.task_id[-6:]}" for claim, _ in unit.also]
    if unit.run is not None:
        parts.append(f"run {unit.run.run_id[-6:]}@{unit.run.version}")
    parts += [type(row).__name__ for row in unit.rows]
    return f"{' '.join(parts)} = {answer.verdict}"
