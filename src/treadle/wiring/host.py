"""A worker in its process: loop, lease renewer, waker and registration, started and stopped together."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.queue.waker import Waker
from treadle.kernel.recovery import Place
from treadle.kernel.store.ports import LATER
from treadle.kernel.store.units import Unit
from treadle.kernel.telemetry.events import (
    Emit,
    LoopError,
    PollingStarted,
    PollingStopped,
    Recovered,
    ShortLease,
    WorkerStarted,
    WorkerStopped,
)
from treadle.model.errors import Refused, StoreError
from treadle.model.tasks import Claim, Server
from treadle.wiring.machine import Machine, SystemMachine
from treadle.workers.builtins import LOOKS, builtin_handlers
from treadle.workers.dependencies import POLL_EVERY, Resources, Services, Settle, WorkerOptions
from treadle.workers.effects import EffectKernel
from treadle.workers.functions.runtime import Runtime
from treadle.workers.functions.warm import FunctionRunner
from treadle.workers.handlers import Catalog, Registry
from treadle.workers.lease_renewer import LeaseRenewer
from treadle.workers.log_writer import LineWriter
from treadle.workers.loop import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from treadle.wiring.engine import Engine

SHORTEST_LEASE_FOR = 30_000
"""Leases under this are for demos and tests (D5)."""

BEAT_EVERY = 10.0

CLAIM_WAIT = 5.0
"""Seconds that a claim in flight gets to come back when the worker stops."""


class WorkerHost:
    """What `Engine.worker()` runs. `owner_id` is new for each start, and names this process in claims and in `servers`."""

    def __init__(
        self,
        engine: Engine,
        *,
        concurrency: int,
        threads: int,
        processes: int,
        task_lists: tuple[str, ...],
        lease_for: int,
        grace: float,
        name: str | None = None,
        registry: Registry | None = None,
        settle: Settle | None = None,
        owner_id: str | None = None,
        emit: Emit | None = None,
        beat_every: float = BEAT_EVERY,
        poll_every: float = POLL_EVERY,
        machine: Machine | None = None,
    ) -> None:
        self._engine = engine
        self._machine = machine or SystemMachine()
        self._registry = engine.registry if registry is None else registry
        self._emit = emit or engine.emit
        self._beat_every = beat_every
        self._options = WorkerOptions(
            concurrency=concurrency,
            threads=threads,
            processes=processes,
            task_lists=task_lists,
            lease_for=lease_for,
            grace=grace,
            result_limit=engine.settings.payload_limit,
            poll_every=(engine.topology_interval if registry is None else None) or poll_every,
        )
        self.owner_id = owner_id or engine.ids.new_id()
        self._machine.owner_ids.add(self.owner_id)
        self._name = name or f"{self._machine.host}-{self._machine.pid}"
        self._state = "starting"
        self._executor = self._machine.executor(threads)
        self._looking = self._machine.executor(LOOKS)  # apart, so that neither handlers nor watchers keep the others waiting
        self._looks = self._machine.looks(self._looking, engine.clock)
        self._lines = LineWriter(engine.store, engine.emit)
        self._scripts = self._machine.scripts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._stop_renewing: Callable[[], Awaitable[None]] | None = None
        self._waker = Waker(engine.store, engine.clock, self._options.lease_for, engine.committer.tell, engine.emit)
        kernel = engine.run_kernel
        self.functions = FunctionRunner(
            engine.function_registry,
            Runtime(
                engine.store,
                engine.committer,
                engine.value_store,
                engine.clock,
                engine.ids,
                self._executor,
                kernel.functions.resolve,
                kernel.functions.finished,
                engine.settings.namespace,
                engine.settings.payload_limit,
            ),
            engine.settings.warm_functions,
        )
        self._topology = engine.topology if registry is None else None
        self._roles = None if self._topology is None else engine.goals.roles(self._topology, self._executor)
        self.worker = Worker(
            Resources(
                engine.store,
                engine.committer,
                self._executor,
                engine.clock,
                engine.ids,
                self._emit,
                engine.telemetry,
                self.owner_id,
                engine.settings.namespace,
            ),
            Catalog(
                self._registry,
                engine.fallback,
                self.functions.find,
                builtin_handlers(
                    self._scripts,
                    engine.retention,
                    lambda: engine.time_kernel.firer,
                    engine.notifier,
                    lambda: engine.time_kernel.looker(self._looks),
                ),
                (lambda kind, name: None) if self._roles is None else self._roles.find,
            ),
            Services(
                settle or kernel.settler.settle,
                None if settle else kernel.settler.alone,
                engine.value_store.open_text,
                self.functions,
                EffectKernel(engine.store, engine.committer, engine.value_store, engine.clock),
                engine.approvals.tend,
                engine.external_jobs,
                self._lines.add,
            ),
            self._options,
        )

    def describe(self) -> Server:
        """This process as its row in `servers` has it."""
        return Server(
            id=self.owner_id,
            name=self._name,
            host=self._machine.host,
            pid=self._machine.pid,
            version=host_version(),
            state=self._state,
            handlers=self._served(),
            task_lists=list(self._options.task_lists),
            concurrency=self._options.concurrency,
            heartbeat_every_for=round(self._beat_every * 1000),
            handled=self.worker.handled,
            failed=self.worker.failed,
            running=self.worker.running,
        )

    def _served(self) -> list[str]:
        """The names of handlers here, those of functions (`NAME@VERSION`), specialists (`NAME@SCOPE`) and the goal pipeline."""
        engine = self._engine
        others = () if engine.fallback is None else engine.fallback.names()
        roles = () if self._topology is None else sorted(self._topology.kinds())
        return [*self._registry.names(), *self._registry.offers(), *others, *engine.function_registry.names(), *roles]

    async def start(self) -> None:
        """Register, then start to claim. When this raises, nothing of it runs."""
        engine = self._engine
        self._loop = asyncio.get_running_loop()
        if self._roles is not None:
            self._roles.check()
        if self._options.lease_for < SHORTEST_LEASE_FOR:
            engine.emit(ShortLease(self._options.lease_for))
        try:
            await engine.store.save_server(self.describe())
            self._renew_leases()
            engine.committer.on_ready.append(self.worker.wake)
            engine.committer.on_fenced.append(self.worker.stop_fenced)
            await self._at_once(self._listen(), self._recover(), self._see_to_pruning(), self._see_to_deadlines())
            self._state = "running"
            await engine.store.save_server(self.describe())
        except BaseException:
            self._state = "stopped"
            await self._let_go()
            raise
        engine.committer.on_parked.append(self._waker.expect)
        runs = (self.worker.run(), self._waker.run(), self._lines.run())
        self._tasks = [self._loop.create_task(run) for run in runs]
        engine.emit(WorkerStarted(self.owner_id, tuple(self._served())))
        if self._registry.specialists:
            self._emit(PollingStarted(self._options.poll_every))

    def give_grace(self, seconds: float) -> None:
        """Running work gets so long when this stops."""
        self._options.grace = seconds

    async def stop(self) -> None:
        """Stop gracefully; when this returns, nothing of it runs and, if the store could be reached, nothing is held."""
        engine = self._engine
        claiming, waking, writing = self._tasks
        self._state = "draining"
        try:
            await engine.store.save_server(self.describe())
        except StoreError as error:
            engine.emit(LoopError("worker", f"could not say that it is draining: {error}"))
        self.worker.stop_claiming()
        await asyncio.wait([claiming], timeout=CLAIM_WAIT)  # not canceled: what it took would be held by nobody who knows
        claiming.cancel()
        waking.cancel()
        await asyncio.gather(claiming, waking, return_exceptions=True)
        await self.worker.stop()
        self.functions.close()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await self._lines.flush()
        await engine.run_kernel.lines.flush()
        self._state = "stopped"
        await self._let_go()
        if self._registry.specialists:
            self._emit(PollingStopped())
        engine.emit(WorkerStopped(self.owner_id, self.worker.handled, self.worker.released))

    @staticmethod
    async def _at_once(*parts: Coroutine[Any, Any, None]) -> None:
        """Do what does not depend on one another; when this raises, nothing of it goes on."""
        for came in await asyncio.gather(*parts, return_exceptions=True):
            if isinstance(came, BaseException):
                raise came

    async def _listen(self) -> None:
        self._unsubscribe = await self._engine.store.subscribe(self._stirred)

    async def _recover(self) -> None:
        """See to what those before have left, before anything is claimed here."""
        place = Place(self._name, self._machine.host, self._machine.is_alive, self._machine.owner_ids)
        report = await self._engine.recovery.recover(place)
        if report.did:
            missed = [f"{service} {each.name}: {each.text}" for service, found in report.others.items() for each in found]
            missed += [f"{service} {name}: has a task again" for service, names in report.repaired.items() for name in names]
            missed += report.problems
            self._emit(
                Recovered(
                    report.expired_leases,
                    report.own_tasks,
                    report.unknown_effects,
                    len(report.orphaned_approvals),
                    tuple(missed),
                )
            )

    async def _see_to_pruning(self) -> None:
        engine = self._engine
        try:
            await engine.committer.submit(Unit(tasks=(engine.retention.task(engine.ids.new_id()),)), PATIENCE)
        except Refused as error:  # an operator drains the engine's own list: that keeps nobody from working
            engine.emit(LoopError("worker", f"nothing will be pruned: {error}"))

    async def _see_to_deadlines(self) -> None:
        engine = self._engine
        if self._topology is None or "deadline" not in self._topology.roles or not self._topology.deadlines:
            return
        try:
            await engine.committer.submit(Unit(tasks=(engine.goals.monitor.task(engine.ids.new_id()),)), PATIENCE)
        except Refused as error:
            engine.emit(LoopError("worker", f"nobody will look for overdue objectives: {error}"))

    def _renew_leases(self) -> None:
        lease_renewer = self._make_lease_renewer()
        self.worker.renew_with(lease_renewer)
        self._stop_renewing = self._machine.renew_leases(lease_renewer, self._engine.emit)

    def _make_lease_renewer(self) -> LeaseRenewer:
        engine = self._engine
        return LeaseRenewer(
            engine.store, engine.clock, self._options.lease_for, self._lost, self.describe, engine.emit, beat_every=self._beat_every
        )

    async def _let_go(self) -> None:
        """Undo as much of `start` as was done; the lease renewer's last heartbeat stores the state."""
        committer = self._engine.committer
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._waker.expect in committer.on_parked:
            committer.on_parked.remove(self._waker.expect)
        if self.worker.wake in committer.on_ready:
            committer.on_ready.remove(self.worker.wake)
            committer.on_fenced.remove(self.worker.stop_fenced)
        await self._scripts.close()
        if self._stop_renewing is not None:
            await self._stop_renewing()
        self._executor.close()
        self._looking.close()

    def _stirred(self, lane_ids: tuple[int, ...]) -> None:
        self._waker.stir()
        if lane_ids != (LATER,):
            self.worker.wake(lane_ids)

    def _lost(self, claim: Claim, reason: str) -> None:
        """Stop the attempt; called in the lease renewer's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.worker.lose, claim, reason)


@cache
def host_version() -> str:
    """The version of Treadle, as servers say it."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and not needed to enqueue

    try:
        return version("treadle")
    except PackageNotFoundError:
        return "unknown"
