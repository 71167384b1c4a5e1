"""`ExternalPollingLoop`: a worker for programs that only poll external jobs (D33)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.queue.waker import Waker
from treadle.kernel.telemetry.events import Event, LoopError, StoreTrouble, TickFailed
from treadle.model.names import DEFAULT_LIST
from treadle.workers.effects import EffectKernel
from treadle.workers.executor import SystemExecutor
from treadle.workers.handlers import Catalog
from treadle.workers.loop import Worker
from treadle.workers.resources import Resources, Services, WorkerOptions

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.engine.worker_host import WorkerHost

LOOP_TICK_SECONDS = 5.0
"""Seconds between two polls of the store; jobs with a known due time are polled when they are due."""


class ExternalPollingLoop:
    """Polls the external jobs of an engine's specialists. It keeps no state in memory: a new loop continues where another stopped.

    It runs all handlers of the engine, as every worker does. `tick` polls the due jobs once, without `start`.
    """

    def __init__(self, engine: Engine, *, tick_seconds: float = LOOP_TICK_SECONDS, concurrency: int | None = None) -> None:
        self._engine = engine
        self._tick_seconds = tick_seconds
        self._concurrency = concurrency
        self._host: WorkerHost | None = None

    async def start(self) -> None:
        """Start polling; the engine must be open."""
        from treadle.engine.worker_host import WorkerHost

        settings = self._engine.kernel.settings
        self._host = WorkerHost(
            self._engine.kernel,
            concurrency=self._concurrency,
            threads=16,
            processes=1,
            task_lists=(DEFAULT_LIST,),
            lease_for=round(settings.lease * 1000),
            grace=30.0,
            emit=self._emit,
            poll_every=self._tick_seconds,
        )
        await self._host.start()

    async def stop(self, *, timeout: float = 30.0) -> None:
        """Start no more polls and wait up to `timeout` seconds for those in flight, then cancel them."""
        host, self._host = self._host, None
        if host is not None:
            host.give_grace(timeout)
            await host.stop()

    async def tick(self) -> int:
        """Poll all due jobs concurrently, each in its own unit, and wait for them; return their number.

        Leases are not renewed meanwhile: a poll that outlasts its lease is lost, and another worker repeats it.
        """
        engine = self._engine
        executor = SystemExecutor(16)
        worker = Worker(
            Resources(
                engine.kernel.store,
                engine.kernel.committer,
                executor,
                engine.kernel.clock,
                engine.kernel.ids,
                engine.kernel.emit,
                engine.kernel.telemetry,
                engine.kernel.ids.new_id(),
                engine.kernel.settings.namespace,
            ),
            Catalog(engine.kernel.registry),
            Services(
                engine.kernel.run_services.settler.settle,
                open_payload=engine.kernel.value_store.open_text,
                effects=EffectKernel(engine.kernel.store, engine.kernel.committer, engine.kernel.value_store, engine.kernel.clock),
                tend=engine.approvals.tend,
                external_jobs=engine.kernel.external_jobs,
            ),
            WorkerOptions(concurrency=self._concurrency, poll_every=self._tick_seconds),
        )
        try:
            await Waker(engine.kernel.store, engine.kernel.clock, 60_000, engine.kernel.committer.notify, engine.kernel.emit).tick()
            return await worker.once()
        finally:
            executor.close()

    def _emit(self, event: Event) -> None:
        """Emit the event; report errors of this loop as `TickFailed`."""
        if isinstance(event, LoopError | StoreTrouble):
            event = TickFailed(f"{event.loop if isinstance(event, LoopError) else event.doing}: {event.error}")
        self._engine.kernel.emit(event)
