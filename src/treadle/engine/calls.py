"""Calls of registered code through an engine: enqueue, start, and wait for typed results."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from treadle.engine.mapped import Mapped, Progress
from treadle.engine.results import run_result, task_result
from treadle.kernel.queue.service import PYTHON, Enqueued, TaskSpec
from treadle.kernel.store.short_ids import find_id
from treadle.model.clock import Duration
from treadle.model.conversion import Converter, is_raw
from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.ids import Ref
from treadle.model.usage import micros
from treadle.model.values import Json, shown
from treadle.workers.references import ENQUEUE_OPTIONS, START_OPTIONS, Function, Handler, Reference

if TYPE_CHECKING:
    from treadle.api.options import EnqueueOptions, FunctionOptions
    from treadle.api.streams import StreamEntry
    from treadle.engine.kernel import Kernel
    from treadle.kernel.runs.records import StartedRun

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Handle(Generic[R_co]):
    """A task or a run that was started through a reference or a name, and its typed result."""

    __slots__ = ("_calls", "_is_run", "_reference", "created", "id")

    def __init__(self, calls: Calls, reference: Reference[..., R_co] | None, work_id: str, created: bool, is_run: bool) -> None:
        self._calls, self._reference, self._is_run = calls, reference, is_run
        self.id = work_id
        self.created = created
        """False if an earlier call with the same key had started it."""

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the end, at most `timeout`, and return the result as its annotated type.

        Raises as `Engine.result` and `Engine.run_result` do.
        """
        waits = self._calls.run_result if self._is_run else self._calls.result
        result: Any = await waits(self.id, timeout=timeout)
        if self._reference is not None:
            result = self._reference.signature.load_result(result)
        return result  # type: ignore[no-any-return]

    def stream(self, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Follow the stream `name` of the task or run from `offset` on; see `Engine.stream`."""
        return self._calls.kernel.streams.follow(self.id, name, offset=offset)

    @overload
    async def query(self, name: str) -> Json: ...
    @overload
    async def query(self, name: str, *, type: type[R]) -> R: ...
    async def query(self, name: str, *, type: Any = Any) -> Any:  # noqa: A002
        """Return the value that the function last published under the name, as the `type` if one is given."""
        value = await self._calls.kernel.run_services.runs.query(self.id, name)
        return value if is_raw(type) else Converter(type).load(value)

    async def signal(
        self, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> bool:
        """Send the signal `name` with that `payload` to the function; `idempotency_key` and `actor` as in `Engine.signal`."""
        functions = self._calls.kernel.functions
        return await functions.signal(self.id, name, payload, idempotency_key=idempotency_key, actor=actor)

    @overload
    async def update(
        self, name: str, payload: Any = None, *, timeout: Duration | None = None, idempotency_key: str | None = None
    ) -> Json: ...
    @overload
    async def update(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        type: type[R],
    ) -> R: ...
    async def update(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        type: Any = Any,  # noqa: A002
    ) -> Any:
        """Send the update `name` with that `payload` and return the function's answer, as the `type` if one is given.

        A call with the same `idempotency_key` waits for the same answer. Raises `TimeoutError` after `timeout`, and otherwise as
        `engine.runs.update` does.
        """
        runs = self._calls.kernel.run_services.runs
        value = await runs.update(self.id, name, payload, timeout=timeout, idempotency_key=idempotency_key)
        return value if is_raw(type) else Converter(type).load(value)


class Calls:
    """The methods of an engine that start code and wait for it."""

    kernel: Kernel

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
        from treadle.kernel.runs.records import StartedRun

        async def start(run_id: str | None) -> StartedRun:
            return StartedRun(*await self.kernel.functions.start(name, payload, actor=actor, run_id=run_id, **options))

        return await start_with_budget(self.kernel, budget, start)

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
        return await task_result(
            self.kernel, await find_id(self.kernel.store, self.kernel.settings.namespace, "task", task), timeout
        )

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
        return await run_result(self.kernel, await find_id(self.kernel.store, self.kernel.settings.namespace, "run", run), timeout)

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


async def start_with_budget(
    kernel: Kernel, budget: float | None, start: Callable[[str | None], Awaitable[StartedRun]]
) -> StartedRun:
    """Start a run whose budget, if it has one, applies before any task of the run can be claimed."""
    if budget is None:
        return await start(None)
    run_id, started = kernel.ids.new_id(), None
    await kernel.store.usage.set_budget(run_id, micros(budget))
    try:
        started = await start(run_id)
    finally:
        if started is None or not started.created:
            await kernel.store.usage.forget_budget(run_id)
    return started
