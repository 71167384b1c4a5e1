"""Dependencies of handlers, functions and steps, injected by type; and hooks that run when workers start and stop.

A parameter is injected if its annotation is a type that `provide` was given, or `Annotated[T, Depends(factory)]`. It is not part
of the payload: `wire` returns a callable whose signature does not have it. Instances with the scope `worker` are created when the
first worker of the process starts and cleaned up when the last one has stopped; those with the scope `task` belong to one call.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from treadle.model.errors import InvalidInput, Refused, TreadleError
from treadle.model.values import error_text, shown
from treadle.workers.signatures import importable, is_async

Scope = Literal["worker", "task"]
Hook = Callable[[], Any]
F = TypeVar("F", bound=Callable[..., Any])


class StartFailed(TreadleError, code="start_failed"):
    """A hook or a dependency of a worker raised while the worker started; it has not claimed anything."""


class Depends(msgspec.Struct, frozen=True):
    """A marker for a parameter: `pool: Annotated[Pool, Depends(make_pool)]`; without a factory, the type's provider is used."""

    factory: Callable[..., Any] | None = None
    scope: Scope = "task"


class Provider(msgspec.Struct, frozen=True):
    """A factory of instances: a function, or a generator that yields the instance and then cleans up; sync or async."""

    factory: Callable[..., Any]
    scope: Scope
    needs: tuple[tuple[str, Provider], ...] = ()

    @property
    def is_async(self) -> bool:
        """Whether the factory, or one that it needs for each task, must be awaited."""
        own = inspect.iscoroutinefunction(self.factory) or inspect.isasyncgenfunction(self.factory)
        return own or any(provider.is_async for _, provider in self.needs if provider.scope == "task")


Needs = tuple[tuple[str, Provider], ...]


