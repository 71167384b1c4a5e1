"""`Engine`: the Python interface to one store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from treadle.api.options import PYTHON
from treadle.api.tasks import TaskSpec
from treadle.engine.handles import Handle, Mapped, Progress
from treadle.engine.kernel import Kernel, StoreFactory, make_extensions
from treadle.engine.registration import Declare, Registration
from treadle.kernel.queue.service import Enqueued
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.events import Events
from treadle.kernel.store.lookups import find_id, find_short, is_short
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.telemetry.events import Emit, log_event
from treadle.kernel.telemetry.observer import telemetry_of
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.conversion import plain_object
from treadle.model.errors import AmbiguousId, InvalidInput, TreadleError
from treadle.model.ids import Ids, Ref, parse_id
from treadle.model.names import DEFAULT_LIST, HANDLER, PLAN, check_name
from treadle.model.tasks import Task
from treadle.model.values import Json, shown
from treadle.settings import Settings, load_settings
from treadle.workers.baggage import Baggage
from treadle.workers.context import Registry
from treadle.workers.functions.registry import FunctionRegistry
from treadle.workers.references import ENQUEUE_OPTIONS, START_OPTIONS, Function, Handler

if TYPE_CHECKING:
    from treadle.api.options import EnqueueOptions, FunctionOptions
    from treadle.api.streams import StreamEntry
    from treadle.engine.metrics import Metrics
    from treadle.engine.sync import BlockingEngine
    from treadle.engine.within import Transaction, Within
    from treadle.engine.worker_host import WorkerHost
    from treadle.goals.extension import Goals
    from treadle.kernel.alerts.service import Alerts
    from treadle.kernel.approvals.service import Approvals
    from treadle.kernel.runs.flows import Source
    from treadle.kernel.runs.records import StartedRun
    from treadle.kernel.runs.service import Runs
    from treadle.kernel.schedules.service import Schedules
    from treadle.kernel.search.service import Search
    from treadle.kernel.store.value_store import Codec
    from treadle.kernel.watchers.service import Watchers
    from treadle.workers.functions.registry import RegisteredFunction

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


def _plan_function() -> RegisteredFunction:
    from treadle.workers.functions.runner import plan_function

    return plan_function()


class Engine(Registration):
    """A store and the operations on it: enqueue tasks, start runs, wait, operate, read, and run handlers.

        engine = Engine("sqlite:///treadle.db")

        @engine.handler("greet", retry=3)
        async def greet(payload, ctx):
            return {"hello": payload["name"]}

        async with engine, engine.worker():
            task = await engine.enqueue("greet", {"name": "Ada"})
            print(await engine.result(task))

    Without a URL the store is the one in `TREADLE_STORE`, by default `sqlite:///treadle.db`, or that of the namespace in the
    directory (`TREADLE_DIRECTORY`). An engine belongs to one event loop.
    """

    goals: Goals
    """The goal pipeline, an extension: objectives, gates and the topology."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        emit: Emit = log_event,
        codec: Codec | None = None,
        store_of: StoreFactory | None = None,
        program: str | None = None,
        release: int | str = 0,
        propagate: Iterable[ContextVar[Any]] = (),
    ) -> None:
        """Make a closed engine on the store at `url`; nothing is connected yet.

        `settings` replace those of the environment. `codec` transforms stored values, for instance to encrypt them. `program` and
        `release` identify the owner of the code's declarations (`declare`). `propagate` lists context variables whose values (JSON)
        are stored with the work that this process enqueues or starts, and are set in its handlers and functions. `clock`, `ids`,
        `emit` (receives events) and `store_of` (opens the store) are for tests and embedding.
        """
        settings = settings or load_settings()
        functions = FunctionRegistry()
        functions.add_own(PLAN, 1, _plan_function)
        extensions = make_extensions()
        vars(self).update(extensions)
        self.declare = Declare(program, release)
        """Limits and schedules in code, which are synchronised when a worker starts."""
        self._metrics: Metrics | None = None
        self._url = url or settings.store
        self._make_kernel = partial(
            Kernel,
            clock=clock or SystemClock(),
            ids=ids or SystemIds(),
            telemetry=telemetry_of(emit),
            registry=Registry(Baggage(propagate)),
            function_registry=functions,
            codec=codec,
            store_of=store_of,
            extensions=tuple(extensions.values()),
            declared=self.declare,
        )
        self.kernel = self._make_kernel(self._url, settings)
        """All services of this engine: task lists, dead letters, flows, external jobs, tokens, recovery, telemetry and more."""

    # life cycle

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, *, migrate: bool = True) -> None:
        """Connect to the store, and migrate its schema unless `migrate` is False."""
        await self.kernel.open(migrate=migrate)

    async def close(self) -> None:
        """Finish the commits in flight and close the store; idempotent."""
        await self.kernel.close()

    def blocking(self) -> BlockingEngine:
        """Return the same engine for code without an event loop: `with Engine(url).blocking() as e: e.enqueue(...)`."""
        from treadle.engine.sync import BlockingEngine

        return BlockingEngine(self)

    def within(self, connection: Any, *, notify: bool = False) -> Within:
        """Start work in the transaction of your own connection to the store's PostgreSQL: it exists when you commit.

            async with session.begin():
                session.add(order)
                await engine.within(session).enqueue("charge", {"order": 17})

        `connection` is one of asyncpg, psycopg, SQLAlchemy (also a session) or Django. With `notify`, your commit wakes waiting
        workers, and PostgreSQL serialises it with other such commits; without, they find the work at their next poll. The engine
        need not be open.
        """
        from treadle.engine.within import Within, postgres_transaction_store

        return Within(self, lambda url, clock: postgres_transaction_store(url, connection, clock, notify=notify))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Write your own tables and start work in one transaction of the open store's SQLite file.

            async with engine.transaction() as tx:
                await tx.execute("insert into orders (id) values (?)", (17,))
                await tx.enqueue("charge", {"order": 17})

        The block commits when it ends, and rolls back if it raises. Nothing else is written meanwhile, by any process: after four
        seconds it is rolled back.
        """
        from treadle.engine.within import Transaction, sqlite_transaction_store

        async with sqlite_transaction_store(self.kernel._plain_store, self.kernel.clock) as transaction:
            yield Transaction(self, transaction)
        self.kernel.committer.notify(tuple(transaction.ready))

    @asynccontextmanager
    async def worker(
        self,
        *,
        concurrency: int | None = None,
        threads: int = 16,
        processes: int = 4,
        task_lists: Iterable[str] = (DEFAULT_LIST,),
        lease: Duration | None = None,
        grace: Duration = 30,
        poll_interval: Duration | None = None,
        name: str | None = None,
    ) -> AsyncIterator[WorkerHost]:
        """Run this engine's handlers in this process until the context ends.

        It executes up to `concurrency` tasks at a time, sync handlers in up to `threads` threads and isolated ones in up to
        `processes` processes, and claims only from `task_lists`. Without `concurrency`, the number depends on the time that async
        handlers take: 100 if it is 20 ms or longer, up to `TREADLE_MAX_CONCURRENCY` (2,000) if they return immediately. `name` is
        shown in lists of servers. `lease` and `poll_interval` default to the settings `TREADLE_LEASE` and `TREADLE_POLL_INTERVAL`.

        The worker then stops gracefully: it claims nothing more, gives running work `grace`, and releases the rest.
        """
        from treadle.engine.worker_host import WorkerHost

        lists = (task_lists,) if isinstance(task_lists, str) else task_lists
        host = WorkerHost(
            self.kernel,
            concurrency=concurrency,
            threads=threads,
            processes=processes,
            task_lists=tuple(check_name(task_list, "task list") for task_list in lists),
            lease_for=None if lease is None else milliseconds(lease, "lease", positive=True),
            grace=milliseconds(grace, "grace") / 1000,
            poll_every=None if poll_interval is None else milliseconds(poll_interval, "poll_interval", positive=True) / 1000,
            name=name,
        )
        await host.start()
        try:
            yield host
        finally:
            await host.stop()

    # tasks

    @overload
    async def enqueue(self, handler: Handler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    async def enqueue(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        idempotency_for: Duration = ...,
        actor: str = ...,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...
    async def enqueue(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Store a task; it is durable when this returns. Smaller priorities run first.

        Pass a name, a payload and options: `enqueue("pack", {"sku": "x"}, delay=60)`; or a reference and its arguments, which are
        checked: `enqueue(pack, Order("x"))`, `enqueue(pack.with_options(delay=60), Order("x"))`.

        If a live task already has the same `unique_key`, return that one (`created` is False). For `idempotency_for` (seven days),
        an `idempotency_key` identifies the task it was first used for, even after that task has ended or was pruned. At most
        `limit` tasks with the same `limit_key` run concurrently, unless an operator set another limit (`kernel.lists`). `retry`,
        `timeout` and `progress_every` override those of the handler. After `deadline` the task fails instead of running. `scope`
        selects among specialists of the same name. The task shows the `actor` as its creator.
        """
        if args and isinstance(args[0], Handler):
            handler, *arguments = args
            options = handler.options_for("enqueue", ENQUEUE_OPTIONS)
            spec = TaskSpec(name=handler.name, payload=handler.payload(*arguments, **kwargs), **options)
            stored = (await self.kernel.queue.enqueue([spec]))[0]
            return Handle(self, handler, stored.id, stored.created, is_run=False)
        return (await self.kernel.queue.enqueue([_named(*args, **kwargs)]))[0]

    @overload
    async def start(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    async def start(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Handle[Any]: ...
    async def start(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Start a durable function, as `start_function` does, and return a handle: `await (await start(flow, order)).result()`.

        Pass a name, a payload and options, or a reference and its arguments, which are checked. A reference starts the newest
        version known here, unless `flow.with_options(version=...)` states another. `actor` is the name shown in the run's log.
        """
        if args and isinstance(args[0], Function):
            function, *arguments = args
            options = function.options_for("start", START_OPTIONS)
            started = await self.start_function(function.name, function.payload(*arguments, **kwargs), **options)
            return Handle(self, function, started.id, started.created, is_run=True)
        started = await self.start_function(*args, **kwargs)
        return Handle(self, None, started.id, started.created, is_run=True)

    async def start_function(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        actor: str | None = None,
        budget: float | None = None,
        **options: Unpack[FunctionOptions],
    ) -> StartedRun:
        """Start the durable function `name` with that `payload`; the run is durable when this returns.

        The default version is the newest one registered in this process, else the newest one in the store. A second start with the
        same idempotency key returns the first run and changes nothing. `budget` limits the dollars that agents in the run may spend
        on models. `actor` is the name shown in the run's log.
        """
        services = self.kernel.run_services
        return await services.start_function(name, payload, actor=actor, budget=budget, **options)

    @overload
    async def result(self, task: Handle[R], *, timeout: Duration | None = None) -> R: ...  # type: ignore[overload-overlap]
    @overload
    async def result(self, task: Ref, *, timeout: Duration | None = None) -> dict[str, Json]: ...
    async def result(self, task: Any, *, timeout: Duration | None = None) -> Any:
        """Wait for the task and return its result.

        Raises `TaskFailed`, `TaskCanceled` or `TaskIgnored` if it ended that way, `TaskNotFound` if there is no such task, and
        `TimeoutError` after `timeout` (the task continues).
        """
        if isinstance(task, Handle):
            return await task.result(timeout=timeout)
        return await self.kernel.results.of_task(await self._id_of("task", task), timeout)

    @overload
    async def run_result(self, run: Handle[R], *, timeout: Duration | None = None) -> R: ...
    @overload
    async def run_result(self, run: Ref, *, timeout: Duration | None = None) -> Json: ...
    async def run_result(self, run: Any, *, timeout: Duration | None = None) -> Any:
        """Wait for the run and return its outputs; for a durable function, its return value or that of the run it continued as.

        Raises `RunFailed` or `RunCanceled` if it ended that way, and `TimeoutError` after `timeout` (the run continues).
        """
        if isinstance(run, Handle):
            return await run.result(timeout=timeout)
        return await self.kernel.results.of_run(await self._id_of("run", run), timeout)

    @overload
    def map(
        self,
        fn: Handler[[A], R] | Function[[A], R],
        items: Iterable[A],
        *,
        key: str | None = None,
        in_flight: int = 100,
        ordered: bool = True,
        errors: Literal["raise"] = "raise",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Mapped[R]: ...
    @overload
    def map(
        self,
        fn: Handler[[A], R] | Function[[A], R],
        items: Iterable[A],
        *,
        key: str | None = None,
        in_flight: int = 100,
        ordered: bool = True,
        errors: Literal["collect"],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Mapped[R | TreadleError]: ...
    def map(
        self,
        fn: Any,
        items: Iterable[Any],
        *,
        key: str | None = None,
        in_flight: int = 100,
        ordered: bool = True,
        errors: Literal["raise", "collect"] = "raise",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Mapped[Any]:
        """Call `fn`, registered code, once for each item: `async for result in engine.map(resize, photos)`.

        Each item is a task (or a run of a function), up to `in_flight` of them at a time. Results come in the order of the items,
        or with `ordered=False` as they are completed. The first failure is raised, or with `errors="collect"` is a result itself.
        `on_progress` is called with the `progress` after each item.

        With a `key`, a caller that is restarted with the same items continues: the task of the item at each position is the same
        one for seven days, so finished items are not repeated. Leaving the loop does not cancel tasks that were enqueued.
        """
        if errors not in ("raise", "collect"):
            raise InvalidInput(f"errors is 'raise' or 'collect', not {shown(errors)}.")
        return Mapped(
            self, fn, items, key=key, in_flight=in_flight, ordered=ordered, collect=errors == "collect", on_progress=on_progress
        )

    async def enqueue_many(self, specs: Iterable[TaskSpec]) -> list[Enqueued]:
        """Store many tasks in few commits; all `specs` are checked before the first is stored.

        Up to 1000 are stored together or, for instance if an idempotency key is reused, not at all; more are stored in several
        commits, in order.
        """
        return await self.kernel.queue.enqueue(list(specs))

    async def cancel(self, task: Ref, *, actor: str = "python", reason: str | None = None) -> None:
        """End the task now; `actor` and `reason` are shown in its log.

        Its handler is stopped: immediately in this process, elsewhere within about a second.
        """
        await self.kernel.queue.cancel(task, actor=actor, reason=reason)

    async def retry(self, task: Ref, *, actor: str = "python", payload: Mapping[str, Json] | None = None) -> None:
        """Make a failed, canceled or ignored task live again, with an edited `payload` if given; the log shows the `actor`.

        For the task of a run, its step is repeated in the run, with everything after it: see `engine.runs.retry`.
        """
        await self.kernel.queue.retry(task, actor=actor, payload=plain_payload(payload))

    async def pause(self, task: Ref, *, actor: str = "python", reason: str | None = None, interrupt: bool = False) -> None:
        """Hold a task; an attempt in progress ends normally, or with `interrupt` stops and is repeated after the resume.

        `actor` and `reason` are shown in the log, and by `why`.
        """
        await self.kernel.queue.pause(task, actor=actor, reason=reason, interrupt=interrupt)

    async def resume(self, task: Ref, *, actor: str = "python") -> None:
        """Release a paused task; the log shows the `actor`."""
        await self.kernel.queue.resume(task, actor=actor)

    async def get_task(self, task: Ref) -> Task:
        """Return the task in its current state."""
        return await self.kernel.reads.get_task(task)

    async def list_tasks(
        self,
        *,
        states: tuple[str, ...] = (),
        name: str | None = None,
        task_list: str | None = None,
        kind: str | None = HANDLER,
        before_id: Ref | None = None,
        limit: int = 50,
    ) -> list[Task]:
        """Return a page of up to `limit` handler tasks, newest first (`kind=None`: also the engine's own tasks).

        `states`, `name` and `task_list` select tasks. Pass the id of the last one as `before_id` for the next page.
        """
        return await self.kernel.reads.list_tasks(
            states=states, name=name, task_list=task_list, kind=kind, before_id=before_id, limit=limit
        )

    async def why(self, work: Ref) -> Reason:
        """Explain the current state of `work`, a task or a run: a code and a line of text."""
        store = self.kernel.store
        if isinstance(work, str) and is_short(work):
            matches = await find_short(store, self.kernel.settings.namespace, ("task", "run"), work)
            if len(matches) > 1:
                raise AmbiguousId("task or run", work, matches)
            work = matches[0] if matches else work
        work_id = parse_id(work, "task or run id")
        if await store.tasks.find(work_id) is None and await store.runs.find(work_id) is not None:
            return await self.kernel.run_reads.why(work_id)
        return await self.kernel.reads.why(work_id)

    async def _id_of(self, kind: str, ref: Ref) -> str:
        if not isinstance(ref, str):
            return ref.id
        return await find_id(self.kernel.store, self.kernel.settings.namespace, kind, ref)

    def events(
        self,
        after: int | None = None,
        *,
        entity: str | None = None,
        entity_id: Ref | None = None,
        run_id: Ref | None = None,
        root_id: Ref | None = None,
    ) -> Events:
        """Stream the log of the namespace after the entry number `after` (default: from now on): `async for transition in ...`.

        Only entries of an `entity` ("task", "run", ...), of the one with `entity_id`, of the run `run_id`, or of all work that
        follows from `root_id`. Each is delivered once, as soon as it is stored; resume at `last_gap_free` of the stream
        (`kernel.reads.events`).
        """
        which = {"entity": entity, "entity_id": entity_id, "run_id": run_id, "root_id": root_id}
        return Events(self.kernel.core, after=after, **which)

    def stream(self, work: Ref, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Follow the stream `name` of a run or a task: `async for entry in engine.stream(run, "tokens"): print(entry.value)`.

        Yields the stored entries from `offset` on, then new ones as they are written, and ends with the work. An entry has an
        `offset`, so that a reader can resume after it, a `kind` and a `value`; of another kind than `entry`, it is a notice.
        """
        return self.kernel.streams.follow(work, name, offset=offset)

    # runs

    async def start_run(
        self,
        /,
        flow: str | Sequence[Source],
        workflow: str | None = None,
        inputs: Mapping[str, Json] | None = None,
        *,
        budget: float | None = None,
        **options: Any,
    ) -> StartedRun:
        """Start a workflow of a published flow (name or digest) or of AFL sources [(name, text), ...]; see `Runs.start`.

        `inputs` are checked against the workflow's parameters. `budget` limits the dollars that the run may spend on models; it
        applies before any task of the run can be claimed.
        """
        return await self.kernel.run_services.start_run(flow, workflow, inputs, budget=budget, **options)

    async def start_plan(
        self,
        steps: Sequence[Mapping[str, Json]],
        inputs: Mapping[str, Json] | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[FunctionOptions],
    ) -> StartedRun:
        """Check and start a plan: `steps`, an ordered list of {name, handler, arguments, retry, approval, task_list}.

        Arguments may refer to earlier results and to the inputs: `{"$from": "charge.receipt"}`. `approval` asks a person before the
        step: true, or options as for `ctx.approval`. The run returns the results by name. Options and `actor` as for
        `start_function`.
        """
        from treadle.model.plans import read_plan

        read_plan(steps)
        return await self.start_function(PLAN, {"steps": list(steps), "inputs": dict(inputs or {})}, actor=actor, **options)

    async def signal(
        self,
        run: Ref,
        name: str,
        payload: Json = None,
        *,
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Send a message that the run's function receives with `await ctx.wait_for(name)`, now or later.

        `payload` is any JSON. Returns False if a message with the same `idempotency_key` was already received; raises
        `IllegalTransition` if the run is finished. `actor` is the sender shown in the run's log.
        """
        payload = plain_object(payload)
        return await self.kernel.functions.signal(run, name, payload, idempotency_key=idempotency_key, actor=actor)

    # services

    @property
    def runs(self) -> Runs:
        """Runs: start, pause, resume, cancel, retry, fork."""
        return self.kernel.run_services.runs

    @property
    def search(self) -> Search:
        """Runs and tasks that match a query: `await engine.search.list_runs("state = failed and tag.customer = acme")`."""
        return self.kernel.search

    @property
    def schedules(self) -> Schedules:
        """Work triggered by time: create, edit, pause, run now, backfill, preview."""
        return self.kernel.trigger_services.schedules

    @property
    def watchers(self) -> Watchers:
        """Work triggered by changed files or URLs: create, edit, pause, scan now."""
        return self.kernel.trigger_services.watchers

    @property
    def alerts(self) -> Alerts:
        """Rules that report problems by webhook, mail or chat: create, silence, test, remove; and the alerts they fired."""
        return self.kernel.trigger_services.alerts

    @property
    def approvals(self) -> Approvals:
        """Questions to people: list, show, decide."""
        return self.kernel.approvals

    @property
    def metrics(self) -> Metrics:
        """Prometheus metrics of this engine, counted from the first use on."""
        if self._metrics is None:
            from treadle.engine.metrics import Metrics

            self._metrics = Metrics(self.kernel.telemetry, self.kernel.clock, lambda: self.kernel)
        return self._metrics


def use_store(engine: Engine, url: str | None, settings: Settings, **parts: Any) -> tuple[str, Settings]:
    """Switch to another store (None: the same URL) and other settings; handlers stay registered. Only while closed.

    `parts` replace other arguments of `Kernel` until the next switch: `clock`, `ids`. Returns the former URL and settings.
    """
    if engine.kernel.is_open:
        raise TreadleError("Close the engine before you move it to another store.", code="already_open")
    former = (engine._url, engine.kernel.settings)
    engine._url = url or engine._url
    engine.kernel = engine._make_kernel(engine._url, settings, **parts)
    return former


def engine_beside(engine: Engine, url: str, settings: Settings) -> Engine:
    """Return a closed engine on another store, with other settings and the same codec, handlers and functions."""
    sibling = Engine(url, settings=settings, codec=engine._make_kernel.keywords["codec"])
    sibling._make_kernel = partial(
        sibling._make_kernel, registry=engine.kernel.registry, function_registry=engine.kernel.function_registry
    )
    sibling.kernel = sibling._make_kernel(url, settings)
    return sibling


def twin_of(engine: Engine) -> Engine:
    """Return a closed engine on the same store, with the same settings and codec but without handlers."""
    return Engine(engine._url, settings=engine.kernel.settings, codec=engine._make_kernel.keywords["codec"])


def _named(
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    idempotency_for: Duration = 7 * 86_400,
    actor: str = PYTHON,
    **options: Unpack[EnqueueOptions],
) -> TaskSpec:
    return TaskSpec(name=name, payload=plain_payload(payload), idempotency_for=idempotency_for, created_by=actor, **options)


def plain_payload(payload: Mapping[str, Json] | None) -> Json:
    """Convert any mapping to a dict; the queue rejects everything else."""
    return dict(payload) if isinstance(payload, Mapping) else payload
