"""The container of kernel services of one engine on one store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from treadle.engine.results import Results
from treadle.kernel.core import STORE_TIMEOUT, Core
from treadle.kernel.queue.decide import TaskDecision
from treadle.kernel.queue.service import Queue
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.encoded_store import encoded_store
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.units import Finish, Row, Seen, UnitAnswer
from treadle.kernel.store.value_store import Codec, ValueStore
from treadle.kernel.telemetry.events import Emit
from treadle.kernel.telemetry.observer import EventEmitter
from treadle.model.clock import Clock
from treadle.model.errors import IllegalTransition, NotOpen, Refused, StoreDamaged, Unsupported
from treadle.model.ids import Ids
from treadle.model.names import is_function
from treadle.model.records import Record
from treadle.model.runs import Run
from treadle.model.states import ALERT_RULE, SCHEDULE, TASK, WATCHER, RunState, StateMachine, TaskState
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json
from treadle.settings import Settings, read_alert_target
from treadle.stores import make_store
from treadle.workers.context import Registry
from treadle.workers.functions.registry import FunctionRegistry

if TYPE_CHECKING:
    import apsw

    from treadle.api.tasks import Why
    from treadle.engine.run_services import RunServices
    from treadle.engine.trigger_services import TriggerServices
    from treadle.kernel.access.requests import Requests
    from treadle.kernel.access.sessions import Sessions
    from treadle.kernel.access.tokens import Tokens
    from treadle.kernel.approvals.service import Approvals
    from treadle.kernel.declarations.records import ProgramDeclarations
    from treadle.kernel.documents import Documents
    from treadle.kernel.effects.reads import EffectReads
    from treadle.kernel.external.rebuild import ExternalUpkeep
    from treadle.kernel.external.service import ExternalJobs
    from treadle.kernel.functions.service import Functions
    from treadle.kernel.guard import Guard
    from treadle.kernel.lists import Lists
    from treadle.kernel.metrics.service import Metrics
    from treadle.kernel.metrics.throughput import ThroughputReads
    from treadle.kernel.parameters import ParametersService
    from treadle.kernel.recovery import Recovery
    from treadle.kernel.remote_workers.service import RemoteWorkers
    from treadle.kernel.runs.flows import Flows
    from treadle.kernel.runs.reads import RunReads
    from treadle.kernel.runs.service import Runs
    from treadle.kernel.search.service import Search
    from treadle.kernel.store.retention import Retention
    from treadle.kernel.store.units import Finish, Row, UnitAnswer
    from treadle.kernel.store.verify import VerifyReport
    from treadle.kernel.streams import StreamReads
    from treadle.kernel.tasks.dead_letters import DeadLetters
    from treadle.kernel.tasks.records import TaskRecords
    from treadle.kernel.tasks.service import Tasks
    from treadle.kernel.telemetry.observer import CallTimer
    from treadle.kernel.threads import Threads
    from treadle.kernel.traces import TraceReads
    from treadle.kernel.triggers import Triggers
    from treadle.model.records import Record
    from treadle.model.tasks import Claim, NewTask, Task
    from treadle.workers.call import Executor
    from treadle.workers.context import RegisteredHandler
    from treadle.workers.lease_sidecar.link import SidecarOptions
    from treadle.workers.notifications import AlertSender, Notifier


class Application(NamedTuple):
    """A package above the engine that performs a group of operations of the API; its modules are imported on first use."""

    operations: str
    """The module whose `make_operations(engine)` returns the implementation of the group."""
    attribute: str = ""
    """The attribute of the engine that is its `Extension`; empty: it extends no engine."""
    extension: str = ""
    """The module and the class of that."""


APPLICATIONS = {
    "dispatch": Application("treadle.dispatch.operations"),
    "handlers": Application("treadle.agents.handler_operations"),
    "objectives": Application("treadle.goals.operations", "goals", "treadle.goals.extension:Goals"),
}
"""The applications, by their group."""


def make_extensions() -> dict[str, Extension]:
    """Return new extensions for an engine, by the name of its attribute."""
    places = {application.attribute: application.extension.partition(":") for application in APPLICATIONS.values()}
    return {name: getattr(import_module(module), kind)() for name, (module, _, kind) in places.items() if name}


class Extension(Protocol):
    """Settles the tasks of its kinds, and gives workers the handlers for them."""

    @property
    def kinds(self) -> frozenset[str]:
        """The task kinds of this extension; no other part of the engine settles them."""

    @property
    def lease_for(self) -> int | None:
        """The lease in milliseconds of workers that were started without one; None: the one of the settings."""

    @property
    def poll_every(self) -> float | None:
        """Seconds between two polls of a worker; None: the worker's default."""

    def attach(self, kernel: Kernel) -> None:
        """Use that kernel from now on. The engine calls this when it is created and when it moves to another store."""

    async def explain(self, record: Record) -> Why | None:
        """Return the reason for the state of a record of this extension; None for any other record."""

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the tasks and rows to store in the unit with which an operator ends the task."""

    async def settle(self, task: Task, claim: Claim, decided: TaskDecision) -> UnitAnswer:
        """Commit the end of an attempt under its claim, with everything that follows from it."""

    def serve(self, executor: Executor) -> WorkerPart | None:
        """Return the extension's part of one worker; None if this process serves none of the kinds."""


