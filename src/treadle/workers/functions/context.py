"""The context of a durable function: its operations, each of which is recorded and survives restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

from treadle.kernel.effects.decide import check_reaction
from treadle.kernel.functions.decide import check_policy
from treadle.kernel.functions.steps import ASK, SLEEP, WAIT, check_version
from treadle.kernel.queue.service import check_priority
from treadle.model.approvals import ApprovalRequest
from treadle.model.clock import Duration, instant, milliseconds
from treadle.model.conversion import is_raw, plain_object
from treadle.model.errors import InvalidApproval, InvalidInput, MisusedContext
from treadle.model.ids import Ref
from treadle.model.lists import check_count
from treadle.model.names import APPROVAL, HANDLER, QueueKey, check_key, check_name
from treadle.model.retry import RetryPolicy, as_policy
from treadle.model.tasks import Task
from treadle.model.values import CODE_LIMIT, Json, decode, encode, storable, type_name
from treadle.workers.functions.base_context import BaseFunctionContext
from treadle.workers.functions.execution import executing
from treadle.workers.functions.group_operations import Winner, first, gather
from treadle.workers.functions.step_operations import EffectOperation, StepOperation
from treadle.workers.functions.stream_operations import StreamReader
from treadle.workers.functions.wait_operations import (
    CallOperation,
    ChildRun,
    Operation,
    StartOperation,
    Update,
    WaitOperation,
    host_of,
    run_hosted,
    typed_loader,
    update_operation,
    valid_update,
)
from treadle.workers.references import CALL_OPTIONS, CHILD_OPTIONS, Function, Handler
from treadle.workers.signatures import unwrapped


class FunctionStepOptions(TypedDict, total=False):
    """Options of a step."""

    name: str | None
    key: str | None
    retry: RetryPolicy | int | None
    timeout: Duration | None
    limit_key: str | None


class EffectOptions(TypedDict, total=False):
    """Options of an effect."""

    key: str | None
    retry: RetryPolicy | int | None
    timeout: Duration | None
    unknown: tuple[type[BaseException], ...]
    on_unknown: Literal["ask", "fail", "repeat"]
    limit_key: str | None


class ChildOptions(TypedDict, total=False):
    """Options of a child run."""

    version: int | None
    key: str | None
    task_list: str | None
    priority: int | None
    on_parent_close: Literal["cancel", "terminate", "abandon"] | None


class CallOptions(TypedDict, total=False):
    """Options of a child task."""

    key: str | None
    task_list: str | None
    priority: int | None
    retry: RetryPolicy | int | None
    timeout: Duration | None
    deadline: Duration | None
    limit_key: str | None
    limit: int | None


def policy_of(retry: RetryPolicy | int | None, *, stored: bool = False) -> RetryPolicy | None:
    return None if retry is None else as_policy(retry, stored=stored)


def milliseconds_of(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else milliseconds(duration, name, positive=True)


def key_of(key: str | None, name: str = "step key") -> str | None:
    return None if key is None else check_key(key, name)


def name_of(name: str | None) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InvalidInput(f"The name of a step must be text, not a {type_name(name)}.")
    return None if name is None else storable(name)


def task_list_of(task: Task, chosen: str | None) -> str:
    return task.task_list if chosen is None else check_name(chosen, "task list")


def payload_of(payload: Mapping[str, Json] | None) -> dict[str, Json]:
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
    return dict(payload or {})


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_NO_KWARGS: dict[str, Any] = {}

current: ContextVar[FunctionContext | None] = ContextVar("function_context", default=None)
"""The run that this code belongs to; also inside steps, and in asyncio tasks that its code creates."""


def current_function() -> FunctionContext | None:
    """Return the durable function that calls this code; None outside functions, and inside a step."""
    ctx, place = current.get(), executing.get()
    return ctx if place is not None and place[2].busy is None else None


class FunctionContext(BaseFunctionContext):
    """One run of a durable function.

    The code between two operations must be deterministic, as a replay executes it again: use `now` and `random` of this class,
    and do everything else that may differ between executions in a `step`.
    """

    __slots__ = ()

    # work

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(
        self, fn: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]], /, *args: *Ts, **options: Unpack[FunctionStepOptions]
    ) -> Awaitable[R]: ...
    @overload
    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def step(self, fn: Callable[[Unpack[Ts]], R], /, *args: *Ts, **options: Unpack[FunctionStepOptions]) -> Awaitable[R]: ...
    def step(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[misc]
        """Call `fn` once (async on the event loop, sync in a thread); replays return its recorded result.

        The result is any JSON, or a value of the annotated return type, which every replay returns as that type.
        `retry` repeats a failed attempt (default: no retries), without occupying a worker in between; after the last attempt
        `StepFailed` is raised. `timeout` bounds one attempt. `key` names a step that must be unique in the run.
        Every attempt of a step with a `limit_key` counts against the limit and the rate of that key, together with the tasks
        that have it; until its turn the run waits without occupying a worker. Such steps of one run execute one after another.
        """
        return self._step(StepOperation, fn, *args, **options)

    def _step(
        self,
        operation: Callable[..., StepOperation],
        fn: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | int | None = None,
        timeout: Duration | None = None,
        limit_key: str | None = None,
        **kwargs: Any,
    ) -> StepOperation:
        fn = unwrapped(fn)
        if name is None and key is None:
            own = getattr(fn, "__name__", None)
            name = storable(own, CODE_LIMIT) if isinstance(own, str) and own else type_name(fn)
            if name == "<lambda>":
                name = "lambda"
        else:
            name = name_of(name)
        return operation(
            self._driver,
            fn,
            args,
            kwargs or _NO_KWARGS,
            name or "step",
            key_of(key),
            policy_of(retry),
            milliseconds_of(timeout, "timeout"),
            key_of(limit_key, "limit key"),
        )

    @overload
    def transaction(
        self, session: Any, fn: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def transaction(
        self,
        session: Any,
        fn: Callable[[Any, Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[FunctionStepOptions],
    ) -> Awaitable[R]: ...
    @overload
    def transaction(
        self, session: Any, fn: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[R]: ...
    @overload
    def transaction(
        self, session: Any, fn: Callable[[Any, Unpack[Ts]], R], /, *args: *Ts, **options: Unpack[FunctionStepOptions]
    ) -> Awaitable[R]: ...
    def transaction(self, session: Any, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
        """Call `fn(session, *args)` exactly once, in a transaction of your own database that also records its result.

        The transaction has a row of the table `treadle_steps`, which is created on first use. After a crash, also between its
        commit and the engine's, the recorded result is returned and `fn` is not called. If `fn` raises, nothing is committed.
        `session` is a connection, a session, an engine or a pool of SQLAlchemy, Django, asyncpg, psycopg or sqlite3 (PostgreSQL or
        SQLite) without an open transaction, or a function that opens a connection, such as a `sessionmaker`. With an async driver
        `fn` is async, with a blocking one a plain `def` that runs in a thread. `fn` must not commit. Options are those of `step`.
        """
        from treadle.workers.functions.transaction_operations import TransactionOperation  # most functions have none

        return self._step(partial(TransactionOperation, session), fn, *args, **options)

    @overload
    def effect(
        self, action: str, fn: Callable[..., Coroutine[Any, Any, R]], request: Json = None, **options: Unpack[EffectOptions]
    ) -> Awaitable[R]: ...
    @overload
    def effect(self, action: str, fn: Callable[..., R], request: Json = None, **options: Unpack[EffectOptions]) -> Awaitable[R]: ...
    def effect(
        self,
        action: str,
        fn: Callable[..., Any],
        request: Json = None,
        *,
        key: str | None = None,
        retry: RetryPolicy | int | None = None,
        timeout: Duration | None = None,
        unknown: tuple[type[BaseException], ...] = (),
        on_unknown: Literal["ask", "fail", "repeat"] = "repeat",
        limit_key: str | None = None,
    ) -> Awaitable[Any]:
        """Call `fn()`, which changes an external system, once as far as can be known, and return its response.

        `action` names the effect; `key` names one that must be unique in the run; `timeout` bounds one attempt. The effect's row
        is `unknown` before the call and holds the outcome after it. While `fn` runs, `ctx.idempotency_key` is the key for
        services that deduplicate, the same for all attempts, and `ctx.attempt_key` is new for each. `request` (any JSON) describes
        the effect.
        `EffectFailed`, `NonRetryable` and HTTP responses below 500 mean that the effect did not happen. After any other exception,
        or the death of the process, its outcome is unknown, and the log records `tool_call.unknown`. Then `on_unknown` decides:
        "repeat" calls again (after an exception as `retry` allows), "fail" raises `EffectUnknown`, "ask" requests an approval to
        repeat it, and raises `EffectUnknown` if that is denied. For `limit_key`, see `step`.
        """
        return EffectOperation(
            self._driver,
            check_key(action, "action"),
            fn,
            request,
            key_of(key),
            policy_of(retry),
            milliseconds_of(timeout, "timeout"),
            unknown,
            check_reaction(on_unknown, "ask", "fail", "repeat"),
            key_of(limit_key, "limit key"),
        )

    @overload
    def call(self, handler: Handler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...
    @overload
    def call(
        self, handler: str, payload: Mapping[str, Json] | None = None, *, name: str | None = None, **options: Unpack[CallOptions]
    ) -> Awaitable[dict[str, Json]]: ...
    def call(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:  # type: ignore[misc]
        """Enqueue a task for a handler on any worker and return its result.

        Pass a name, a payload and options, or a reference and its arguments: `ctx.call(pack.with_options(retry=3), order)`. Raises
        `TaskFailed`, `TaskCanceled` or `TaskIgnored`.
        """
        if args and isinstance(args[0], Handler):
            handler, *arguments = args
            options = handler.options_for("ctx.call", CALL_OPTIONS)
            operation = self._call(handler.name, handler.payload(*arguments, **kwargs), **options)
            operation.load = handler.signature.load_result
            return operation
        return self._call(*args, **kwargs)

    def _call(
        self,
        handler: str,
        payload: Mapping[str, Json] | None = None,
        *,
        name: str | None = None,
        key: str | None = None,
        task_list: str | None = None,
        priority: int | None = None,
        retry: RetryPolicy | int | None = None,
        timeout: Duration | None = None,
        deadline: Duration | None = None,
        limit_key: str | None = None,
        limit: int | None = None,
    ) -> CallOperation:
        task = self._driver.execution.task
        template = {
            "priority": task.priority if priority is None else check_priority(priority),
            "timeout_for": milliseconds_of(timeout, "timeout"),
            "deadline_for": milliseconds_of(deadline, "deadline"),
            "limit_key": key_of(limit_key, "limit key"),
            "limit": None if limit is None else check_count(limit, "A limit"),
        }
        return CallOperation(
            self._driver,
            QueueKey(self._driver.execution.runtime.namespace, HANDLER, task_list_of(task, task_list), check_name(handler)),
            payload_of(payload),
            template,
            name=name_of(name),
            key=key_of(key),
            retry=policy_of(retry, stored=True),
        )

    def external(self, specialist: str, payload: Mapping[str, Json] | None = None, **options: Any) -> Awaitable[dict[str, Json]]:
        """Run a job with that `payload` at an external service through its `specialist`, and return its result.

        Options are those of `call`.
        """
        return self.call(specialist, payload, **options)

    @overload
    def start(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[ChildRun[R]]: ...
    @overload
    def start(
        self, function: str, payload: Mapping[str, Json] | None = None, **options: Unpack[ChildOptions]
    ) -> Awaitable[ChildRun[Any]]: ...
    def start(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:  # type: ignore[misc]
        """Start a function as a child run and return its handle; `await handle.result()` returns the child's result.

        Pass a name, a payload and options, or a reference and its arguments: `ctx.start(ship.with_options(key="s1"), order)`.
        A child is canceled with its parent, and continues if its parent completes or fails. `on_parent_close` changes that: when
        the parent ends in any way, `cancel` cancels the child, `terminate` ends it without cleanup, `abandon` lets it continue.
        """
        if args and isinstance(args[0], Function):
            function, *arguments = args
            options = function.options_for("ctx.start", CHILD_OPTIONS)
            operation = self._start(function.name, function.payload(*arguments, **kwargs), **options)
            operation.load = function.signature.load_result
            return operation
        return self._start(*args, **kwargs)

    def _start(
        self,
        function: str,
        payload: Mapping[str, Json] | None = None,
        *,
        version: int | None = None,
        key: str | None = None,
        task_list: str | None = None,
        priority: int | None = None,
        on_parent_close: str | None = None,
    ) -> StartOperation:
        task = self._driver.execution.task
        options = {
            "task_list": task_list_of(task, task_list),
            "priority": task.priority if priority is None else check_priority(priority),
        }
        name, version = check_name(function, "function name"), None if version is None else check_version(version)
        policy = check_policy(on_parent_close)
        return StartOperation(self._driver, name, payload_of(payload), version, key_of(key), options, policy)

    def hosted(self, name: str, operation: Awaitable[R]) -> Coroutine[Any, Any, R]:
        """Await an operation of `ctx` in an asyncio task that a framework created, such as one that calls a tool.

        A replay finds its steps by name, so the order in which the tasks come does not matter. A name that is used again is
        numbered in the order of the calls. While all such operations wait for approvals, calls or timers, the run occupies no
        worker.
        """
        driver = self._driver
        code = run_hosted(driver, host_of(driver), name, cast("Operation", operation))
        return driver.created(code, f"hosted {name}", [operation])

    @overload
    def first(self, one: Awaitable[A], two: Awaitable[B], /) -> Coroutine[Any, Any, Winner[A | B]]: ...
    @overload
    def first(self, one: Awaitable[A], two: Awaitable[B], three: Awaitable[C], /) -> Coroutine[Any, Any, Winner[A | B | C]]: ...
    @overload
    def first(self, *operations: Awaitable[Any], **named: Awaitable[Any]) -> Coroutine[Any, Any, Winner[Any]]: ...
    def first(self, *operations: Any, **named: Any) -> Coroutine[Any, Any, Winner[Any]]:
        """Wait for the first of several operations of ctx to end, and return it: its `name` (keyword), `index` and `value`.

        Pass `operations` by position, or `named`: `ctx.first(paid=ctx.wait_for("paid"), late=ctx.sleep(3600))`. Raises the error
        of a winner that failed. The winner is recorded, so every replay returns the same. The others are canceled with their
        tasks, approvals and child runs; a signal that one of them waited for stays in the inbox. An async step is stopped; a step
        in a thread continues, and its result is dropped. Coroutines and effects are rejected.
        """
        contenders = [*(("", operation) for operation in operations), *named.items()]
        return self._driver.created(first(self._driver, contenders), "first", [operation for _, operation in contenders])

    @overload
    def gather(self, one: Awaitable[A], /) -> Coroutine[Any, Any, tuple[A]]: ...
    @overload
    def gather(self, one: Awaitable[A], two: Awaitable[B], /) -> Coroutine[Any, Any, tuple[A, B]]: ...
    @overload
    def gather(self, one: Awaitable[A], two: Awaitable[B], three: Awaitable[C], /) -> Coroutine[Any, Any, tuple[A, B, C]]: ...
    @overload
    def gather(
        self, one: Awaitable[A], two: Awaitable[B], three: Awaitable[C], four: Awaitable[D], /
    ) -> Coroutine[Any, Any, tuple[A, B, C, D]]: ...
    @overload
    def gather(
        self, one: Awaitable[A], two: Awaitable[B], three: Awaitable[C], four: Awaitable[D], five: Awaitable[E], /
    ) -> Coroutine[Any, Any, tuple[A, B, C, D, E]]: ...
    @overload
    def gather(
        self,
        one: Awaitable[A],
        two: Awaitable[B],
        three: Awaitable[C],
        four: Awaitable[D],
        five: Awaitable[E],
        six: Awaitable[F],
        /,
    ) -> Coroutine[Any, Any, tuple[A, B, C, D, E, F]]: ...
    @overload
    def gather(self, *awaitables: Awaitable[A]) -> Coroutine[Any, Any, list[A]]: ...
    @overload
    def gather(self, *awaitables: Awaitable[A], return_exceptions: bool) -> Coroutine[Any, Any, list[A | Exception]]: ...
    def gather(self, *awaitables: Any, return_exceptions: bool = False) -> Coroutine[Any, Any, Any]:
        """Run `awaitables`, operations of ctx and coroutines, concurrently, and return a list with one result of each, in order.

        It waits for ALL of them, then raises the first failure in the order of the arguments, so that a replay raises the same.
        With `return_exceptions`, an `Exception` is a result; `Canceled` is none, and is raised.
        """
        return self._driver.created(gather(self._driver, awaitables, return_exceptions), "gather", awaitables)

    # waiting

    def sleep(self, duration: Duration) -> Awaitable[None]:
        """Wait for the duration, through restarts, without occupying a worker."""
        return WaitOperation(self._driver, SLEEP, "sleep", wait_for=milliseconds(duration, "duration"))

    def sleep_until(self, at: datetime) -> Awaitable[None]:
        """Wait until the instant `at` (with a time zone), through restarts, without occupying a worker."""
        return WaitOperation(self._driver, SLEEP, "sleep", at=instant(at))

    def approval(self, question: str, *, key: str | None = None, **request: Any) -> Awaitable[dict[str, Json]]:
        """Ask people the `question`, and return the decision: the decider (`by`), the `reason`, and the approved `context`.

        `key` names an approval that must be unique in the run. Options (`request`) are those of `ApprovalRequest.of`. Raises
        `ApprovalDenied` or `ApprovalExpired`.
        """
        task = self._driver.execution.task
        if "context" in request:
            request["context"] = plain_object(request["context"])
        try:
            approval_request = ApprovalRequest.of(question, **request)
        except TypeError as error:
            raise InvalidApproval(f"The approval cannot be asked for: {error}.") from None
        queue = QueueKey(self._driver.execution.runtime.namespace, APPROVAL, task.task_list, APPROVAL)
        return CallOperation(
            self._driver, queue, approval_request.as_json(), {"priority": task.priority}, kind=ASK, key=key_of(key)
        )

    def continue_as_new(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, None]:
        """End this run and continue as a new run with that payload, or those arguments, and an empty history; never returns.

        The new run uses the newest version of the function. A caller that waits for this run gets the new run's result.
        """
        signature = self._driver.execution.function.handler.signature
        assert signature is not None
        payload = signature.dump(args, kwargs)
        limit = self._driver.execution.runtime.payload_limit
        new_payload = decode(encode(payload, "payload of continue_as_new", limit))
        return self._driver.created(self._continue(new_payload), "continue_as_new")

    async def _continue(self, payload: dict[str, Json]) -> None:
        driver = self._driver
        if driver.branches.enter().scope:
            raise MisusedContext("ctx.continue_as_new cannot be used inside a gather: its other branches would be lost.")
        await driver.execution.wait_while_held()
        if (forgotten := driver.find_forgotten()) is not None:
            raise forgotten
        driver.successor = payload
        await driver.execution.suspend()

    # callers

    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None) -> Awaitable[Json]: ...
    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None, *, type: type[R]) -> Awaitable[R]: ...
    def wait_for(self, signal: str, timeout: Duration | None = None, *, type: Any = Any) -> Awaitable[Any]:  # noqa: A002
        """Wait for the next signal of that name and return its payload; earlier signals are consumed first, in order.

        With a `type`, the payload arrives as that type, or `InvalidPayload` is raised; if that fails the run, a retry
        waits for the next signal. Raises `SignalTimeout` if none arrives within `timeout`.
        """
        timeout_for = None if timeout is None else milliseconds(timeout, "timeout")
        check_name(signal, "signal name")
        again = f". `treadle runs retry {self._driver.execution.run_id}` waits for it again; then send one that matches."
        load = None if is_raw(type) else typed_loader(type, f"The signal {signal}", again)
        operation = WaitOperation(self._driver, WAIT, signal, signal=signal, wait_for=timeout_for)
        operation.load = load
        return operation

    def read_stream(self, work: Ref, name: str, *, offset: int = 0) -> StreamReader:
        """Read the stream `name` of a run or a task: `async for entry in ctx.read_stream(child, "tokens"): print(entry.value)`.

        Yields its entries from `offset` on, in batches of up to 100 that are recorded as steps, waits for new ones without
        occupying a worker, and ends with the work that writes them. An entry has an `offset`, a `kind` and a `value`; of another
        kind than `entry`, it is a notice. Raises `StepFailed` if there is no such work.
        """
        return StreamReader(self._driver, work, name, offset)

    @overload
    def update(self, name: str, timeout: Duration | None = None) -> Awaitable[Update[Any]]: ...
    @overload
    def update(self, name: str, timeout: Duration | None = None, *, type: type[R]) -> Awaitable[Update[R]]: ...
    def update(self, name: str, timeout: Duration | None = None, *, type: Any = Any) -> Awaitable[Any]:  # noqa: A002
        """Wait for the next update of that name: a request whose caller waits for `await update.reply(...)` or `.reject(...)`.

        `update.value` is the caller's payload. With a `type` it arrives as that type; updates that do not match it are rejected.
        Raises `SignalTimeout` if none arrives within `timeout`.
        """
        timeout_for = None if timeout is None else milliseconds(timeout, "timeout")
        check_name(name, "update name")
        if is_raw(type):
            return update_operation(self._driver, name, timeout_for)
        update = valid_update(self._driver, name, timeout_for, typed_loader(type, f"The update {name}"))
        return self._driver.created(update, f"update {name}")
