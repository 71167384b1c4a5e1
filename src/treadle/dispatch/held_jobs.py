"""The dequeued jobs of a coordinator: claims that the lease renewer renews until they are settled, lost, or time out.

While the process holds jobs, it is registered as a server: it shows the same evidence as a worker, and looks for dead workers like
one. When it dies, workers and other coordinators see that and free its jobs, or its leases expire; a crash needs no other repair.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from treadle.dispatch.config import DispatchConfig
from treadle.engine import Engine
from treadle.engine.machine import HostMachine, default_name
from treadle.kernel.store.ports import SERVERS
from treadle.kernel.takeover import FailureDetector
from treadle.kernel.telemetry.events import LeaseLost, LoopError
from treadle.model.tasks import Claim, Server, Task
from treadle.version import VERSION
from treadle.workers.context import Context
from treadle.workers.lease_renewer import LeaseRenewer

_LOST_KEPT = 1000
"""Lost claims that are remembered, so that a late caller does not settle another holder's job."""


_LOOK_AGAIN = 1.0


@dataclass(slots=True, eq=False)
class HeldJob:
    """A claim held here."""

    task: Task
    watch: asyncio.Task[None] | None = None
    """Ends the execution after its timeout."""
    settling: bool = False


class HeldJobs:
    """The claims of one coordinator; all methods run on the engine's loop."""

    def __init__(
        self, engine: Engine, config: DispatchConfig, timed_out: Callable[[HeldJob], Awaitable[None]], machine: HostMachine
    ) -> None:
        self._engine = engine
        self._machine = machine
        self._config = config
        self._timed_out = timed_out
        self.owner_id = engine.kernel.ids.new_id()
        self.lease_for = round(engine.kernel.settings.lease * 1000)
        self.state = "starting"
        self.handled = self.failed = 0
        self._name = default_name(machine, self.owner_id)
        self.held: dict[str, HeldJob] = {}
        """Jobs by the ids of their tasks."""
        self.lost: OrderedDict[str, Claim] = OrderedDict()
        """The claims that were held here and lost."""
        self._lease_renewer: LeaseRenewer | None = None
        self._failure_detector = self._new_failure_detector()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._closing = AsyncExitStack()
        """The steps of `close`, in the opposite order."""

    async def open(self, worker_id: str) -> None:
        """Register the server and start renewing leases, unless that is already done."""
        async with self._opening:
            if self._lease_renewer is not None:
                return
            kernel = self._engine.kernel
            self._name, self.state = worker_id, "running"
            self._loop = asyncio.get_running_loop()
            await kernel.store.servers.save(self.describe())
            unsubscribe = await kernel.store.subscribe(self._on_signal)
            self._lease_renewer = LeaseRenewer(
                kernel.store,
                kernel.clock,
                self.lease_for,
                self._report_lost,
                self.describe,
                kernel.emit,
                sidecar_options=kernel.sidecar_options(self.owner_id, self.lease_for),
                on_beat=self._failure_detector.on_heartbeat,
            )
            self._closing.push_async_callback(self._failure_detector.leave)
            self._closing.push_async_callback(self._machine.renew_leases(self._lease_renewer, kernel.emit))
            kernel.committer.on_fenced.append(self._fenced)
            self._closing.callback(kernel.committer.on_fenced.remove, self._fenced)
            await self._failure_detector.join()
            self._closing.push_async_callback(_stop, self._loop.create_task(self._failure_detector.run()))
            self._closing.callback(unsubscribe)

    async def close(self) -> None:
        """Stop renewing; held jobs become free when their lease expires. Idempotent."""
        async with self._opening:
            if self._lease_renewer is None:
                return
            self.state = "stopped"
            await self._closing.aclose()
            self._lease_renewer = None
            for holding in list(self.held.values()):
                self.lose(holding)
            self.owner_id = self._engine.kernel.ids.new_id()
            self._failure_detector = self._new_failure_detector()

    def _new_failure_detector(self) -> FailureDetector:
        kernel = self._engine.kernel
        return FailureDetector(
            kernel.core,
            self.owner_id,
            self._machine.identity,
            self._machine.has_ended,
            lambda: None,  # freed jobs wake nobody here: `dequeue` wakes what is due before it claims
            enabled=kernel.settings.fast_takeover,
        )

    def _on_signal(self, queue_ids: tuple[int, ...]) -> None:
        if SERVERS in queue_ids:
            self._failure_detector.notify()

    def describe(self) -> Server:
        """Return the row of this coordinator in `servers`; also called in the lease renewer's thread."""
        return Server(
            id=self.owner_id,
            name=self._name,
            host=self._machine.host,
            pid=self._machine.pid,
            version=VERSION,
            state=self.state,
            handlers=[self._config.name],
            task_lists=[self._config.task_list],
            concurrency=self._config.max_concurrent_tasks,
            handled=self.handled,
            failed=self.failed,
            running=len(self.held),
            service_name="dispatch",
            process=self._failure_detector.process,
            namespace=self._engine.kernel.settings.namespace,
        )

    def hold(self, task: Task, claimed_at: float) -> HeldJob:
        """Renew the claim from now on; `claimed_at` is the monotonic time when it was requested."""
        holding = HeldJob(task)
        self.held[task.id] = holding
        self.lost.pop(task.id, None)
        if self._lease_renewer is not None:
            self._lease_renewer.hold(Context(task, self._engine.kernel.clock.now, lambda _: None), claimed_at)
            self._lease_renewer.start(task.claim)
        if task.timeout_for is not None:
            holding.watch = asyncio.get_running_loop().create_task(self._watch(holding, task.timeout_for / 1000))
        return holding

    def drop(self, holding: HeldJob) -> None:
        """Forget a settled claim."""
        if self.held.get(holding.task.id) is holding:
            del self.held[holding.task.id]
        if self._lease_renewer is not None:
            self._lease_renewer.drop(holding.task.claim)
        if holding.watch is not None and holding.watch is not asyncio.current_task():
            holding.watch.cancel()

    def lose(self, holding: HeldJob) -> None:
        """Forget a claim that is lost, but remember that it was."""
        self.drop(holding)
        self.lost[holding.task.id] = holding.task.claim
        while len(self.lost) > _LOST_KEPT:
            self.lost.popitem(last=False)

    async def _watch(self, holding: HeldJob, seconds: float) -> None:
        await self._engine.kernel.clock.sleep(seconds)
        while holding.settling:  # the settlement in flight decides; if it fails, the timeout applies
            await self._engine.kernel.clock.sleep(_LOOK_AGAIN)
        if self.held.get(holding.task.id) is holding:
            try:
                await self._timed_out(holding)
            except Exception as error:
                self._engine.kernel.emit(LoopError("dispatch", f"task {holding.task.id} could not be timed out: {error!r}"))

    def _fenced(self, task_ids: list[str]) -> None:
        """Lose tasks that an operator in this process took from their holder."""
        for task_id in task_ids:
            if (holding := self.held.get(task_id)) is not None and not holding.settling:
                self._handle_lost(holding.task.claim, "it was canceled, or settled by somebody else")

    def _report_lost(self, claim: Claim, reason: str) -> None:
        """Called in the lease renewer's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._handle_lost, claim, reason)

    def _handle_lost(self, claim: Claim, reason: str) -> None:
        holding = self.held.get(claim.task_id)
        if holding is not None and holding.task.claim == claim and not holding.settling:
            self._engine.kernel.emit(LeaseLost(claim.task_id, holding.task.name, reason, holding.task.trace_id))
            self.lose(holding)


async def _stop(loop: asyncio.Task[None]) -> None:
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