class WorkerPart(Protocol):
    """The part of an extension in one worker."""

    @property
    def names(self) -> Sequence[str]:
        """The names that the worker's row in `servers` lists."""

    def check(self) -> None:
        """Raise if this process lacks something that the part needs. Called before the worker starts."""

    async def declare(self) -> None:
        """Store what other processes must know of the part. Called when the worker starts."""

    def find(self, kind: str, name: str) -> RegisteredHandler | None:
        """Return the handler for tasks of that kind and name, if this process serves them."""

    def start_tasks(self) -> Sequence[NewTask]:
        """Return the tasks to store when the worker starts; a repeated start stores none twice."""


CLOSE_WITHIN = 5.0
"""Seconds that commits in flight get when an engine closes."""

StoreFactory = Callable[[str, Clock], Store]


class Kernel:
    """Kernel services, built in the order in which they depend on each other.

    The services in the constructor enqueue and read tasks. The others are built, and their modules imported, on first use: a
    program that only enqueues tasks loads neither the language nor the evaluator. The callbacks at the end are how the queue
    reaches services that themselves need the queue; they look the service up when they are called.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        clock: Clock,
        ids: Ids,
        telemetry: EventEmitter,
        registry: Registry,
        function_registry: FunctionRegistry,
        codec: Codec | None = None,
        store_of: StoreFactory | None = None,
        extensions: Sequence[Extension] = (),
        declared: ProgramDeclarations | None = None,
    ) -> None:
        """`store_of` replaces `make_store`."""
        namespace, emit = settings.namespace, telemetry
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.telemetry = telemetry
        self.emit: Emit = telemetry
        self.registry = registry
        self.function_registry = function_registry
        registry.limits_of_run = function_registry.limits_for
        self.extensions = extensions
        self.declared = declared
        """The limits and triggers that the program's code declares."""
        self._plain_store = (store_of or make_store)(url, clock)
        self._sidecar_url = url if store_of is None and type(clock) is SystemClock and not url.startswith("memory:") else None
        """The URL under which the lease sidecar opens the store, if another process can."""
        self._codec = codec
        self.store = store = encoded_store(self._plain_store, codec)
        self.committer = Committer(store, clock, emit)
        self.value_store = ValueStore(store, codec)
        self.core = Core(
            store,
            self.committer,
            self.value_store,
            ids,
            clock,
            emit,
            namespace,
            settings.payload_limit,
            current_trace_id=telemetry.trace_id,
            current_baggage=(lambda: registry.baggage.pack(self.value_store)) if registry.baggage else None,
            around=registry.around,
            limits_for=registry.limits_for,
        )
        self.queue = Queue(self.core, follow=self._follow_operator, retry_of_run=self._retry_of_run)
        self.reads = Reads(self.core, self.why_awaiting)
        self.recoverers: dict[str, tuple[StateMachine, Callable[[], Triggers[Any, Any]]]] = {
            "schedules": (SCHEDULE, lambda: self.trigger_services.schedules),
            "watchers": (WATCHER, lambda: self.trigger_services.watchers),
            "alerts": (ALERT_RULE, lambda: self.trigger_services.alerts),
        }
        self._results: Results | None = None
        self.open_access: bool | None = None
        """Whether this process serves HTTP to callers without a token; None: it serves no HTTP."""
        self.guards: dict[str, Guard] = {}
        """The guards of the operations, by group."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._pid: int | None = None
        """The process that opened it."""
        """The event loop on which the engine was opened."""
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        """Callbacks for the start of `close`, run once, last one first."""
        for extension in extensions:
            extension.attach(self)

    def sidecar_options(self, owner_id: str, lease_for: int) -> SidecarOptions | None:
        """Return how the lease sidecar acts on this store; None if it cannot, or is switched off."""
        keep_for = self.settings.keep_leases
        if self._sidecar_url is None or not keep_for:
            return None
        from treadle.workers.lease_sidecar.link import SidecarOptions

        scheme, _, path = self._sidecar_url.partition("///")
        url = f"{scheme}///{Path(path).absolute()}" if scheme == "sqlite:" else self._sidecar_url  # it has another directory
        arguments = {"url": url, "owner_id": owner_id, "lease_for": lease_for, "fast_takeover": self.settings.fast_takeover}
        return SidecarOptions("treadle.engine.sidecar_store:SidecarStore", arguments, keep_for)

    def read_connection(self) -> apsw.Connection:
        """Open a connection to the store's SQLite file that cannot write; unlike `sqlite3`, it is safe beside the store."""
        from treadle.stores.sqlite import SqliteStore, connect_for_reading

        store = self._plain_store
        if not isinstance(store, SqliteStore) or store._database.path is None:
            raise Unsupported("read_connection() is for a SQLite file; read PostgreSQL with a connection of your own.")
        return connect_for_reading(store._database.path)

    # services that are built on first use

    @cached_property
    def retention(self) -> Retention:
        """The pruning of finished work."""
        from treadle.kernel.store.retention import Retention

        settings = self.settings
        return Retention(
            self.store,
            namespace=settings.namespace,
            keep_completed_for=round(settings.keep_completed * 1000),
            keep_failed_for=round(settings.keep_failed * 1000),
        )

    @cached_property
    def task_records(self) -> TaskRecords:
        """Tasks as the API shows them."""
        from treadle.kernel.tasks.records import TaskRecords

        return TaskRecords(self.core, self.reads)

    @cached_property
    def tasks(self) -> Tasks:
        """Tasks by id and by query."""
        from treadle.kernel.tasks.service import Tasks

        return Tasks(
            self.core,
            self.queue,
            self.reads,
            self.task_records,
            lambda: self.search,
            lambda task_id, timeout: self.results.of(task_id, timeout, TASK.entity),
        )

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Permanently failed tasks."""
        from treadle.kernel.tasks.dead_letters import DeadLetters

        return DeadLetters(
            self.core, self.queue, self.reads, self.task_records, lambda run_id, actor: self.runs.retry_dead(run_id, actor=actor)
        )

    @cached_property
    def lists(self) -> Lists:
        """Task lists: pause, drain, limit."""
        from treadle.kernel.lists import Lists

        return Lists(self.core, self.reads)

    @cached_property
    def approvals(self) -> Approvals:
        """Questions for people."""
        from treadle.kernel.approvals.service import Approvals

        return Approvals(self.core, follow=self._follow, notifies=bool(self.settings.approval_webhook))

    @cached_property
    def notifier(self) -> Notifier:
        """The sender of notifications about approvals."""
        from treadle.workers.notifications import Notifier

        settings = self.settings
        return Notifier(
            self.approvals,
            self.clock.now,
            url=settings.approval_webhook,
            secret=settings.webhook_secret,
            allowed=settings.webhook_allow,
        )

    @cached_property
    def effects(self) -> EffectReads:
        """Recorded effects and their outcomes."""
        from treadle.kernel.effects.reads import EffectReads

        return EffectReads(self.core)

    @cached_property
    def streams(self) -> StreamReads:
        """Streams of runs."""
        from treadle.kernel.streams import StreamReads

        return StreamReads(self.core)

    @cached_property
    def external_jobs(self) -> ExternalJobs:
        """Jobs in external services."""
        from treadle.kernel.external.service import ExternalJobs

        return ExternalJobs(
            self.core,
            settle=self._settle,
            cancel=self.queue.cancel,
            public_url=self.settings.public_url,
            repeated_steps=self._repeated_steps,
            explain=self._explain_task,
        )

    @cached_property
    def remote_workers(self) -> RemoteWorkers:
        """Workers that claim and settle over HTTP."""
        from treadle.kernel.remote_workers.service import RemoteWorkers

        return RemoteWorkers(
            self.core,
            self.external_jobs,
            lease_for=round(self.settings.lease * 1000),
            process_due=self.approvals.process_due,
            is_prompt=self._is_prompt,
            settle=self._settle,
            update_step=self._update_step,
        )

    @cached_property
    def recovery(self) -> Recovery:
        """The clean-up after crashed processes."""
        from treadle.kernel.recovery import Recovery

        return Recovery(self.core, self.approvals, self.recoverers)

    @cached_property
    def run_services(self) -> RunServices:
        """Runs of workflows and durable functions."""
        from treadle.engine.run_services import RunServices

        return RunServices(self)

    @cached_property
    def trigger_services(self) -> TriggerServices:
        """Schedules, watchers and alerts."""
        from treadle.engine.trigger_services import TriggerServices

        return TriggerServices(self)

    @property
    def runs(self) -> Runs:
        """Runs as the engine operates them; `engine.runs` performs the operations of the API with it."""
        return self.run_services.runs

    @property
    def run_reads(self) -> RunReads:
        """Reads of runs and their steps."""
        return self.run_services.reads

    @cached_property
    def search(self) -> Search:
        """Queries over runs and tasks."""
        from treadle.kernel.search.service import Search

        encoded = self._codec is not None
        return Search(self.core, lambda runs: self.run_reads.list_by_activity(runs), encoded=encoded)

    @property
    def flows(self) -> Flows:
        """Compiled and published AFL."""
        return self.run_services.flows

    @property
    def functions(self) -> Functions:
        """Durable functions: start, signal, list."""
        return self.run_services.functions

    @property
    def traces(self) -> TraceReads:
        """Everything that followed from one start."""
        return self.run_services.traces

    @cached_property
    def threads(self) -> Threads:
        """Checkpoints of agent frameworks."""
        from treadle.kernel.threads import Threads

        return Threads(self.core)

    @cached_property
    def alert_sender(self) -> AlertSender:
        """The sender of alert messages."""
        from treadle.workers.notifications import AlertSender

        settings = self.settings
        alerts, allowed = self.trigger_services.alerts, settings.webhook_allow
        return AlertSender(alerts, read_alert_target, self.clock.now, secret=settings.webhook_secret, allowed=allowed)

    @cached_property
    def external_upkeep(self) -> ExternalUpkeep:
        """The check of external job records against their events, and their rebuild."""
        from treadle.kernel.external.rebuild import ExternalUpkeep

        return ExternalUpkeep(self.core)

    @cached_property
    def documents(self) -> Documents:
        """The check of stored documents."""
        from treadle.kernel.documents import Documents

        return Documents(self.core, self._plain_store, self.flows)

    @cached_property
    def parameters(self) -> ParametersService:
        """The parameters of handlers and functions."""
        from treadle.kernel.parameters import ParametersService

        return ParametersService(self.core)

    @cached_property
    def tokens(self) -> Tokens:
        """API tokens and their scopes."""
        from treadle.kernel.access.tokens import Tokens

        return Tokens(self.core)

    @cached_property
    def sessions(self) -> Sessions:
        """Browser sessions, opened with a token."""
        from treadle.kernel.access.sessions import Sessions

        return Sessions(self.core, self.tokens)

    @cached_property
    def requests(self) -> Requests:
        """Stored responses of requests with an idempotency key."""
        from treadle.kernel.access.requests import Requests

        return Requests(self.core)

    @cached_property
    def metrics(self) -> Metrics:
        """Roll-ups of transitions by minute, hour and day."""
        from treadle.kernel.metrics.service import Metrics

        return Metrics(self.core, [round(seconds * 1000) for seconds in self.settings.keep_metrics])

    @cached_property
    def throughput(self) -> ThroughputReads:
        """The last hour."""
        from treadle.kernel.metrics.throughput import ThroughputReads

        return ThroughputReads(self.core, self.metrics)

    @cached_property
    def call_timer(self) -> CallTimer:
        """Durations of store calls, measured from the first use on."""
        from treadle.kernel.telemetry.observer import CallTimer

        timer = CallTimer(self.clock)
        self.telemetry.add(timer.observe)
        return timer

    # results, values

    @property
    def is_open(self) -> bool:
        """Whether the engine is open."""
        return self._results is not None

    @property
    def results(self) -> Results:
        """The waiters for ends of tasks and of runs; raises `NotOpen` while the engine is closed."""
        if self._results is None:
            raise NotOpen
        return self._results

    def run_finished(self, run_id: str) -> None:
        """Wake the callers that wait for a run which ended in this process."""
        if self._results is not None:
            self._results.runs.finished([run_id])

    async def verify(self) -> VerifyReport:
        """Check for damage, then every entity's history against the state tables, and external jobs against their events."""
        from treadle.kernel.store.verify import VerifyReport, verify

        damage = await self.store.health.list_damage()
        try:
            report = await verify(self.store)
            return VerifyReport(report.checked, (*damage, *report.problems, *await self.external_upkeep.check()))
        except StoreDamaged as error:
            return VerifyReport(0, tuple(damage) or (str(error),))

    # tracing

    def use_tracing(self, provider: Any = None) -> None:
        """Create OpenTelemetry spans with that `TracerProvider`; without one, send them to `TREADLE_OTLP_ENDPOINT`."""
        from treadle.engine.tracing import make_provider, trace

        settings = self.settings
        provider = provider or make_provider(settings.otlp_endpoint, settings.service_name)
        trace(self.telemetry, self.clock, settings.namespace, provider)

    def share_tracing(self) -> None:
        """Make the engine's tracer provider the global one, for processes in which nothing else sets it."""
        if self.telemetry.spans is not None:
            from treadle.engine.tracing import Tracing, share

            if isinstance(self.telemetry.spans, Tracing):
                share(self.telemetry.spans)

    # life cycle

    async def open(self, *, migrate: bool = True) -> None:
        """Connect to the store, and migrate its schema unless told otherwise."""
        if self.settings.otlp_endpoint and self.telemetry.spans is None:
            self.use_tracing()
        self.loop, self._pid = asyncio.get_running_loop(), os.getpid()
        await self.store.open(migrate=migrate)
        self._results = Results(self)
        self.committer.on_finished.append(self._results.tasks.finished)

    async def close(self) -> None:
        """Finish the commits in flight and close the store; idempotent."""
        if self._pid not in (None, os.getpid()):
            return  # the process that forked this one uses it
        while self.before_close:
            await self.before_close.pop()()
        if "remote_workers" in self.__dict__:
            await self.remote_workers.close()
        if self._results is not None:
            self.committer.on_finished.remove(self._results.tasks.finished)
            await self._results.close()
            self._results = None
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self.committer.drain()
                if "run_services" in self.__dict__:
                    await self.run_services.log_lines.flush()
        except TimeoutError:
            pass  # the store does not answer; `committer.close` fails the units that are left
        try:
            await self.committer.close()
        finally:
            await self.store.close()
            if self.telemetry.spans is not None:  # the process may end right after this
                await asyncio.to_thread(self.telemetry.spans.flush)

    # callbacks between services

    async def why_awaiting(self, task: Task) -> Reason | None:
        """Explain a task that waits for a person or an external job."""
        external = task.state == TaskState.AWAITING_EXTERNAL
        return await (self.external_jobs.why(task) if external else self.approvals.why(task))

    async def _explain_task(self, task_id: str) -> Reason:
        return await self.reads.explain(await self.reads.get_task(task_id))

    async def explain_record(self, record: Record) -> Why | None:
        """Explain the state of a record that belongs to an extension; None for any other record."""
        for extension in self.extensions:
            if (why := await extension.explain(record)) is not None:
                return why
        return None

    async def cancel_rows(self, run: Run) -> tuple[Row, ...]:
        """Return the rows to store with the cancellation of a run, beside its tasks and steps."""
        return (*await self.approvals.rows_for_run(run), *await self.external_jobs.rows_for_run(run))

    async def _follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the consequences of a task's end for its run, or for the extension that it belongs to."""
        for extension in self.extensions:
            if task.kind in extension.kinds:
                return await extension.follow(task, finish)
        if task.run_id is None:
            return (), ()
        services = self.run_services
        follow = services.functions.follow if is_function(task.flow_id) else services.advancer.follow
        return await follow(task, finish)

    async def _follow_operator(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the consequences of a task's end by an operator, including the end of its approval or external job."""
        tasks, rows = await self._follow(task, finish)
        rows = (*rows, *await self.approvals.rows_for_end(task), *await self.external_jobs.rows_for_end(task))
        return (*tasks, *await self.external_jobs.tasks_for_end(task)), rows

    async def _retry_of_run(self, task: Task, actor: str) -> None:
        runs = self.runs
        try:
            await runs.retry(task.run_id or "", task.step_id, actor=actor)
        except IllegalTransition as error:
            if error.state != RunState.COMPLETED:
                raise
            fork = f"treadle runs fork {task.run_id} {task.step_id or 'STEP'}"
            raise Refused(
                f"The run of task {task.id} has completed without its result; repeat it in a new run: `{fork}`."
            ) from None

    async def _repeated_steps(self, task: Task) -> list[tuple[str, str]]:
        return await self.functions.list_repeated(task) if is_function(task.flow_id) else []

    async def _settle(
        self, task: Task, guard: Claim | Seen, decided: TaskDecision, patience: float | None = STORE_TIMEOUT
    ) -> UnitAnswer:
        return await self.run_services.settler.settle(task, guard, decided, patience)

    async def _update_step(self, run_id: str, step_id: str, partial: Mapping[str, Json]) -> bool:
        return await self.runs.update_step(run_id, step_id, partial)

    def _is_prompt(self, name: str) -> bool:
        return self.registry.fallback is not None and self.registry.fallback.find(name) is not None