class Dependencies:
    """The providers and hooks of one engine, and the instances of its running workers."""

    def __init__(self) -> None:
        self._providers: dict[Any, Provider] = {}
        self._hooks: list[Hook] = []
        self._ends: list[Hook] = []
        self._known: dict[object, Needs] = {}
        self._stack = AsyncExitStack()
        self._workers = 0
        self._starting = asyncio.Lock()
        self.instances: dict[Provider, Any] = {}
        self.wrap_in_thread: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call
        """Returns the code of a sync step as it is called in a thread; a web framework sets its context there."""

    # registration

    def provide(self, kind: Any, factory: Callable[..., Any], scope: Scope) -> None:
        """Inject the object that the factory returns, or yields, into parameters of the type."""
        if scope not in ("worker", "task"):
            raise InvalidInput(f"The scope of a dependency is 'worker' or 'task', not {shown(scope)}.")
        if not callable(factory):
            raise InvalidInput(f"The factory of {_name(kind)} must be a function, not {shown(factory)}.")
        if kind in self._providers:
            raise Refused(f"There is already a provider of {_name(kind)}.", code="handler_exists")
        self._providers[kind] = self._provider(factory, scope)
        self._known.clear()

    def add_start(self, hook: Hook) -> None:
        """Call the hook when the process's first worker starts."""
        self._hooks.append(hook)

    def add_stop(self, hook: Hook) -> None:
        """Call the hook when the process's last worker has stopped, the last one first."""
        self._ends.append(hook)

    def _provider(self, factory: Callable[..., Any], scope: Scope) -> Provider:
        needs = self.injected(factory)
        for name, parameter in inspect.signature(factory).parameters.items():
            if parameter.default is parameter.empty and parameter.kind not in _REST and name not in dict(needs):
                raise InvalidInput(
                    f"The parameter {name} of the factory {_name(factory)} has no provider: call engine.provide for its type first."
                )
        if scope == "worker" and any(provider.scope == "task" for _, provider in needs):
            raise InvalidInput(f"{_name(factory)} lives as long as a worker, and cannot use a dependency of one task.")
        return Provider(factory, scope, needs)

    def injected(self, call: Callable[..., Any]) -> Needs:
        """Return the parameters of the callable that are injected, with their providers; raises for an unknown dependency."""
        if not self._providers and not _may_mark(call):
            return ()
        try:
            signature = inspect.signature(call)
        except (TypeError, ValueError):
            return ()
        hints = _hints(call, signature, self._providers)
        needs: list[tuple[str, Provider]] = []
        for name in signature.parameters:
            hint = hints.get(name)
            marks = [mark for mark in get_args(hint)[1:] if isinstance(mark, Depends)] if get_origin(hint) is Annotated else []
            kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            if marks and marks[0].factory is not None:
                needs.append((name, self._provider(marks[0].factory, marks[0].scope)))
            elif (provider := self._find(kind)) is not None:
                needs.append((name, provider))
            elif marks:
                raise InvalidInput(
                    f"{_name(call)} needs a {_name(kind)}, which nothing provides: call engine.provide({_name(kind)}, ...) before."
                )
        return tuple(needs)

    def _find(self, kind: Any) -> Provider | None:
        try:
            return self._providers.get(kind)
        except TypeError:  # an annotation that is not hashable
            return None

    def wire(self, call: F) -> F:
        """Return the callable without its injected parameters; the same one if it has none."""
        needs = self.injected(call)
        return _wired(self, call, needs) if needs else call  # type: ignore[return-value]

    def wire_step(self, call: F) -> F:
        """Do the same as `wire` for the code of a step, which is given for each call."""
        code = getattr(call, "__code__", None)
        if code is None:
            return call
        if (needs := self._known.get(code)) is None:
            needs = self._known[code] = self.injected(call)
        return _wired(self, call, needs) if needs else call  # type: ignore[return-value]

    # life cycle

    async def start(self) -> None:
        """Create the instances of the worker and run the hooks, for the first worker; raises `StartFailed`."""
        async with self._starting:
            self._workers += 1
            if self._workers > 1:
                return
            self._stack = AsyncExitStack()
            failing = ""
            try:
                for kind, provider in self._providers.items():
                    failing = f"The provider of {_name(kind)}"
                    if provider.scope == "worker":
                        await _make(provider, self.instances, self._stack)
                for hook in self._hooks:
                    failing = f"The start hook {_name(hook)}"
                    await _run_hook(hook)
            except BaseException as error:
                self._workers -= 1
                await self._close()
                if not isinstance(error, Exception):
                    raise
                text = f"The worker does not start. {failing} failed: {type(error).__name__}: {error_text(error)}"
                raise StartFailed(text) from error
            for hook in self._ends:
                self._stack.push_async_callback(_run_hook, hook)

    async def stop(self) -> None:
        """Clean up after the last worker."""
        async with self._starting:
            self._workers -= 1
            if not self._workers:
                await self._close()

    async def _close(self) -> None:
        try:
            await self._stack.aclose()
        finally:
            self.instances.clear()


