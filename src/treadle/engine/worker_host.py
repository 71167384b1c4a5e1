"""A worker in its process: loop, lease renewer, waker and registration, started and stopped together.

`ExternalPollingLoop` is a worker for programs that only poll external jobs (D33).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from treadle.engine.machine import HostMachine, SystemMachine, default_name
from treadle.kernel.core import STORE_TIMEOUT
from treadle.kernel.queue.engine_tasks import cancel_work, expire_run
from treadle.kernel.queue.waker import Waker
from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.recovery import RecoveringServer
from treadle.kernel.store.units import Unit
from treadle.kernel.takeover import FailureDetector
from treadle.kernel.telemetry.events import (
    Emit,
    LoopError,
    PollingStarted,
    PollingStopped,
    Recovered,
    ShortLease,
    StoreTrouble,
    TelemetryEvent,
    TickFailed,
    WorkerStarted,
    WorkerStopped,
)
from treadle.model.errors import Refused, StoreError
from treadle.model.json_schema import Schema
from treadle.model.names import DEFAULT_LIST
from treadle.model.stored import write
from treadle.model.tasks import Claim, Server
from treadle.settings import find_release
from treadle.stores.step_results import record_step
from treadle.version import VERSION
from treadle.workers.builtins import SCAN_CONCURRENCY, run_handlers, service_handlers
from treadle.workers.context import Catalog, CatchAll, Fallback, RegisteredHandler, Registry
from treadle.workers.effects import EffectKernel
from treadle.workers.executor import SystemExecutor
from treadle.workers.functions.execution import Runtime
from treadle.workers.functions.runner import FunctionRunner
from treadle.workers.lease_renewer import LeaseRenewer
from treadle.workers.log_writer import LogWriter
from treadle.workers.loop import WorkerLoop
from treadle.workers.resources import Resources, Services, Settle, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from treadle.engine import Engine
    from treadle.engine.kernel import Kernel, WorkerPart
    from treadle.kernel.watchers.scan import SourceReader

MIN_LEASE_FOR = 30_000
"""Leases under this are for demos and tests (D5)."""

BEAT_EVERY = 10.0

CLAIM_WAIT = 5.0
"""Seconds that a stopping worker waits for a claim in flight."""


class WorkerHost:
    """The parts of a worker, started and stopped together. `owner_id` is new for each start and identifies it in claims and in
    `servers`."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        concurrency: int | None,
        threads: int,
        processes: int,
        task_lists: tuple[str, ...],
        lease_for: int | None = None,
        grace: float,
        name: str | None = None,
        registry: Registry | None = None,
        settle: Settle | None = None,
        owner_id: str | None = None,
        emit: Emit | None = None,
        beat_every: float = BEAT_EVERY,
        poll_every: float | None = None,
        machine: HostMachine | None = None,
    ) -> None:
        self._kernel = kernel
        self._machine = machine or SystemMachine()
        self._registry = kernel.registry if registry is None else registry
        self._emit = emit or kernel.emit
        self._beat_every = beat_every
        extensions = kernel.extensions if registry is None else ()
        leases = (extension.lease_for for extension in extensions if extension.lease_for is not None)
        polls = (extension.poll_every for extension in extensions if extension.poll_every is not None)
        self._options = WorkerOptions(
            concurrency=concurrency,
            most_concurrency=kernel.settings.max_concurrency,
            threads=threads,
            processes=processes,
            task_lists=task_lists,
            lease_for=lease_for or next(leases, round(kernel.settings.lease * 1000)),
            grace=grace,
            result_limit=kernel.settings.payload_limit,
            poll_every=poll_every or next(polls, kernel.settings.poll_interval),
        )
        self.owner_id = owner_id or kernel.ids.new_id()
        self._name = name or default_name(self._machine, self.owner_id)
        self._release = find_release(kernel.settings)
        self._state = "starting"
        self._executor = self._machine.executor(threads)
        self._scan_executor = self._machine.executor(SCAN_CONCURRENCY)  # separate: scans and handlers do not delay each other
        self._log_writer = LogWriter(kernel.store, kernel.emit)
        self._scripts = self._machine.scripts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe: list[Callable[[], None]] = []
        self._lease_renewer: LeaseRenewer | None = None
        self._stop_renewing: Callable[[], Awaitable[None]] | None = None
        self._waker = Waker(
            kernel.store,
            kernel.clock,
            self._options.lease_for,
            kernel.committer.notify,
            kernel.emit,
            self._options.poll_every,
            lambda: self.worker.wake(()),
        )
        self._failure_detector = FailureDetector(
            replace(kernel.core, emit=self._emit),
            self.owner_id,
            self._machine.identity,
            self._machine.has_ended,
            lambda: self._waker.expect(0),
            enabled=kernel.settings.fast_takeover,
        )
        runs = kernel.run_services
        self.functions = FunctionRunner(
            kernel.function_registry,
            Runtime(
                kernel.store,
                kernel.committer,
                kernel.value_store,
                kernel.clock,
                kernel.ids,
                self._executor,
                runs.functions.resolve,
                runs.functions.finished,
                kernel.settings.namespace,
                kernel.settings.payload_limit,
                kernel.settings,
                kernel.registry.dependencies.wire_step,
                kernel.registry.around,
                kernel.registry.dependencies.wrap_in_thread,
                record_step=record_step,
                limits_for=kernel.core.limits_for,
                streams=kernel.streams,
            ),
            kernel.settings.warm_functions,
        )
        parts = (extension.serve(self._executor) for extension in extensions)
        self._parts: list[WorkerPart] = [part for part in parts if part is not None]
        self.worker = WorkerLoop(
            Resources(
                kernel.store,
                kernel.committer,
                self._executor,
                kernel.clock,
                kernel.ids,
                self._emit,
                kernel.telemetry,
                self.owner_id,
                kernel.settings.namespace,
            ),
            Catalog(
                self._registry,
                self._fallback(),
                self.functions.find,
                run_handlers(self._scripts)
                | service_handlers(
                    kernel.retention,
                    lambda: kernel.trigger_services.firer,
                    kernel.notifier,
                    lambda: kernel.trigger_services.scanner(self._source_reader),
                    lambda: kernel.trigger_services.alert_evaluator,
                    lambda: kernel.alert_sender,
                    partial(expire_run, kernel.store, lambda: kernel.runs.cancel),
                    partial(cancel_work, kernel.store, kernel.queue.cancel, lambda: kernel.runs.cancel),
                    lambda task: kernel.metrics.roll_up(task),
                ),
                self._find_own,
            ),
            Services(
                settle or runs.settler.settle,
                None if settle else runs.settler.alone,
                kernel.value_store.unpack_text,
                self.functions,
                EffectKernel(kernel.store, kernel.committer, kernel.value_store, kernel.clock, kernel.settings.stream_limit),
                kernel.approvals.process_due,
                kernel.external_jobs,
                self._log_writer.add,
                partial(kernel.registry.baggage.unpack, value_store=kernel.value_store),
                kernel.registry.around,
            ),
            self._options,
        )

    @cached_property
    def _source_reader(self) -> SourceReader:
        return self._machine.source_reader(self._scan_executor, self._kernel.clock, self._kernel.settings.watch_allow)

    def describe(self) -> Server:
        """Return the row of this process in `servers`."""
        blocked_by = None if self._lease_renewer is None else self._lease_renewer.last_hold
        return Server(
            id=self.owner_id,
            name=self._name,
            host=self._machine.host,
            pid=self._machine.pid,
            version=VERSION,
            state=self._state,
            handlers=self._served(),
            task_lists=list(self._options.task_lists),
            concurrency=self.worker.concurrency,
            heartbeat_every_for=round(self._beat_every * 1000),
            handled=self.worker.handled,
            failed=self.worker.failed,
            running=self.worker.running,
            error=None if blocked_by is None else write(blocked_by),
            process=self._failure_detector.process,
            namespace=self._kernel.settings.namespace,
            release=self._release,
        )

    def _served(self) -> list[str]:
        """The names of handlers, functions (`NAME@VERSION`), specialists (`NAME@SCOPE`) and extensions in this process."""
        kernel = self._kernel
        others = () if kernel.registry.fallback is None else kernel.registry.fallback.names()
        own = [name for part in self._parts for name in part.names]
        return [*self._registry.names(), *self._registry.offers(), *others, *kernel.function_registry.names(), *own]

    def _fallback(self) -> Fallback | None:
        """Return the handlers of names without a registered one."""
        kernel = self._kernel
        registry = kernel.registry  # an agent has handlers of its own, and the fallback of its engine

        async def list_served() -> set[str]:
            now, servers = await kernel.store.now(), await kernel.store.servers.list_all(kernel.settings.namespace)
            return {name for server in servers if shown_server_state(server, now) == "running" for name in server.handlers}

        if registry.catch_all is None:
            return registry.fallback
        return CatchAll(registry.catch_all, registry.fallback, list_served)

    def _find_own(self, kind: str, name: str) -> RegisteredHandler | None:
        """Return the handler of an extension's kind."""
        return next((handler for part in self._parts if (handler := part.find(kind, name)) is not None), None)

    async def start(self) -> None:
        """Register, then start to claim. If this raises, everything that was started is stopped again."""
        kernel = self._kernel
        self._loop = self._log_writer.loop = asyncio.get_running_loop()
        for part in self._parts:
            part.check()
        if self._options.lease_for < MIN_LEASE_FOR:
            kernel.emit(ShortLease(self._options.lease_for))
        await kernel.registry.dependencies.start()
        try:
            self._renew_leases()
            kernel.committer.on_ready.append(self.worker.wake)
            kernel.committer.on_fenced.append(self.worker.stop_fenced)
            declaring = (part.declare() for part in self._parts)
            own = self._register(), self._listen(), self._recover(), self._store_start_tasks(), self._set_keys()
            await self._run_all(*own, self._register_parameters(), *declaring)
            await self._sync_declarations()
            self._state = "running"
            await kernel.store.servers.save(self.describe())
        except BaseException:
            self._state = "stopped"
            await self._release_all()
            raise
        kernel.committer.on_requeued.append(self._waker.expect)
        self.worker.on_limited = self._waker.on_limited
        runs = [self.worker.run(), self._waker.run(), self._failure_detector.run()]
        self._tasks = [self._loop.create_task(run) for run in runs]
        kernel.emit(WorkerStarted(self.owner_id, tuple(self._served())))
        if self._registry.specialists:
            self._emit(PollingStarted(self._options.poll_every))

    def give_grace(self, seconds: float) -> None:
        """Set the seconds that running work gets when this host stops."""
        self._options.grace = seconds

    async def stop(self) -> None:
        """Stop gracefully: no part runs when this returns and, if the store was reachable, nothing is held."""
        kernel = self._kernel
        claiming, waking, looking = self._tasks
        self._state = "draining"
        try:
            await kernel.store.servers.save(self.describe())
        except StoreError as error:
            kernel.emit(LoopError("worker", f"could not report that it is draining: {error}"))
        self.worker.stop_claiming()
        await asyncio.wait([claiming], timeout=CLAIM_WAIT)  # if it were canceled, its tasks would be held until their lease expires
        for task in (claiming, waking, looking):
            task.cancel()
        await asyncio.gather(claiming, waking, looking, return_exceptions=True)
        await self.worker.stop()
        self.functions.close()
        await self._log_writer.flush()
        await kernel.run_services.log_lines.flush()
        self._state = "stopped"
        await self._release_all()
        if self._registry.specialists:
            self._emit(PollingStopped())
        kernel.emit(WorkerStopped(self.owner_id, self.worker.handled, self.worker.released))

    @staticmethod
    async def _run_all(*parts: Coroutine[Any, Any, None]) -> None:
        """Run independent start-up steps concurrently; wait for all, then raise the first error."""
        for came in await asyncio.gather(*parts, return_exceptions=True):
            if isinstance(came, BaseException):
                raise came

    async def _register(self) -> None:
        await self._kernel.store.servers.save(self.describe())
        await self._failure_detector.join()

    async def _listen(self) -> None:
        self._waker.on_servers = self._failure_detector.notify
        for part in (self._waker, self.worker):
            self._unsubscribe.append(await self._kernel.store.subscribe(part.on_signal))

    async def _recover(self) -> None:
        """Clean up after crashed processes before anything is claimed."""
        machine = self._machine
        has_ended = machine.has_ended if self._kernel.settings.fast_takeover else lambda process: None
        place = RecoveringServer(self._name, machine.host, has_ended)
        report = await self._kernel.recovery.recover(place)
        if report.did:
            missed = [f"{service} {note.name}: {note.text}" for service, notes in report.others.items() for note in notes]
            missed += [f"{service} {name}: its task was restored" for service, names in report.repaired.items() for name in names]
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

    async def _set_keys(self) -> None:
        """Store the limit keys that handlers declare."""
        wanted = {handler.name: handler.limit_key for handler in self._registry if handler.limit_key is not None}
        lists = self._kernel.lists
        stored = await lists.handler_keys() if wanted else {}
        for name, key in wanted.items():
            if stored.get(name) != key:
                await lists.set_handler_key(name, key, actor=self._name)

    async def _register_parameters(self) -> None:
        """Store the parameters of handlers and functions, for forms and checks in other processes."""
        registered: dict[str, dict[int, Schema]] = {}
        for handler in self._registry:
            if handler.signature is not None:
                registered.setdefault(handler.name, {})[0] = handler.signature.schema()
        for function in self._kernel.function_registry:
            if function.handler.signature is not None:
                registered.setdefault(function.name, {})[function.version] = function.handler.signature.schema()
        await self._kernel.parameters.register(registered, self._name)

    async def _sync_declarations(self) -> None:
        """Apply the limits and schedules that the code of this process declares."""
        declared = self._kernel.declared if self._registry is self._kernel.registry else None
        for declarations in () if declared is None else (declared, *declared.others):
            if declarations.items or declarations.incomplete or declarations.named:
                await self._kernel.trigger_services.declarations.sync(declarations)

    async def _store_start_tasks(self) -> None:
        """Store the tasks of the engine and of extensions. A list that is drained does not keep the worker from starting."""
        kernel = self._kernel
        own = [kernel.retention.task(kernel.ids.new_id()), kernel.metrics.task(kernel.ids.new_id())]
        tasks = [*own, *(task for part in self._parts for task in part.start_tasks())]
        keys = [task.unique_key for task in tasks if task.unique_key is not None]
        # most are: a read costs less than a refused write
        stored = await kernel.store.tasks.find_unique(kernel.settings.namespace, keys)
        for task in tasks:
            if task.unique_key in stored:
                continue
            try:
                await kernel.committer.submit(Unit(tasks=(task,)), STORE_TIMEOUT)
            except Refused as error:
                kernel.emit(LoopError("worker", f"the task {task.queue.name} was not stored: {error}"))

    def _renew_leases(self) -> None:
        self._lease_renewer = lease_renewer = self._make_lease_renewer()
        self.worker.renew_with(lease_renewer)
        self._stop_renewing = self._machine.renew_leases(lease_renewer, self._kernel.emit)

    def _make_lease_renewer(self) -> LeaseRenewer:
        kernel = self._kernel
        return LeaseRenewer(
            kernel.store,
            kernel.clock,
            self._options.lease_for,
            self._lost,
            self.describe,
            kernel.emit,
            self._beat_every,
            kernel.sidecar_options(self.owner_id, self._options.lease_for),
            self._failure_detector.on_heartbeat,
        )

    async def _release_all(self) -> None:
        """Undo as much of `start` as was done; the lease renewer's last heartbeat stores the state."""
        committer = self._kernel.committer
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._waker.expect in committer.on_requeued:
            committer.on_requeued.remove(self._waker.expect)
        if self.worker.wake in committer.on_ready:
            committer.on_ready.remove(self.worker.wake)
            committer.on_fenced.remove(self.worker.stop_fenced)
        await self._scripts.close()
        if self._stop_renewing is not None:
            await self._stop_renewing()
        await self._failure_detector.leave()
        self._executor.close()
        self._scan_executor.close()
        await self._kernel.registry.dependencies.stop()

    def _lost(self, claim: Claim, reason: str) -> None:
        """Stop the attempt; called in the lease renewer's thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.worker.lose, claim, reason)


LOOP_TICK_SECONDS = 5.0
"""Seconds between two polls of the store, for loops without `tick_seconds`; jobs with a known due time are polled when they are
due."""


class ExternalPollingLoop:
    """Polls the external jobs of an engine's specialists. It keeps no state in memory: a new loop continues where another stopped.

    It runs all handlers of the engine, as every worker does. `tick` polls the due jobs once, without `start`.
    """

    def __init__(self, engine: Engine, *, tick_seconds: float | None = None, concurrency: int | None = None) -> None:
        self._engine = engine
        self._tick_seconds = LOOP_TICK_SECONDS if tick_seconds is None else tick_seconds
        self._concurrency = concurrency
        self._host: WorkerHost | None = None

    async def start(self) -> None:
        """Start polling; the engine must be open."""
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
        worker = WorkerLoop(
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
                open_payload=engine.kernel.value_store.unpack_text,
                effects=EffectKernel(engine.kernel.store, engine.kernel.committer, engine.kernel.value_store, engine.kernel.clock),
                process_due=engine.approvals.process_due,
                external_jobs=engine.kernel.external_jobs,
            ),
            WorkerOptions(concurrency=self._concurrency, poll_every=self._tick_seconds),
        )
        try:
            await Waker(engine.kernel.store, engine.kernel.clock, 60_000, engine.kernel.committer.notify, engine.kernel.emit).tick()
            return await worker.once()
        finally:
            executor.close()

    def _emit(self, event: TelemetryEvent) -> None:
        """Emit the event; report errors of this loop as `TickFailed`."""
        if isinstance(event, LoopError | StoreTrouble):
            event = TickFailed(f"{event.loop if isinstance(event, LoopError) else event.activity}: {event.error}")
        self._engine.kernel.emit(event)
