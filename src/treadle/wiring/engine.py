"""`Engine`: one store, and everything that a Python program does with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from treadle.api.options import EnqueueOptions
from treadle.goals.engine import GoalFace
from treadle.kernel.functions.rows import is_function
from treadle.kernel.queue.dead_letters import DeadLetters
from treadle.kernel.queue.lists import Lists
from treadle.kernel.queue.registrations import Registrations
from treadle.kernel.queue.service import Enqueued, Queue, TaskSpec
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.events import Events
from treadle.kernel.reads.scaling import Scaling
from treadle.kernel.reads.service import Reads
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.retention import Retention
from treadle.kernel.store.sealed import sealed_store
from treadle.kernel.store.system import SystemClock, SystemIds
from treadle.kernel.store.units import Finish, Row
from treadle.kernel.store.value_store import Codec, UnreadableValue, ValueLost, ValueStore
from treadle.kernel.store.verify import VerifyReport, verify
from treadle.kernel.telemetry.events import Emit, log_event
from treadle.kernel.telemetry.observer import telemetry_of
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import RunCanceled, RunFailed, TaskCanceled, TaskFailed, TaskIgnored, TreadleError
from treadle.model.ids import Ids, parse_id
from treadle.model.names import DEFAULT_LIST, GOAL_KINDS, HANDLER, check_name
from treadle.model.retry import RetryPolicy
from treadle.model.runs import Run
from treadle.model.states import RunState, TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.usage import micros
from treadle.model.values import Json, decode, encode
from treadle.settings import Settings, load_settings
from treadle.stores import make_store
from treadle.wiring.access import AccessFace
from treadle.wiring.functions import FunctionFace
from treadle.wiring.observed import ObservedFace
from treadle.wiring.people import PeopleFace, wire_people
from treadle.wiring.remote_workers import RemoteWorkersFace, wire_remote_workers
from treadle.wiring.results import Results
from treadle.wiring.services import ServiceFace, wire_services
from treadle.wiring.sync import BlockingEngine, NotOpen
from treadle.workers.functions.plans import plan_function
from treadle.workers.functions.registry import FunctionRegistry
from treadle.workers.handlers import Fallback, Handler, Isolation, Registry, make_handler

if TYPE_CHECKING:
    from treadle.kernel.runs.flows import Flows, Source
    from treadle.kernel.runs.reads import RunReads
    from treadle.kernel.runs.service import Runs, StartedRun
    from treadle.kernel.schedules.service import Schedules
    from treadle.kernel.watchers.service import Watchers
    from treadle.wiring.host import WorkerHost
    from treadle.wiring.runs import RunKernel
    from treadle.wiring.time import TimeKernel

H = TypeVar("H", bound=Callable[..., Any])

CLOSE_WITHIN = 5.0
"""Seconds that commits on their way get when an engine is closed."""


class AlreadyOpen(TreadleError):
    """The engine is open, and this can only be done while it is closed."""

    code = "already_open"


class Engine(AccessFace, FunctionFace, GoalFace, ObservedFace, RemoteWorkersFace, PeopleFace, ServiceFace):
    """A store and what is done with it: enqueue, wait, cancel, retry, look, and run handlers.

        engine = Engine("sqlite:///treadle.db")

        @engine.handler("greet", retry=3)
        async def greet(payload, ctx):
            return {"hello": payload["name"]}

        async with engine, engine.worker():
            task = await engine.enqueue("greet", {"name": "Ada"})
            print(await engine.result(task))

    Without a URL the store is that of `TREADLE_STORE`, else `sqlite:///treadle.db`. One engine belongs to one event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        emit: Emit = log_event,
        codec: Codec | None = None,
        tolerant: bool = False,
        store_of: Callable[[str, Clock], Store] = make_store,
    ) -> None:
        self._codec = codec
        self._store_of = store_of
        self._tolerant = tolerant  # texts of a codec that it does not have are shown as such
        self.clock: Clock = clock or SystemClock()
        self.ids: Ids = ids or SystemIds()
        self.telemetry = telemetry_of(emit)
        self.emit: Emit = self.telemetry
        self.registry = Registry()
        self.function_registry = FunctionRegistry()
        self.function_registry.add(plan_function(), own=True)
        self.fallback: Fallback | None = None
        """Serves names without a handler: see `treadle.llm.use_llm`."""
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        """What is done first when the engine closes, once, the last one first: for what others hold through it."""
        self._results: Results[Task] | None = None
        self._run_results: Results[Run]
        self.settings = settings or load_settings()
        self._url = url or self.settings.store
        self.use_store(None, self.settings)

    def use_store(self, url: str | None, settings: Settings) -> None:
        """Work on that store (None: the same URL as before) under those settings; the handlers stay. Only while closed."""
        if self._results is not None:
            raise AlreadyOpen("Close the engine before it is put on another store.")
        self.settings = settings
        self._url = url or self._url
        self.store: Store = self._store_of(self._url, self.clock)
        if self._codec is not None or self._tolerant:
            self.store = sealed_store(self.store, self._codec)
        self.committer = Committer(self.store, self.clock, self.emit)
        namespace = settings.namespace
        self.value_store = ValueStore(self.store, self._codec)
        self.queue = Queue(
            self.store, self.committer, self.ids, self.value_store, namespace=namespace, payload_limit=settings.payload_limit
        )
        self.retention = Retention(
            self.store,
            namespace=namespace,
            keep_completed_for=round(settings.keep_completed * 1000),
            keep_failed_for=round(settings.keep_failed * 1000),
        )
        self.dead_letters = DeadLetters(self.store, self.committer, self.queue, namespace=namespace)
        self.reads = Reads(self.store, namespace=namespace)
        self.lists = Lists(self.store, self.committer, self.emit, namespace=namespace)
        self.registrations = Registrations(self.store, self.emit, namespace=namespace)
        self.queue.follow = self._follow
        self.queue.current_trace_id = self.telemetry.trace_id
        wire_people(self, self._follow)
        wire_services(self)
        wire_remote_workers(self)
        self._run_kernel: RunKernel | None = None
        self._time_kernel: TimeKernel | None = None
        self._goal_kernel = None
        self._tokens = None
        self._sessions = None

    @property
    def run_kernel(self) -> RunKernel:
        """What runs of workflows need; loaded when it is first used, as tasks alone do not need it."""
        if self._run_kernel is None:
            from treadle.wiring.runs import RunKernel

            self._run_kernel = RunKernel(self)
            self._run_kernel.advancer.on_finished.append(self._run_finished)
            self._run_kernel.functions.on_finished.append(self._run_finished)
        return self._run_kernel

    @property
    def flows(self) -> Flows:
        """Compiled and published AFL."""
        return self.run_kernel.flows

    @property
    def runs(self) -> Runs:
        """Starting, watching and operating runs."""
        return self.run_kernel.runs

    @property
    def run_reads(self) -> RunReads:
        """What interfaces show of runs."""
        return self.run_kernel.reads

    @property
    def time_kernel(self) -> TimeKernel:
        """What acts by time; loaded when it is first used."""
        if self._time_kernel is None:
            from treadle.wiring.time import TimeKernel

            self._time_kernel = TimeKernel(self)
        return self._time_kernel

    @property
    def schedules(self) -> Schedules:
        """What is started by time: create, edit, pause, run now, backfill, preview."""
        return self.time_kernel.schedules

    @property
    def watchers(self) -> Watchers:
        """What is started when files or addresses change: create, edit, pause, look now."""
        return self.time_kernel.watchers

    async def _follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        if task.kind in GOAL_KINDS:
            return await self.goals.settler.follow(task, finish)
        follow = self.run_kernel.functions.follow if is_function(task.flow_id) else self.run_kernel.advancer.follow
        return await follow(task, finish)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, *, migrate: bool = True) -> None:
        """Connect to the store, bringing its schema up to date unless told otherwise."""
        self._begin_to_observe()
        await self.store.open(migrate=migrate)
        self._results = Results(self.store.find_finished, self.clock, self.emit)
        self._run_results = Results(self.store.find_finished_runs, self.clock, self.emit)
        self.committer.on_finished.append(self._results.finished)

    async def close(self) -> None:
        """Finish what is on its way and let the store go; idempotent."""
        while self.before_close:
            await self.before_close.pop()()
        await self.remote_workers.close()
        if self._results is not None:
            self.committer.on_finished.remove(self._results.finished)
            await self._results.close()
            await self._run_results.close()
            self._results = None
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self.committer.drain()
                if self._run_kernel is not None:
                    await self._run_kernel.lines.flush()
        except TimeoutError:
            pass  # the store does not answer; senders are told by `close`
        try:
            await self.committer.close()
        finally:
            await self.store.close()
            await self._send_spans()

    # handlers and workers

    def handler(
        self,
        name: str,
        *,
        retry: RetryPolicy | int | None = None,
        timeout: Duration | None = None,
        progress_every: Duration | None = None,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
    ) -> Callable[[H], H]:
        """Register the decorated function for tasks of that name; it takes (payload), (payload, ctx) or nothing.

        It returns a dict (None means `{}`) or an outcome; what it raises is retried by `retry` (default: not at all).
        `timeout` bounds one attempt, `progress_every` the time between two calls of `ctx.progress()`, `concurrency` how many
        run at once in a process. Sync functions run in threads, and with `isolation="process"` where they can be killed.
        """

        def register(call: H) -> H:
            self.registry.add(
                make_handler(
                    name,
                    call,
                    retry=retry,
                    timeout=timeout,
                    progress_every=progress_every,
                    concurrency=concurrency,
                    isolation=isolation,
                )
            )
            return call

        return register

    def add_handler(self, handler: Handler) -> None:
        """Register a handler made with `make_handler`, e.g. one that several engines share."""
        self.registry.add(handler)

    @asynccontextmanager
    async def worker(
        self,
        *,
        concurrency: int = 100,
        threads: int = 16,
        processes: int = 4,
        task_lists: Iterable[str] = (DEFAULT_LIST,),
        lease: Duration | None = None,
        grace: Duration = 30,
        name: str | None = None,
    ) -> AsyncIterator[WorkerHost]:
        """Run this engine's handlers in this process for as long as the context lasts.

        Leaving it stops gracefully: no new claims, running work gets `grace`, then is released for others.
        """
        from treadle.wiring.host import WorkerHost

        host = WorkerHost(
            self,
            concurrency=concurrency,
            threads=threads,
            processes=processes,
            task_lists=tuple(
                check_name(each, "task list") for each in ((task_lists,) if isinstance(task_lists, str) else task_lists)
            ),
            lease_for=self._lease_for(lease),
            grace=milliseconds(grace, "grace") / 1000,
            name=name,
        )
        await host.start()
        try:
            yield host
        finally:
            await host.stop()

    def _lease_for(self, lease: Duration | None) -> int:
        if lease is None and self.topology is not None and (wanted := self.topology.lease_for()) is not None:
            return wanted
        return milliseconds(lease if lease is not None else self.settings.lease, "lease", positive=True)

    # tasks

    async def enqueue(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        idempotency_for: Duration = 7 * 86_400,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued:
        """Store a task; when this returns, it is durable. Smaller priorities run first.

        While a task with the same `unique_key` is live, that one is returned instead (`created` is False). For `idempotency_for`
        (seven days), an `idempotency_key` stands for the task it was first given with, also when that has ended or was pruned.
        Of the tasks with the same `limit_key` at most `limit` run at once, unless an operator said otherwise (`engine.lists`).
        `retry`, `timeout` and `progress_every` win over the handler's own. After `deadline` it fails instead of running. `scope`
        chooses among specialists of one name.
        """
        spec = TaskSpec(name=name, payload=_payload(payload), idempotency_for=idempotency_for, **options)
        return (await self.queue.enqueue([spec]))[0]

    async def enqueue_many(self, specs: Iterable[TaskSpec]) -> list[Enqueued]:
        """Store many tasks in few commits; all are checked before the first is stored."""
        return await self.queue.enqueue(specs)

    async def result(self, task: Enqueued | str, *, timeout: Duration | None = None) -> dict[str, Json]:
        """Wait for the task and return its result.

        Raises `TaskFailed`, `TaskCanceled` or `TaskIgnored` for those ends, `TaskNotFound` for no such task, and
        `TimeoutError` when `timeout` passes first (the task goes on).
        """
        task_id = task.id if isinstance(task, Enqueued) else parse_id(task, "task id")
        if self._results is None:
            raise NotOpen("Open the engine first: `async with engine: ...`.")
        found = await self.reads.get_task(task_id)
        if not found.finished:
            seconds = None if timeout is None else milliseconds(timeout, "timeout") / 1000
            try:
                async with asyncio.timeout(seconds):
                    found = await self._results.wait(task_id)
            except TimeoutError:
                raise TimeoutError(f"Task {task_id} has not ended after {seconds:g} s; it goes on. `why` says more.") from None
        if found.state == TaskState.COMPLETED:
            return await self.value_store.unpack(found.result)
        raise error_of(found)

    async def cancel(self, task: Enqueued | str, *, actor: str = "python", reason: str | None = None) -> None:
        """End the task now; a handler that runs it is stopped (here at once, elsewhere within about a second)."""
        await self.queue.cancel(_id(task), actor=actor, reason=reason)

    async def retry(self, task: Enqueued | str, *, actor: str = "python", payload: Mapping[str, Json] | None = None) -> None:
        """Make a failed, canceled or ignored task live again, with an edited payload if given."""
        await self.queue.retry(_id(task), actor=actor, payload=_payload(payload))

    async def pause(self, task: Enqueued | str, *, actor: str = "python") -> None:
        """Hold a task that is not running."""
        await self.queue.pause(_id(task), actor=actor)

    async def resume(self, task: Enqueued | str, *, actor: str = "python") -> None:
        """Let a paused task go on."""
        await self.queue.resume(_id(task), actor=actor)

    async def get_task(self, task: Enqueued | str) -> Task:
        """The task as it is now."""
        return await self.reads.get_task(_id(task))

    async def open_values(self, task: Task) -> Task:
        """The task with its payload and result as plain JSON, big values among them; in place of what cannot be read, an error."""
        for name in ("payload", "result"):
            stored = getattr(task, name)
            if stored is not None and stored.startswith("@"):
                try:
                    opened = await self.value_store.open_text(stored)
                except (UnreadableValue, ValueLost) as error:
                    opened = encode({"@unreadable": error.code, "message": str(error)})
                setattr(task, name, opened)
        return task

    async def list_tasks(
        self,
        *,
        states: tuple[str, ...] = (),
        name: str | None = None,
        task_list: str | None = None,
        kind: str | None = HANDLER,
        before_id: str | None = None,
        limit: int = 50,
    ) -> list[Task]:
        """A page of handlers' tasks, newest first (`kind=None`: the engine's own as well).

        Pass the last one's id as `before_id` for the next page.
        """
        return await self.reads.list_tasks(
            states=states, name=name, task_list=task_list, kind=kind, before_id=before_id, limit=limit
        )

    async def why(self, work: Enqueued | StartedRun | str) -> Reason:
        """Why a task or a run is where it is."""
        work_id = parse_id(work if isinstance(work, str) else work.id, "task or run id")
        if await self.store.find_task(work_id) is None and await self.store.find_run(work_id) is not None:
            return await self.run_reads.why(work_id)
        return await self.reads.why(work_id)

    async def desired_workers(self, task_list: str = DEFAULT_LIST, **options: Any) -> Scaling:
        """How many workers the list could use now, and why; options as for `Reads.desired_workers`."""
        return await self.reads.desired_workers(task_list, **options)

    # runs

    async def start_run(
        self,
        flow: str | Sequence[Source],
        workflow: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        *,
        budget: float | None = None,
        **options: Any,
    ) -> StartedRun:
        """Start a workflow of a published flow (name or digest) or of AFL sources [(name, text), ...]; see `Runs.start`.

        `budget` is what the run may spend on models, in dollars; it holds before anything of the run can be taken.
        """
        if budget is None:
            return await self.runs.start(flow, workflow, inputs, **options)
        run_id = self.ids.new_id()
        await self.store.set_budget(run_id, micros(budget))
        started = None
        try:
            started = await self.runs.start(flow, workflow, inputs, run_id=run_id, **options)
        finally:
            if started is None or not started.created:
                await self.store.forget_budget(run_id)
        return started

    async def run_result(self, run: StartedRun | str, *, timeout: Duration | None = None) -> Json:
        """Wait for the run and return its outputs; of a durable function, what it (or the run that goes on for it) returned.

        Raises `RunFailed` or `RunCanceled` for those ends, and `TimeoutError` when `timeout` passes first (the run goes on).
        """
        run_id = parse_id(run if isinstance(run, str) else run.id, "run id")
        if self._results is None:
            raise NotOpen("Open the engine first: `async with engine: ...`.")
        found = await self.runs.get_run(run_id)
        if not found.finished:
            seconds = None if timeout is None else milliseconds(timeout, "timeout") / 1000
            try:
                async with asyncio.timeout(seconds):
                    found = await self._run_results.wait(run_id)
            except TimeoutError:
                raise TimeoutError(f"Run {run_id} has not ended after {seconds:g} s; it goes on. `why` says more.") from None
        if found.state == RunState.COMPLETED:
            outputs = await self.runs.outputs(found)
            if not is_function(found.flow_id):
                return outputs
            if (successor := outputs.get("continued_as")) is not None:
                return await self.run_result(str(successor), timeout=timeout)
            return outputs.get("result")
        message = (decode(found.error) or {}).get("message", "")
        if found.state == RunState.CANCELED:
            raise RunCanceled(f"Run {found.id} was canceled: {message}")
        raise RunFailed(found.id, found.failed_step_id, message)

    def _run_finished(self, run_id: str) -> None:
        self._run_results.finished([run_id])

    def events(
        self,
        after: int | None = None,
        *,
        entity: str | None = None,
        entity_id: str | None = None,
        run_id: str | None = None,
        root_id: str | None = None,
    ) -> Events:
        """All moves of the namespace after the seq `after` (by default from now on), as they happen: `async for move in ...`.

        Each is delivered once and at once; `last_gap_free` of what is returned is where to resume (`kernel.reads.events`).
        """
        return Events(
            self.store,
            self.committer,
            self.clock,
            namespace=self.settings.namespace,
            after=after,
            entity=entity,
            entity_id=None if entity_id is None else parse_id(entity_id),
            run_id=None if run_id is None else parse_id(run_id, "run id"),
            root_id=None if root_id is None else parse_id(root_id, "root id"),
        )

    async def verify(self) -> VerifyReport:
        """Check every entity's history against the state tables, and outside jobs' records against their events."""
        report = await verify(self.store)
        return VerifyReport(report.checked, (*report.problems, *await self.external_upkeep.check()))

    def blocking(self) -> BlockingEngine:
        """The same engine for code without an event loop: `with Engine(url).blocking() as e: e.enqueue(...)`."""
        return BlockingEngine(self)


def error_of(task: Task) -> TreadleError:
    """The error that says how a task ended that did not complete."""
    said = decode(task.error) or {}
    message = said.get("message", "")
    match task.state:
        case TaskState.FAILED:
            return TaskFailed(task.id, task.error_code or "failed", message)
        case TaskState.CANCELED:
            return TaskCanceled(f"Task {task.id} was canceled: {message}")
        case _:
            return TaskIgnored(f"Task {task.id} ended as {task.state}.")


def _id(task: Enqueued | str) -> str:
    return task.id if isinstance(task, Enqueued) else task


def _payload(payload: Mapping[str, Json] | None) -> Json:
    """Any mapping as a dict; what is none is refused by the queue, which says why."""
    return dict(payload) if isinstance(payload, Mapping) else payload
