"""Registration of user code at an engine, and `engine.declare`: limits and triggers in code, next to the handlers they are for."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, get_args, get_type_hints, overload

from treadle.api.options import AlertOptions, ScheduleOptions, WatcherOptions
from treadle.kernel.declarations.records import ALERT, SCHEDULE, WATCHER, ProgramDeclarations
from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import run_key
from treadle.workers.context import BatchHandlerOptions, HandlerOptions, make_handler
from treadle.workers.functions.registry import RegistrationOptions, make_function
from treadle.workers.references import Function, Handler
from treadle.workers.signatures import Kind, unwrapped

if TYPE_CHECKING:
    from treadle.engine.decorators import FunctionDecorator, HandlerDecorator, TaskDecorator
    from treadle.engine.kernel import Kernel
    from treadle.workers.injection import Scope
    from treadle.workers.interceptors import Interceptor
    from treadle.workers.limits import Limit
    from treadle.workers.specialists import SpecialistOptions

H = TypeVar("H", bound=Callable[..., Any])
CATCH_ALL = "*"
"""The name of a handler for names that nobody serves."""


def _show_options(make: Callable[..., Any]) -> Callable[[H], H]:
    """Show each option of a decorator in help and completion in place of `**options`, with its default in `make`."""

    def change(method: H) -> H:
        signature, defaults = inspect.signature(method), inspect.signature(make).parameters
        fields = get_type_hints(get_args(get_type_hints(method)["options"])[0])
        parameters = [
            *list(signature.parameters.values())[:-1],
            *(defaults[name].replace(annotation=fields[name]) for name in fields),
        ]
        setattr(method, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
        return method

    return change


class Registration:
    """The decorators of an engine. Each returns a typed reference, which `enqueue`, `start`, `map` and `ctx` take."""

    kernel: Kernel
    declare: Declare

    if TYPE_CHECKING:
        handler: HandlerDecorator
        task: TaskDecorator
        function: FunctionDecorator
    else:

        @_show_options(make_handler)
        def handler(self, name=None, /, **options: Unpack[BatchHandlerOptions]):
            """Register the decorated function for tasks of that name (default: its own name).

            It takes (payload), (payload, ctx) or nothing, or named and annotated arguments, which the payload holds by name. It
            returns an object (None means `{}`) or an outcome; exceptions are retried according to `retry` (default: no retries).
            `timeout` bounds one attempt, `progress_every` the time between two calls of `ctx.progress()`, `concurrency` the number
            of concurrent calls in a process. Tasks without a `limit_key` of their own get that of the handler: its limit and rate
            (`kernel.lists`) hold across all handlers and workers that use the key. With `limits` (`treadle.Limit`), they count
            under several keys, also by fields of the payload. Sync functions run in threads, or with `isolation="process"` in
            processes that can be killed.

            With `batch=100`, it receives a list of up to 100 payloads, of tasks that become ready `within` that many seconds, and
            returns a list with a result, an outcome or an exception for each; see `docs/how-to/batches.md`. Tasks of one batch have
            the same value in the field `key` of their payloads. `concurrency` (default: 4) is the number of concurrent batches.

            `@engine.handler("*")` handles the tasks of names that no live worker serves; `ctx.task_name` is the name. Workers learn
            of other workers at each poll, so a task may come here while the worker for its name starts.
            """
            return _decorator(name, lambda own, fn: self._add_handler(own, fn, "handler", options))

        @_show_options(make_handler)
        def task(self, name=None, /, **options: Unpack[HandlerOptions]):
            """Register a plain function: its arguments are the payload by name, and it returns any supported value.

            Options are those of `handler`; also as `@engine.task` without parentheses. A result that is not an object is stored as
            `{"result": ...}`.
            """
            return _decorator(name, lambda own, fn: self._add_handler(own, fn, "task", options))

        @_show_options(make_function)
        def function(self, name=None, /, **options: Unpack[RegistrationOptions]):
            """Register the decorated `async def` or `def` as a durable function (default: under its own name).

            It takes (payload), (payload, ctx) or nothing, or named and annotated arguments, and returns any supported value. A run
            is pinned to the `version` it began with; several versions may be registered. `max_steps` caps the steps of one run,
            `concurrency` the number of its runs that execute concurrently in a process. `cleanup_timeout` (default 60 s) limits the
            code that a canceled run executes in `finally` and `except Canceled`; 0 ends it immediately. With `limits`
            (`treadle.Limit`), its runs count under their keys while they are live, unless the start has a `limit_key` or a `limit`.
            """
            return _decorator(name, lambda own, fn: self._add_function(own, fn, options))

    def _add_handler(self, name: str, fn: Any, kind: Kind, options: BatchHandlerOptions | HandlerOptions) -> Handler[..., Any]:
        registry = self.kernel.registry
        if is_fallback := name == CATCH_ALL:
            if kind != "handler" or options:
                raise InvalidInput(f'The handler "{CATCH_ALL}" of names that nobody serves takes (payload, ctx), and no options.')
            if registry.catch_all is not None:
                raise Refused(f'There is already a handler "{CATCH_ALL}" in this process.', code="handler_exists")
        own_name = "fallback" if is_fallback else name
        handler = make_handler(own_name, registry.dependencies.wire(unwrapped(fn)), kind=kind, **options)
        if is_fallback:
            registry.catch_all = handler
        else:
            registry.add(handler)
        self._declare(handler.limits)
        assert handler.signature is not None
        return Handler(name, unwrapped(fn), handler.signature)

    def _add_function(self, name: str, fn: Any, options: RegistrationOptions) -> Function[..., Any]:
        function = make_function(name, self.kernel.registry.dependencies.wire(unwrapped(fn)), **options)
        self.kernel.function_registry.add(function)
        self._declare(replace(limit, name=run_key(limit.name)) for limit in function.handler.limits)
        assert function.handler.signature is not None
        return Function(name, unwrapped(fn), function.handler.signature)

    def _declare(self, limits: Iterable[Limit]) -> None:
        for limit in limits:
            if limit.by is None and (limit.max, limit.rate) != (None, None):
                self.declare.limit(limit.name, rate=limit.rate, max=limit.max)

    @overload
    def provide(self, kind: Any, *, scope: Scope = "worker") -> Callable[[H], H]: ...
    @overload
    def provide(self, kind: Any, factory: H, *, scope: Scope = "worker") -> H: ...
    def provide(self, kind: Any, factory: H | None = None, *, scope: Scope = "worker") -> Any:
        """Inject instances of the type `kind` into parameters of handlers, functions and steps that are annotated with it.

            @engine.provide(Pool)
            async def pool():
                async with create_pool(DATABASE) as pool:
                    yield pool

        The factory is a function, or a generator that yields the instance and cleans up; sync or async; its own parameters are
        injected, too. With the scope `worker`, a process has one instance while workers run; with `task`, each call gets one.
        Register it before the handlers that need it.
        """

        def add(given: H) -> H:
            self.kernel.registry.dependencies.provide(kind, given, scope)
            return given

        return add if factory is None else add(factory)

    def intercept(self, interceptor: Interceptor) -> None:
        """Call the methods of the `interceptor` around enqueues, starts of runs, handlers and steps, inside of earlier ones."""
        from treadle.workers.interceptors import add_interceptor

        add_interceptor(self.kernel.registry.around, interceptor)

    def on_start(self, hook: H) -> H:
        """Call `hook`, a sync or async function, when a worker starts, before it claims work; once per process.

        If it raises, the worker does not start (`StartFailed`).
        """
        self.kernel.registry.dependencies.add_start(hook)
        return hook

    def on_stop(self, hook: H) -> H:
        """Call `hook`, a sync or async function, when the worker has stopped; once per process, the last registered first."""
        self.kernel.registry.dependencies.add_stop(hook)
        return hook

    def specialist(self, name: str, specialist: object = None, **options: Unpack[SpecialistOptions]) -> Any:
        """Register a specialist, an object or a class with `start` and `poll`, for tasks of that name; also as a decorator.

        `treadle.Specialist` documents its methods. With a `scope`, it serves only tasks enqueued with that scope. `timeout` bounds
        one call to the service, `concurrency` the concurrent calls in a process, `deadline` the total time of a job.
        `idempotent_start` declares that the service creates one job for two submits with the same token.
        """

        def add(given: Any) -> Any:
            from treadle.workers.specialists import register

            register(self.kernel.registry, name, given, **options)
            return given

        return add if specialist is None else add(specialist)


def _decorator(name: Any, add: Any) -> Any:
    """Return the decorator for a name, or register immediately when the function itself is given."""
    if name is not None and not isinstance(name, str):
        return add(_own_name(name), name)
    return lambda fn: add(_own_name(fn) if name is None else name, fn)


def _own_name(fn: Any) -> str:
    name = getattr(fn, "__name__", None)
    if not callable(fn) or not isinstance(name, str):
        raise InvalidInput(f"Register a function, or give a name: {type(fn).__name__} has none.")
    return name


R = TypeVar("R")


class Declare(ProgramDeclarations):
    """The limits, schedules, watchers and alert rules of this program; a worker that starts makes the store follow them."""

    def default_program(self) -> str:
        """Return the name of the main module or file of this process."""
        main = sys.modules.get("__main__")
        spec = getattr(main, "__spec__", None)
        if spec is not None:
            return program_of(spec.name.removesuffix(".__main__"))
        return program_of(getattr(main, "__file__", None) or "python")

    def schedule(self, name: str, **options: Unpack[ScheduleOptions]) -> Callable[[R], R]:
        """Declare a schedule with the options of `schedules.create`; without a target, as the decorator of a handler or function.

            @engine.declare.schedule("nightly-report", cron="30 2 * * *", zone="Europe/Berlin", inputs={"kind": "full"})
            @engine.handler("report")
            async def report(payload): ...

        An interval (`every`) counts from 1970 unless `anchor` or `start` says otherwise.
        """
        return self._trigger(SCHEDULE, name, dict(options))

    def watcher(self, name: str, **options: Unpack[WatcherOptions]) -> Callable[[R], R]:
        """Declare a watcher with the options of `watchers.create`; without a target, as the decorator of a handler or function.

        With another source in the code, it is made anew: files that exist then count as seen unless `existing="new"`.
        """
        return self._trigger(WATCHER, name, dict(options))

    def alert(self, name: str, **options: Unpack[AlertOptions]) -> None:
        """Declare an alert rule with the options of `alerts.create`. With another condition in the code, it is made anew."""
        self.add_trigger(ALERT, name, dict(options))

    def _trigger(self, kind: str, name: str, declaration: dict[str, Any]) -> Callable[[R], R]:
        complete = self.add_trigger(kind, name, declaration)

        def decorate(reference: R) -> R:
            if complete or not isinstance(reference, Handler | Function):
                problem = "already has a target" if complete else "can only decorate a handler or function"
                raise InvalidInput(
                    f"The {kind} {name} {problem}: put it above @engine.handler(...) or @engine.function(...), without task=, "
                    "workflow= and function=."
                )
            target = "function" if isinstance(reference, Function) else "task"
            self.add_trigger(kind, name, declaration | {target: reference.name})
            return reference

        return decorate


def program_of(place: str) -> str:
    """Return the default name of the program in a module or file."""
    name = Path(place).stem if place.endswith(".py") or "/" in place else place
    return ".".join(part for segment in name.split(".") if (part := re.sub(r"\W+", "_", segment, flags=re.ASCII))) or "python"