class _Wired:
    """Sync code with its arguments injected; in another process, which has no worker, it creates all of them itself."""

    def __init__(self, dependencies: Dependencies | None, call: Callable[..., Any], needs: Needs) -> None:
        self._dependencies, self._code, self._needs = dependencies, call, needs
        names = dict(needs)
        self._signature = signature = inspect.signature(call)
        self.__wrapped__ = call
        self.__name__ = getattr(call, "__name__", type(call).__name__)
        self.__qualname__ = getattr(call, "__qualname__", self.__name__)
        self.__module__ = getattr(call, "__module__", __name__)
        self.__doc__ = call.__doc__
        self.__signature__ = signature.replace(
            parameters=[parameter for name, parameter in signature.parameters.items() if name not in names]
        )
        annotations = getattr(call, "__annotations__", {})
        self.__annotations__ = {name: value for name, value in annotations.items() if name not in names}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (None, importable(self._code), self._needs)

    @property
    def _instances(self) -> dict[Provider, Any]:
        return {} if self._dependencies is None else self._dependencies.instances

    async def _run(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        instances = dict(self._instances)
        async with AsyncExitStack() as stack:
            missing = [(name, provider) for name, provider in self._needs if name not in named]
            injected = {name: await _make(provider, instances, stack) for name, provider in missing}
            returned = self._call(arguments, named, injected)
            return await returned if isinstance(self, _WiredAsync) else returned

    def _call(self, arguments: tuple[Any, ...], named: dict[str, Any], injected: dict[str, Any]) -> Any:
        """Call the code; `arguments` are those of its other parameters in their order, wherever the injected ones are."""
        if not arguments:
            return self._code(**named, **injected)
        names = dict(self._needs)
        injected |= {name: value for name, value in named.items() if name in names}
        bound = self.__signature__.bind(*arguments, **{name: value for name, value in named.items() if name not in names})
        call = inspect.BoundArguments(self._signature, bound.arguments | injected)
        return self._code(*call.args, **call.kwargs)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        coroutine = self._run(arguments, named)
        instances = self._instances
        if any(provider.is_async for name, provider in self._needs if name not in named and provider not in instances):
            return asyncio.run(coroutine)
        try:
            coroutine.send(None)  # it ends here, because it awaits nothing: the factories are sync, or the worker has called them
        except StopIteration as end:
            return end.value
        raise AssertionError("A sync factory waited for the event loop.")


class _WiredAsync(_Wired):
    async def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return await self._run(arguments, named)


def _wired(dependencies: Dependencies, call: Callable[..., Any], needs: Needs) -> _Wired:
    if is_async(call):
        return _WiredAsync(dependencies, call, needs)
    for name, provider in needs:
        if provider.scope == "task" and provider.is_async:  # instances of the worker exist before
            raise InvalidInput(
                f"The parameter {name} of {_name(call)} is created by async code for each task: make the function async, or give "
                "the dependency the scope 'worker'."
            )
    return _Wired(dependencies, call, needs)


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _may_mark(call: object) -> bool:
    """Whether an annotation may contain a `Depends`; saves the evaluation of all others."""
    annotations = getattr(call, "__annotations__", None) or getattr(getattr(call, "__call__", None), "__annotations__", None) or {}  # noqa: B004
    return any(
        "Depends" in annotation if isinstance(annotation, str) else get_origin(annotation) is Annotated
        for annotation in annotations.values()
    )


def _hints(call: Callable[..., Any], signature: inspect.Signature, kinds: Mapping[Any, object]) -> dict[str, Any]:
    """Return the annotations; of those that are text and cannot be evaluated, the ones that name a known type."""
    try:
        signature = inspect.signature(call, eval_str=True)
    except Exception:  # an annotation may contain any expression
        named = {getattr(kind, "__name__", None): kind for kind in kinds}
        return {name: named.get(parameter.annotation, parameter.annotation) for name, parameter in signature.parameters.items()}
    return {name: parameter.annotation for name, parameter in signature.parameters.items()}


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or thing)


async def _run_hook(hook: Hook) -> None:
    done = hook()
    if inspect.isawaitable(done):
        await done


async def _make(provider: Provider, instances: dict[Provider, Any], stack: AsyncExitStack) -> Any:
    """Return the instance, made together with its dependencies unless it exists; `stack` cleans it up."""
    if provider in instances:
        return instances[provider]
    factory = provider.factory
    arguments = {name: await _make(need, instances, stack) for name, need in provider.needs}
    if inspect.isasyncgenfunction(factory):
        instance = await stack.enter_async_context(asynccontextmanager(factory)(**arguments))
    elif inspect.isgeneratorfunction(factory):
        instance = stack.enter_context(contextmanager(factory)(**arguments))
    else:
        instance = factory(**arguments)
        if inspect.iscoroutine(instance):
            instance = await instance
    instances[provider] = instance
    return instance
