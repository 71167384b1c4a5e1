"""One history: two servers, a client and an operator, with the features of a case and one fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.pairs.agents import on_the_loop
from tests.pairs.case import Case, Item
from tests.pairs.faults import PairSimulation
from tests.pairs.interfaces import operations
from tests.pairs.promises import Watcher, check_end
from tests.pairs.work import UPGRADE_AT, Work
from tests.simulation.recording import Recording
from tests.simulation.replay import TABLES

from treadle import Engine
from treadle.engine.machine import has_ended
from treadle.kernel.telemetry.events import LoopError, TelemetryEvent
from treadle.model.errors import NotFound, StoreError
from treadle.settings import Settings
from treadle.testing.simulation import Process, VirtualClock

GIVE_UP_AFTER = 150.0
"""Seconds after which a history that has not ended is wrong."""


class Container(Process):
    """A process that is pid 1 of a container of its own, beside others with its host name."""

    @classmethod
    def enter(cls, process: Process) -> None:
        """Let the process be in a container."""
        process.__class__ = cls

    def identity(self) -> str | None:
        return f"box-{self.pid} 1:{self.pid}"

    def has_ended(self, identity: str) -> bool | None:
        return False if identity == self.identity() else has_ended(identity, f"box-{self.pid}")


@dataclass
class Story:
    """The history of a case, in a simulation."""

    case: Case
    simulation: PairSimulation
    items: list[Item] = field(default_factory=list)
    done_acts: int = 0
    changes: int = 0
    """Changes by operators that were not refused."""

    def __post_init__(self) -> None:
        self.work = Work(self)
        self.items = [Item(f"item-{number}", namespace) for namespace in self.case.namespaces for number in range(2)]
        self.watcher = Watcher(self)
        self._clock = VirtualClock(self.simulation.loop)
        self._hosts: dict[Process, Any] = {}
        self._over = False

    async def play(self, simulation: PairSimulation) -> None:
        """From the start of the servers to the last check."""
        self.watcher.watch()
        simulation.on_event.append(self._event)
        simulation.faults.stop_gracefully = lambda process: process.spawn(self._stop(process)) and None
        actors = [asyncio.create_task(self._keep(name, activity)) for name, activity in self._actors()]
        while simulation.loop.time() < GIVE_UP_AFTER and not simulation.problems and not await self.watcher.look():  # noqa: ASYNC110
            await asyncio.sleep(1)
        self.ended_at = simulation.loop.time()
        await asyncio.sleep(2)
        await check_end(self)
        self._over = True
        for actor in actors:
            actor.cancel()
        await asyncio.gather(*actors, return_exceptions=True)

    def _actors(self) -> list[tuple[str, Callable[[Process], Coroutine[Any, Any, None]]]]:
        case = self.case
        scopes = case.scopes if len(case.scopes) > 1 else case.scopes * 2
        actors: list[tuple[str, Callable[[Process], Coroutine[Any, Any, None]]]] = []
        for namespace in case.namespaces:
            for number, scope in enumerate(scopes):
                name = "server" if case.same_pid else f"server{number}"
                actors.append((name, partial(self._serve, namespace=namespace, scope=scope)))
            actors.append(("client", partial(self._submit, namespace=namespace)))
            if case.acts:
                actors.append(("operator", partial(self._operate, namespace=namespace)))
        if case.polled:
            actors += [(f"agent{number}", partial(self._beside, namespace="default", act=self.work.poll)) for number in range(2)]
        if case.same_pid:
            actors.append(("server", partial(self._serve, namespace="default", scope=None, joins_at=1.0)))
        if case.old_server:
            actors.append(("old", partial(self._serve, namespace="default", scope=None, is_old=True)))
        beside = {"approval": self.work.approve, "remote": self.work.serve_remotely, "agent": self.work.coordinate}
        if case.kind in beside:
            act = beside[case.kind]
            actors += [(case.kind, partial(self._beside, namespace=namespace, act=act)) for namespace in case.namespaces]
        return actors

    async def _keep(self, name: str, activity: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        """A process that is started again whenever it has ended."""
        while not self._over:
            process = self.simulation.start_process(name)
            if self.case.same_pid:
                Container.enter(process)
            process.spawn(activity(process))
            await process.gone.wait()
            await asyncio.sleep(self.simulation.lease / 4)

    def engine(self, process: Process, namespace: str = "default") -> Engine:
        """An engine in that process."""
        return self.simulation.engine(process, lease=self.simulation.lease, namespace=namespace)

    def observer(self, namespace: str = "default") -> Engine:
        """An engine outside of all processes, that only reads."""
        settings = Settings(namespace=namespace)
        return Engine(
            "memory://", settings=settings, clock=self._clock, store_of=lambda *_: self.simulation.store.beside(self._clock)
        )

    # processes

    async def _serve(
        self, process: Process, *, namespace: str, scope: str | None, is_old: bool = False, joins_at: float = 0
    ) -> None:
        """Offer everything, except in an older release; `joins_at` is in seconds, while others work."""
        await asyncio.sleep(joins_at)
        engine = self.engine(process, namespace)
        if not is_old:
            self.work.offer(engine, namespace, scope)
        await self._until_done(engine.open)
        host = self.simulation.worker(engine, process)
        await self._until_done(host.start)
        self._hosts[process] = host
        if self.case.upgrades and (left := UPGRADE_AT - self.simulation.loop.time()) > 0:
            await asyncio.sleep(left)
            process.spawn(self._stop(process))
        await asyncio.Event().wait()

    async def _stop(self, process: Process) -> None:
        """Stop a server in order; any other process just ends."""
        if (host := self._hosts.get(process)) is not None:
            await host.stop()
        process.crash("has stopped")

    async def _submit(self, process: Process, *, namespace: str) -> None:
        engine = self.engine(process, namespace)
        await self._until_done(engine.open)
        await asyncio.sleep(0.5)
        own = [item for item in self.items if item.namespace == namespace]
        async with operations(engine, self.case.interface, "eve") as api:
            for number, item in enumerate(own):
                item_id = await self._until_done(partial(self.work.submit, engine, api, item, number))
                item.id = str(item_id)
                process.trace(f"submitted {item.key} as {item.id[-6:]}")
            await asyncio.Event().wait()

    async def _operate(self, process: Process, *, namespace: str) -> None:
        engine = self.engine(process, namespace)
        await self._until_done(engine.open)
        own = [item for item in self.items if item.namespace == namespace]
        async with operations(engine, self.case.interface) as api:
            for act in self.case.acts:
                await asyncio.sleep(max(act.at - self.simulation.loop.time(), 0.1))
                while act.at and any(item.id is None for item in own):  # noqa: ASYNC110 - an operator looks
                    await asyncio.sleep(0.1)
                self.changes += await self._until_done(partial(act.do, api, own))
                self.done_acts += 1
            await asyncio.Event().wait()

    async def _beside(self, process: Process, *, namespace: str, act: Callable[..., Coroutine[Any, Any, None]]) -> None:
        engine = self.engine(process, namespace)
        await self._until_done(engine.open)
        try:
            await (act(engine) if self.case.kind == "approval" else act(engine, process))
        except StoreError as error:
            process.crash(f"gives up: {error}")

    async def _until_done(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat a call until the store has answered."""
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(0.3)
            except NotFound:
                await asyncio.sleep(1)  # nothing has failed yet

    def _event(self, process: Process, event: TelemetryEvent) -> None:
        if isinstance(event, LoopError) and "cut" not in event.error and "connection" not in event.error:
            self.simulation.wrong(f"{process.shown}: {event.loop}: {event.error}")


def play(case: Case, recording: Recording | None = None) -> PairSimulation:
    """Play the history of a case, and record its store; `problems` of the simulation lists the broken promises."""
    simulation = PairSimulation(1, case.fault)
    story = Story(case, simulation)

    async def record_play(simulation: PairSimulation) -> None:
        await story.play(simulation)
        if recording is not None:
            await simulation.end()
            await recording.keep_tables(simulation.store, TABLES)

    if recording is not None:
        simulation.on_done.append(recording.hear)
    simulation.source_reader = story.work.files.looks_of
    try:
        with on_the_loop(simulation.lease):
            simulation.run(record_play)
    except Exception as error:  # the history itself broke: that is a finding, too
        simulation.wrong(f"the history ended with {error!r}")
    return simulation
