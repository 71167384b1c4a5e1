"""`Engine`: the Python interface to one store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    get_overloads,
    get_type_hints,
    overload,
)

from treadle.api.contract import signature_of
from treadle.api.options import PYTHON, EnqueueOptions, FunctionOptions, WorkOptions, check_known
from treadle.api.tasks import TaskSpec
from treadle.engine.handles import Handle, Mapped, Progress, plain_payload
from treadle.engine.kernel import Kernel, StoreFactory, make_extensions
from treadle.engine.registration import Declare, Registration
from treadle.kernel.queue.service import Enqueued
from treadle.kernel.queue.why import Reason
from treadle.kernel.reads.events import Events
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.telemetry.events import Emit, log_event
from treadle.kernel.telemetry.observer import telemetry_of
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.conversion import plain_object
from treadle.model.errors import InvalidInput, NotFound, TreadleError
from treadle.model.ids import Ids, Ref, parse_id
from treadle.model.names import DEFAULT_LIST, PLAN, check_name
from treadle.model.states import RUN, TASK
from treadle.model.values import Json, shown
from treadle.settings import Settings, load_settings
from treadle.workers.baggage import Baggage
from treadle.workers.context import Registry
from treadle.workers.functions.registry import FunctionRegistry
from treadle.workers.references import ENQUEUE_OPTIONS, START_OPTIONS, CodeReference, Function, Handler

if TYPE_CHECKING:
    from treadle.api.streams import StreamEntry
    from treadle.engine.metrics import Metrics
    from treadle.engine.sync import BlockingEngine
    from treadle.engine.within import Transaction, Within
    from treadle.engine.worker_host import WorkerHost
    from treadle.goals.extension import Goals
    from treadle.kernel.alerts.service import Alerts
    from treadle.kernel.approvals.service import Approvals
    from treadle.kernel.runs.flows import Source
    from treadle.kernel.runs.operations import RunOperations
    from treadle.kernel.runs.records import StartedRun
    from treadle.kernel.schedules.service import Schedules
    from treadle.kernel.store.value_store import Codec
    from treadle.kernel.tasks.service import Tasks
    from treadle.kernel.watchers.service import Watchers
    from treadle.workers.functions.registry import RegisteredFunction

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


IDEMPOTENCY_FOR: Duration = 7 * 86_400
"""How long `enqueue` keeps an idempotency key, in seconds."""


def show_options(method: F) -> F:
    """Show the last overload, with each option, in help and completion in place of `*args, **kwargs`."""
    overload = get_overloads(method)[-1]
    hints = get_type_hints(overload)
    for options in [get_args(hint)[0] for hint in hints.values() if get_origin(hint) is Unpack]:
        hints |= get_type_hints(options)
    signature = signature_of(overload)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.empty)) for name, parameter in signature.parameters.items()
    ]
    setattr(method, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return method


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
        idempotency_for: Duration = IDEMPOTENCY_FOR,
        actor: str = PYTHON,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[dict[str, Json]]: ...
    @show_options  # type: ignore[misc]
    async def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Store a task; it is durable when this returns. Smaller priorities run first.

        Pass a name, a payload and options: `enqueue("pack", {"sku": "x"}, delay=60)`; or a reference and its arguments, which are
        checked: `enqueue(pack, Order("x"))`, `enqueue(pack.with_options(delay=60), Order("x"))`.

        If a live task already has the same `unique_key`, return that one (`created` is False). For `idempotency_for` (seven days),
        an `idempotency_key` identifies the task it was first used for, even after that task has ended or was pruned. At most
        `limit` tasks with the same `limit_key` run concurrently, unless an operator set another limit (`kernel.lists`). `retry`,
        `timeout` and `progress_every` override those of the handler. After `deadline` the task fails instead of running. `scope`
        selects among specialists of the same name. The task shows the `actor` as its creator.
        """
        handler: Handler[..., Any] | None = None
        if args and isinstance(args[0], Handler):
            handler, *arguments = args
            options = handler.options_for("enqueue", ENQUEUE_OPTIONS)
            spec = TaskSpec(name=handler.name, payload=handler.payload(*arguments, **kwargs), **options)
        else:
            spec = _spec(*args, **kwargs)
        (stored,) = await self.kernel.queue.enqueue([spec])
        return Handle(self, handler, stored.id, stored.created, TASK.entity)

    @overload
    async def start(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    async def start(
        self,
        name: str | Sequence[tuple[str, str]],
        payload: Mapping[str, Json] | None = None,
        *,
        workflow: str | None = None,
        actor: str | None = None,
        **options: Unpack[WorkOptions],
    ) -> Handle[Any]: ...
    @show_options  # type: ignore[misc]
    async def start(self, *args: Any, **kwargs: Any) -> Any:
        """Start a run of a durable function or a workflow, durable when this returns: `await (await start(ship, order)).result()`.

        Pass a reference to a function and its arguments, which are checked; or the `name` of a function or of a published flow,
        with a payload and options; or, in place of the name, AFL sources [(name, text), ...]. `workflow` selects one of a flow's
        workflows; the `payload` is checked against its parameters.

        The default version of a function is the newest one registered in this process, else the newest one in the store; that of a
        flow is its newest. A second start with the same idempotency key returns the first run. `budget` limits the dollars that the
        run may spend on models, before any task of the run can be claimed. `actor` is the name shown in the run's log.
        """
        function: Function[..., Any] | None = None
        if args and isinstance(args[0], Function):
            function, *arguments = args
            options = function.options_for("start", START_OPTIONS)
            started = await self.start_function(function.name, function.payload(*arguments, **kwargs), **options)
        else:
            started = await self._start(*args, **kwargs)
        return Handle(self, function, started.id, started.created, RUN.entity)

    async def _start(
        self, name: Any, payload: Any = None, *, workflow: str | None = None, actor: str | None = None, **options: Any
    ) -> StartedRun:
        _check_code(name, "start")
        check_known("start", options, WorkOptions.__annotations__)
        missing: NotFound | None = None
        if isinstance(name, str) and workflow is None and options.keys() <= FunctionOptions.__annotations__.keys() | {"budget"}:
            try:
                return await self.start_function(name, payload, actor=actor, **options)
            except NotFound as error:
                missing = error
        try:
            return await self.start_run(name, workflow, payload, actor=actor, **options)
        except NotFound as error:
            raise missing or error from None

    async def start_function(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        actor: str | None = None,
        budget: float | None = None,
        **options: Unpack[FunctionOptions],
    ) -> StartedRun:
        """Start the durable function of that `name` with the `payload`; `actor`, `budget` and options as for `start`."""
        services = self.kernel.run_services
        return await services.start_function(name, payload, actor=actor, budget=budget, **options)

    @overload
    def handle(self, work: Ref, code: CodeReference[..., R]) -> Handle[R]: ...
    @overload
    def handle(self, work: Handle[R]) -> Handle[R]: ...
    @overload
    def handle(self, work: Ref) -> Handle[Any]: ...
    def handle(self, work: Any, code: CodeReference[..., Any] | None = None) -> Handle[Any]:
        """Return a handle of any task or run, typed by the `code` that it runs: `engine.handle(id, ship)`.

        `work` is an id, the beginning of one, `last`, or a record with an `id`.
        """
        if isinstance(work, Handle) and code is None:
            return work.on(self)
        return Handle(self, code, work if isinstance(work, str) else parse_id(work, "task or run id"))

    @overload
    async def result(self, work: Handle[R], *, timeout: Duration | None = None) -> R: ...
    @overload
    async def result(self, work: Ref, *, timeout: Duration | None = None) -> Any: ...
    async def result(self, work: Ref, *, timeout: Duration | None = None) -> Any:
        """Wait for the end of the task or run `work` and return its result.

        That of a workflow is its outputs, that of a function its return value, or that of the run it continued as. Raises
        `TaskFailed`, `TaskCanceled`, `TaskIgnored`, `RunFailed` or `RunCanceled` if it ended that way, `TaskNotFound` if there is
        none, and `TimeoutError` after `timeout` (the work continues).
        """
        return await self.handle(work).result(timeout=timeout)

    async def run_result(self, run: Ref, *, timeout: Duration | None = None) -> Any:
        """Wait for the end of a `run`, up to `timeout`, and return its result, as `result` does."""
        if isinstance(run, Handle):
            return await run.on(self).result(timeout=timeout)
        return await self.kernel.results.of(run if isinstance(run, str) else parse_id(run, "run id"), timeout, RUN.entity)

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

    async def cancel(self, work: Ref, *, actor: str = PYTHON, reason: str | None = None) -> None:
        """End the `work`, a task or run, now; `actor` and `reason` are shown in its log. See `Handle.cancel`."""
        await self.handle(work).cancel(actor=actor, reason=reason)

    async def retry(self, work: Ref, *, actor: str = PYTHON, payload: Mapping[str, Json] | None = None) -> None:
        """Make the `work` live again: a failed, canceled or ignored task, with an edited `payload` if one is given; or repeat what
        failed in a run. The log shows the `actor`. See `Handle.retry`.
        """
        await self.handle(work).retry(actor=actor, payload=payload)

    async def pause(self, work: Ref, *, actor: str = PYTHON, reason: str | None = None, interrupt: bool = False) -> None:
        """Hold the `work`, a task or run; attempts in progress end normally, or with `interrupt` stop. The log and `why`
        show the `actor` and the `reason`. See `Handle.pause`.
        """
        await self.handle(work).pause(actor=actor, reason=reason, interrupt=interrupt)

    async def resume(self, work: Ref, *, actor: str = PYTHON) -> None:
        """Release the `work`, a paused task or run; the log shows the `actor`."""
        await self.handle(work).resume(actor=actor)

    async def why(self, work: Ref) -> Reason:
        """Explain the current state of `work`, a task or a run: a code and a line of text."""
        return await self.handle(work).why()

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
        """Start a `workflow` of a published `flow` or of AFL sources; `inputs`, `budget` and options as for `start`."""
        return await self.kernel.run_services.start_run(flow, workflow, inputs, budget=budget, **options)

    async def start_plan(
        self,
        steps: Sequence[Mapping[str, Json]],
        inputs: Mapping[str, Json] | None = None,
        *,
        actor: str | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Handle[dict[str, Json]]:
        """Check and start a plan: `steps`, an ordered list of {name, handler, arguments, retry, approval, task_list}.

        Arguments may refer to earlier results and to the inputs: `{"$from": "charge.receipt"}`. `approval` asks a person before the
        step: true, or options as for `ctx.approval`. The run returns the results by name. Options and `actor` as for
        `start`.
        """
        from treadle.model.plans import read_plan

        read_plan(steps)
        return await self.start(PLAN, {"steps": list(steps), "inputs": dict(inputs or {})}, actor=actor, **options)

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
    def tasks(self) -> Tasks:
        """Tasks: list, get and find them, also by a query: `await engine.tasks.list(where="tag.customer = acme")`."""
        return self.kernel.tasks

    @property
    def runs(self) -> RunOperations:
        """Runs: list, get and find them, also by a query (`where=`); cancel, retry, rerun, fork; one or many."""
        return self.kernel.run_services.run_operations

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


def engine_beside(engine: Engine, url: str | None = None, settings: Settings | None = None) -> Engine:
    """Return a closed engine on the same or another store, with the same codec, handlers and functions."""
    url, settings = url or engine._url, settings or engine.kernel.settings
    sibling = Engine(url, settings=settings, codec=engine._make_kernel.keywords["codec"])
    sibling._make_kernel = partial(
        sibling._make_kernel, registry=engine.kernel.registry, function_registry=engine.kernel.function_registry
    )
    sibling.kernel = sibling._make_kernel(url, settings)
    return sibling


def twin_of(engine: Engine) -> Engine:
    """Return a closed engine on the same store, with the same settings and codec but without handlers."""
    return Engine(engine._url, settings=engine.kernel.settings, codec=engine._make_kernel.keywords["codec"])


def _spec(
    name: str,
    payload: Mapping[str, Json] | None = None,
    *,
    idempotency_for: Duration = IDEMPOTENCY_FOR,
    actor: str = PYTHON,
    **options: Unpack[EnqueueOptions],
) -> TaskSpec:
    _check_code(name, "enqueue")
    if not options.keys() <= ENQUEUE_OPTIONS:
        check_known("enqueue", options, ENQUEUE_OPTIONS)
    return TaskSpec(name=name, payload=plain_payload(payload), idempotency_for=idempotency_for, created_by=actor, **options)


def _check_code(work: Any, call: str) -> None:
    """Refuse code that the call does not take, and name the call that does."""
    name = getattr(work, "name", None) or getattr(work, "__name__", shown(work))
    if isinstance(work, Function):
        raise InvalidInput(f"{name} is a durable function, which is started: use start instead of {call}.")
    if isinstance(work, Handler):
        raise InvalidInput(f"{name} is a handler, whose tasks are enqueued: use enqueue instead of {call}.")
    if callable(work):
        raise InvalidInput(
            f"{name} is not registered: decorate it with @engine.task to enqueue it, or @engine.function to start it."
        )
