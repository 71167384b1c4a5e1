"""The container of kernel services of one engine on one store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.kernel.approvals.service import Approvals
from treadle.kernel.effects.reads import EffectReads
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.functions.steps import is_function
from treadle.kernel.queue.dead_letters import DeadLetters
from treadle.kernel.queue.lists import Lists
from treadle.kernel.queue.registrations import Registrations
from treadle.kernel.queue.service import PATIENCE, Queue
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.service import Reads
from treadle.kernel.recovery import Recoverer, Recovery
from treadle.kernel.remote_workers.service import RemoteWorkers
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.retention import Retention
from treadle.kernel.store.sealed import sealed_store
from treadle.kernel.store.system import SystemClock
from treadle.kernel.store.units import Answer, Finish, Park, Row, Seen
from treadle.kernel.store.value_store import Codec, ValueLost, ValueStore
from treadle.kernel.store.verify import VerifyReport, verify
from treadle.kernel.streams.reads import StreamReads
from treadle.kernel.telemetry.events import Emit
from treadle.kernel.telemetry.observer import Telemetry
from treadle.model.clock import Clock
from treadle.model.errors import NotOpen, StoreDamaged, UnreadableValue
from treadle.model.ids import Ids
from treadle.model.runs import Run
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, NewTask, Task
from treadle.model.values import Json, encode, unreadable_json
from treadle.settings import Settings, read_alert_target
from treadle.stores import make_store
from treadle.wiring.extension import Extension
from treadle.wiring.results import Results
from treadle.workers.functions.registry import FunctionRegistry
from treadle.workers.handlers import Registry
from treadle.workers.keeper.link import KeptBy
from treadle.workers.webhooks import Notifier

if TYPE_CHECKING:
    import apsw

    from treadle.kernel.access.requests import Requests
    from treadle.kernel.access.sessions import Sessions
    from treadle.kernel.access.tokens import Tokens
    from treadle.kernel.bodies import Bodies
    from treadle.kernel.declarations.records import Declared
    from treadle.kernel.external.rebuild import ExternalUpkeep
    from treadle.kernel.functions.service import Functions
    from treadle.kernel.reads.rates import HandlerRateReads
    from treadle.kernel.reads.throughput import Throughput
    from treadle.kernel.runs.flows import Flows
    from treadle.kernel.runs.reads import RunReads
    from treadle.kernel.search.service import Search
    from treadle.kernel.telemetry.call_times import CallTimer
    from treadle.kernel.threads.service import Threads
    from treadle.kernel.traces.reads import TraceReads
    from treadle.wiring.services import RunServices, TriggerServices
    from treadle.workers.alerts import AlertSender

CLOSE_WITHIN = 5.0
"""Seconds that commits in flight get when an engine closes."""

StoreFactory = Callable[[str, Clock], Store]


class Kernel:
    """Kernel services, built in the order in which they depend on each other.

    The services in the constructor serve tasks. The others are built, and their modules imported, on first use: a program that
    only enqueues tasks loads neither the language nor the evaluator. The callbacks below the constructor are how the queue
    reaches services that themselves need the queue; they look the service up when they are called.
    """

    def __init__(
        self,
        url: str,
        settings: Settings,
        *,
        clock: Clock,
        ids: Ids,
        telemetry: Telemetry,
        registry: Registry,
        function_registry: FunctionRegistry,
        codec: Codec | None = None,
        store_of: StoreFactory | None = None,
        extensions: Sequence[Extension] = (),
        declared: Declared | None = None,
    ) -> None:
        """`store_of` replaces `make_store`."""
        namespace, payload_limit, emit = settings.namespace, settings.payload_limit, telemetry
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.telemetry = telemetry
        self.emit: Emit = telemetry
        self.registry = registry
        self.function_registry = function_registry
        self.extensions = extensions
        self.declared = declared
        """The limits and schedules that the program's code declares."""
        self._plain_store = (store_of or make_store)(url, clock)
        self._keepable = url if store_of is None and type(clock) is SystemClock and not url.startswith("memory:") else None
        """The URL under which the lease keeper opens the store, if another process can."""
        self._codec = codec
        self.store = store = sealed_store(self._plain_store, codec)
        self.committer = committer = Committer(store, clock, emit)
        self.value_store = value_store = ValueStore(store, codec)
        self.queue = Queue(
            store,
            committer,
            ids,
            value_store,
            namespace=namespace,
            payload_limit=payload_limit,
            follow=self._follow_operator,
            current_trace_id=telemetry.trace_id,
        )
        self.retention = Retention(
            store,
            namespace=namespace,
            keep_completed_for=round(settings.keep_completed * 1000),
            keep_failed_for=round(settings.keep_failed * 1000),
        )
        self.dead_letters = DeadLetters(store, committer, self.queue, self._retry_run, namespace=namespace)
        self.lists = Lists(store, committer, emit, namespace=namespace)
        self.registrations = Registrations(store, emit, namespace=namespace)
        self.reads = Reads(store, namespace=namespace, why_awaiting=self.why_awaiting)
        self.approvals = Approvals(
            store,
            committer,
            value_store,
            ids,
            namespace=namespace,
            follow=self._follow,
            notifies=bool(settings.approval_webhook),
        )
        self.notifier = Notifier(
            self.approvals,
            clock.now,
            url=settings.approval_webhook,
            secret=settings.webhook_secret,
            allowed=settings.webhook_allow,
        )
        self.effects = EffectReads(store, namespace)
        self.streams = StreamReads(store, committer, clock, namespace=namespace)
        self.external_jobs = ExternalJobs(
            store,
            committer,
            value_store,
            ids,
            emit,
            namespace=namespace,
            settle=self._settle_external,
            cancel=self.queue.cancel,
            public_url=settings.public_url,
            repeated_steps=self._repeated_steps,
        )
        self.remote_workers = RemoteWorkers(
            store,
            committer,
            value_store,
            self.external_jobs,
            clock,
            ids,
            emit,
            tend=self.approvals.tend,
            is_prompt=self._is_prompt,
            namespace=namespace,
            lease_for=round(settings.lease * 1000),
            result_limit=payload_limit,
            settle=self._settle_remote,
            update_step=self._update_step,
        )
        self.recoverers: dict[str, Callable[[], Recoverer]] = {
            "schedules": lambda: self.trigger_services.schedules,
            "watchers": lambda: self.trigger_services.watchers,
            "alerts": lambda: self.trigger_services.alerts,
        }
        self.recovery = Recovery(store, self.approvals, self.recoverers, committer.notify, namespace=namespace)
        self._results: tuple[Results[Task], Results[Run]] | None = None
        self.open_access: bool | None = None
        """Whether this process serves HTTP to callers without a token; None: it serves no HTTP."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the engine was opened."""
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        """Callbacks for the start of `close`, run once, last one first."""
        for extension in extensions:
            extension.attach(self)

    def leases_kept_by(self, owner_id: str, lease_for: int) -> KeptBy | None:
        """Return how the lease keeper acts on this store; None if it cannot, or is switched off."""
        keep_for = self.settings.keep_leases
        if self._keepable is None or not keep_for:
            return None
        scheme, _, path = self._keepable.partition("///")
        url = f"{scheme}///{Path(path).absolute()}" if scheme == "sqlite:" else self._keepable  # the keeper has another directory
        arguments = {"url": url, "owner_id": owner_id, "lease_for": lease_for, "buries": self.settings.fast_takeover}
        return KeptBy("treadle.wiring.kept_leases:KeptLeases", arguments, keep_for)

    def read_connection(self) -> apsw.Connection:
        """Open a connection to the store's SQLite file that cannot write; unlike `sqlite3`, it is safe beside the store."""
        from treadle.wiring.borrowed import read_connection

        return read_connection(self._plain_store)

    # services built on first use

    @cached_property
    def run_services(self) -> RunServices:
        """Runs of workflows and durable functions."""
        from treadle.wiring.services import RunServices

        return RunServices(self)

    @property
    def run_reads(self) -> RunReads:
        """Reads of runs and their steps."""
        return self.run_services.reads

    @cached_property
    def search(self) -> Search:
        """Queries over runs and tasks."""
        from treadle.kernel.search.service import Search

        sealed = self._codec is not None
        return Search(self.store, self.value_store, self._list_doing, namespace=self.settings.namespace, sealed=sealed)

    async def _list_doing(self, runs: Sequence[Run]) -> dict[str, str]:
        return await self.run_reads.list_doing(runs)

    @property
    def flows(self) -> Flows:
        """Compiled and published AFL."""
        return self.run_services.flows

    @property
    def functions(self) -> Functions:
        """Durable functions: start, signal, list."""
        return self.run_services.functions

    @cached_property
    def trigger_services(self) -> TriggerServices:
        """Schedules, watchers and alerts."""
        from treadle.wiring.services import TriggerServices

        return TriggerServices(self)

    @property
    def traces(self) -> TraceReads:
        """Everything that followed from one start."""
        return self.run_services.traces

    @cached_property
    def threads(self) -> Threads:
        """Checkpoints of agent frameworks."""
        from treadle.kernel.threads.service import Threads

        return Threads(self.store, self.committer, self.ids, namespace=self.settings.namespace)

    @cached_property
    def alert_sender(self) -> AlertSender:
        """The sender of alert messages."""
        from treadle.workers.alerts import AlertSender

        settings = self.settings
        alerts, allowed = self.trigger_services.alerts, settings.webhook_allow
        return AlertSender(alerts, read_alert_target, self.clock.now, secret=settings.webhook_secret, allowed=allowed)

    @cached_property
    def external_upkeep(self) -> ExternalUpkeep:
        """The check of external job records against their events, and their rebuild."""
        from treadle.kernel.external.rebuild import ExternalUpkeep

        return ExternalUpkeep(self.store, self.committer, namespace=self.settings.namespace)

    @cached_property
    def bodies(self) -> Bodies:
        """The check of stored bodies."""
        from treadle.kernel.bodies import Bodies

        return Bodies(self._plain_store, self.value_store, self.flows, namespace=self.settings.namespace)

    @cached_property
    def tokens(self) -> Tokens:
        """API tokens and their scopes."""
        from treadle.kernel.access.tokens import Tokens

        return Tokens(self.store, self.committer, self.ids, self.clock, namespace=self.settings.namespace)

    @cached_property
    def sessions(self) -> Sessions:
        """Browser sessions, opened with a token."""
        from treadle.kernel.access.sessions import Sessions

        return Sessions(self.store, self.committer, self.ids, self.clock, self.tokens, namespace=self.settings.namespace)

    @cached_property
    def requests(self) -> Requests:
        """Stored responses of requests with an idempotency key."""
        from treadle.kernel.access.requests import Requests

        return Requests(self.store, self.committer, self.ids, namespace=self.settings.namespace)

    @cached_property
    def throughput(self) -> Throughput:
        """Finished tasks per minute of the last hour."""
        from treadle.kernel.reads.throughput import Throughput

        return Throughput(self.store, self.clock, namespace=self.settings.namespace)

    @cached_property
    def handler_rates(self) -> HandlerRateReads:
        """Rates and durations by handler in the last hour."""
        from treadle.kernel.reads.rates import HandlerRateReads

        return HandlerRateReads(self.store, self.clock, namespace=self.settings.namespace)

    @cached_property
    def call_timer(self) -> CallTimer:
        """Durations of store calls, measured from the first use on."""
        from treadle.kernel.telemetry.call_times import CallTimer

        timer = CallTimer(self.clock)
        self.telemetry.add(timer.observe)
        return timer

    # callbacks

    async def why_awaiting(self, task: Task) -> Reason | None:
        """Explain a task that waits for a person or an external job."""
        external = task.state == TaskState.AWAITING_EXTERNAL
        return await (self.external_jobs.why(task) if external else self.approvals.why(task))

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

    async def _retry_run(self, run_id: str, actor: str) -> None:
        await self.run_services.runs.retry_dead(run_id, actor=actor)

    async def _repeated_steps(self, task: Task) -> list[tuple[str, str]]:
        return await self.functions.list_repeated(task) if is_function(task.flow_id) else []

    async def _settle_external(self, task: Task, seen: Seen, decided: Finish | Park) -> Answer:
        return await self.run_services.settler.settle(task, seen, decided, PATIENCE)

    async def _settle_remote(self, task: Task, claim: Claim, decided: Finish | Park, patience: float | None) -> Answer:
        return await self.run_services.settler.settle(task, claim, decided, patience)

    async def _update_step(self, run_id: str, step_id: str, partial: Mapping[str, Json]) -> bool:
        return await self.run_services.runs.update_step(run_id, step_id, partial)

    def _is_prompt(self, name: str) -> bool:
        return self.registry.fallback is not None and self.registry.fallback.find(name) is not None

    # results, values

    @property
    def is_open(self) -> bool:
        """Whether the engine is open."""
        return self._results is not None

    @property
    def results(self) -> tuple[Results[Task], Results[Run]]:
        """The waiters for ends of tasks and of runs; raises `NotOpen` while the engine is closed."""
        if self._results is None:
            raise NotOpen
        return self._results

    def run_finished(self, run_id: str) -> None:
        """Wake the callers that wait for a run which ended in this process."""
        if self._results is not None:
            self._results[1].finished([run_id])

    async def open_values(self, task: Task) -> Task:
        """Replace stored references in the task's payload and result by their JSON; an unreadable value becomes an error."""
        for name in ("payload", "result"):
            stored = getattr(task, name)
            if stored is not None and stored.startswith("@"):
                try:
                    opened = await self.value_store.open_text(stored)
                except (UnreadableValue, ValueLost) as error:
                    opened = encode(unreadable_json(error))
                setattr(task, name, opened)
        return task

    async def verify(self) -> VerifyReport:
        """Check for damage, then every entity's history against the state tables, and external jobs against their events."""
        damage = await self.store.list_damage()
        try:
            report = await verify(self.store)
            return VerifyReport(report.checked, (*damage, *report.problems, *await self.external_upkeep.check()))
        except StoreDamaged as error:
            return VerifyReport(0, tuple(damage) or (str(error),))

    # tracing

    def use_tracing(self, provider: Any = None) -> None:
        """Create OpenTelemetry spans with that `TracerProvider`; without one, send them to `TREADLE_OTLP_ENDPOINT`."""
        from treadle.observability.tracing import make_provider, trace

        settings = self.settings
        provider = provider or make_provider(settings.otlp_endpoint, settings.service_name)
        trace(self.telemetry, self.clock, settings.namespace, provider)

    def share_tracing(self) -> None:
        """Make the engine's tracer provider the global one, for processes in which nothing else sets it."""
        if self.telemetry.spans is not None:
            from treadle.observability.tracing import Tracing, share

            if isinstance(self.telemetry.spans, Tracing):
                share(self.telemetry.spans)

    # life cycle

    async def open(self, *, migrate: bool = True) -> None:
        """Connect to the store, and migrate its schema unless told otherwise."""
        if self.settings.otlp_endpoint and self.telemetry.spans is None:
            self.use_tracing()
        self.loop = asyncio.get_running_loop()
        await self.store.open(migrate=migrate)
        of_tasks = Results(self.store.find_finished, self.clock, self.emit)
        self._results = of_tasks, Results(self.store.find_finished_runs, self.clock, self.emit)
        self.committer.on_finished.append(of_tasks.finished)

    async def close(self) -> None:
        """Finish the commits in flight and close the store; idempotent."""
        while self.before_close:
            await self.before_close.pop()()
        await self.remote_workers.close()
        if self._results is not None:
            of_tasks, of_runs = self._results
            self.committer.on_finished.remove(of_tasks.finished)
            await of_tasks.close()
            await of_runs.close()
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
