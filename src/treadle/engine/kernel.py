"""The container of kernel services of one engine on one store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.engine.extension import Extension
from treadle.engine.lazy_services import LazyServices
from treadle.engine.waiters import Results
from treadle.kernel.queue.service import Queue
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.sealed import sealed_store
from treadle.kernel.store.system import SystemClock
from treadle.kernel.store.value_store import Codec, ValueStore
from treadle.kernel.telemetry.events import Emit
from treadle.kernel.telemetry.observer import Telemetry
from treadle.model.clock import Clock
from treadle.model.errors import NotOpen, StoreDamaged
from treadle.model.ids import Ids
from treadle.model.runs import Run
from treadle.model.states import ALERT_RULE, SCHEDULE, WATCHER, Machine
from treadle.model.tasks import Task
from treadle.settings import Settings
from treadle.stores import make_store
from treadle.workers.functions.registry import FunctionRegistry
from treadle.workers.handlers import Registry

if TYPE_CHECKING:
    import apsw

    from treadle.kernel.declarations.records import Declared
    from treadle.kernel.guard import Guard
    from treadle.kernel.recovery import Recoverer
    from treadle.kernel.store.verify import VerifyReport
    from treadle.workers.keeper.link import KeptBy

CLOSE_WITHIN = 5.0
"""Seconds that commits in flight get when an engine closes."""

StoreFactory = Callable[[str, Clock], Store]


class Kernel(LazyServices):
    """Kernel services, built in the order in which they depend on each other.

    The services in the constructor enqueue and read tasks; the others are built on first use (`LazyServices`).
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
        self.reads = Reads(store, namespace=namespace, why_awaiting=self.why_awaiting)
        self.recoverers: dict[str, Callable[[], Recoverer]] = {
            "schedules": lambda: self._if_active(SCHEDULE, lambda: self.trigger_services.schedules),
            "watchers": lambda: self._if_active(WATCHER, lambda: self.trigger_services.watchers),
            "alerts": lambda: self._if_active(ALERT_RULE, lambda: self.trigger_services.alerts),
        }
        self._results: tuple[Results[Task], Results[Run]] | None = None
        self.open_access: bool | None = None
        """Whether this process serves HTTP to callers without a token; None: it serves no HTTP."""
        self.guards: dict[str, Guard] = {}
        """The guards of the operations, by group."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop on which the engine was opened."""
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        """Callbacks for the start of `close`, run once, last one first."""
        for extension in extensions:
            extension.attach(self)

    def _if_active(self, machine: Machine, make: Callable[[], Recoverer]) -> Recoverer:
        from treadle.kernel.recovery import IfActive

        return IfActive(self.store, self.settings.namespace, machine, make)

    def leases_kept_by(self, owner_id: str, lease_for: int) -> KeptBy | None:
        """Return how the lease keeper acts on this store; None if it cannot, or is switched off."""
        keep_for = self.settings.keep_leases
        if self._keepable is None or not keep_for:
            return None
        from treadle.workers.keeper.link import KeptBy

        scheme, _, path = self._keepable.partition("///")
        url = f"{scheme}///{Path(path).absolute()}" if scheme == "sqlite:" else self._keepable  # the keeper has another directory
        arguments = {"url": url, "owner_id": owner_id, "lease_for": lease_for, "buries": self.settings.fast_takeover}
        return KeptBy("treadle.engine.kept_leases:KeptLeases", arguments, keep_for)

    def read_connection(self) -> apsw.Connection:
        """Open a connection to the store's SQLite file that cannot write; unlike `sqlite3`, it is safe beside the store."""
        from treadle.engine.borrowed import read_connection

        return read_connection(self._plain_store)

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
        self.loop = asyncio.get_running_loop()
        await self.store.open(migrate=migrate)
        of_tasks = Results(self.store.tasks.find_many, self.store.tasks.find_finished, self.clock, self.emit)
        self._results = of_tasks, Results(self.store.runs.find_many, self.store.runs.find_finished, self.clock, self.emit)
        self.committer.on_finished.append(of_tasks.finished)

    async def close(self) -> None:
        """Finish the commits in flight and close the store; idempotent."""
        while self.before_close:
            await self.before_close.pop()()
        if "remote_workers" in self.__dict__:
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
