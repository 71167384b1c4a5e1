"""Handlers: the code for tasks of a name, and the registry and catalog in which a worker finds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from treadle.kernel.store.units import Answer
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import HandlerExists, InvalidInput, InvalidPolicy
from treadle.model.names import EXTERNAL_CANCEL, FUNCTION, HANDLER, check_key, check_name, short_name
from treadle.model.retry import NO_RETRY, RetryPolicy, as_policy
from treadle.model.values import shown
from treadle.workers.injection import Dependencies
from treadle.workers.signatures import Kind, Signature, adapted, is_async, signature_of, unwrapped

Isolation = Literal["loop", "thread", "process"]


class Settled(msgspec.Struct, frozen=True):
    """The result of one of the engine's own handlers that has settled its task itself; `answer` is the store's answer."""

    answer: Answer


class Handler(msgspec.Struct, frozen=True):
    """Code for tasks of a name, and the options of its calls."""

    name: str
    call: Callable[..., Any]
    arguments: int
    """Number of arguments that it takes of (payload, ctx)."""
    isolation: Isolation
    retry: RetryPolicy = NO_RETRY
    timeout_for: int | None = None
    progress_for: int | None = None
    concurrency: int | None = None
    """Maximum number of its tasks in one process; None: limited only by the worker."""
    limit_key: str | None = None
    """The limit key of its tasks that have none of their own."""
    executes: Callable[..., Awaitable[Any]] | None = None
    """For specialists: executes the task with (ctx, executor, handler) instead of `call`."""
    cancels: Handler | None = None
    """For specialists: the handler of tasks that cancel jobs at the external service."""
    signature: Signature | None = None
    """The arguments and the result of the user's code; None for code of the engine."""


class HandlerOptions(TypedDict, total=False):
    """Options of a handler, as `Engine.handler` documents them."""

    retry: RetryPolicy | int | None
    timeout: Duration | None
    progress_every: Duration | None
    concurrency: int | None
    isolation: Isolation | None
    limit_key: str | None


def make_handler(
    name: str,
    call: Callable[..., Any],
    *,
    retry: RetryPolicy | int | None = None,
    timeout: Duration | None = None,
    progress_every: Duration | None = None,
    concurrency: int | None = None,
    isolation: Isolation | None = None,
    limit_key: str | None = None,
    kind: Kind = "raw",
) -> Handler:
    """Return a validated handler for a function: async on the event loop, sync in a thread, or either in a process."""
    check_name(name)
    if not callable(call):
        raise InvalidInput(f"The handler {name} must be a function, not {type(call).__name__}.")
    call = unwrapped(call)
    runs_async = is_async(call)
    chosen: Isolation = isolation or ("loop" if runs_async else "thread")
    if chosen not in ("loop", "thread", "process"):
        raise InvalidPolicy(f"isolation must be 'loop', 'thread' or 'process', not {shown(chosen)}.")
    if chosen == "loop" and not runs_async:
        raise InvalidPolicy(
            f"The handler {name} is not async: on the event loop it would block other handlers. Use isolation='thread'."
        )
    if chosen == "thread" and runs_async:
        raise InvalidPolicy(f"The handler {name} is async: it runs on the event loop or with isolation='process', not in a thread.")
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise InvalidPolicy(f"concurrency must be 1 or more, not {shown(concurrency)}.")
    signature = signature_of(name, call, kind)
    return Handler(
        name,
        adapted(signature, call, kind),
        2 if signature.is_typed else signature.arguments,
        chosen,
        as_policy(retry) or NO_RETRY,
        None if timeout is None else milliseconds(timeout, "timeout", positive=True),
        None if progress_every is None else milliseconds(progress_every, "progress_every", positive=True),
        concurrency,
        None if limit_key is None else check_key(limit_key, "limit key"),
        signature=signature,
    )


class Offering(Protocol):
    """The specialists of a name."""

    @property
    def offers(self) -> list[str]:
        """The name with each registered scope."""


class Registry:
    """The handlers of a process, found by exact name or by the short name after the last dot."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.specialists: dict[str, Offering] = {}
        """The handlers that are specialists, by name."""
        self.dependencies = Dependencies()
        """Objects that are injected into handlers, functions and steps, and hooks of workers."""
        self.fallback: Fallback | None = None
        """Serves names without a handler: see `treadle.llm.use_llm`."""

    def put(self, handler: Handler) -> None:
        """Add the handler, or replace the one of that name."""
        self._handlers[handler.name] = handler

    def add(self, handler: Handler) -> None:
        """Add the handler; a second one of the same name raises `HandlerExists`."""
        if handler.name in self._handlers:
            raise HandlerExists(f"There is already a handler for {handler.name}; each name has one handler in a process.")
        self._handlers[handler.name] = handler

    def find(self, name: str) -> Handler | None:
        """Return the handler for tasks of that name."""
        return self._handlers.get(name) or self._handlers.get(short_name(name))

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._handlers)

    def offers(self) -> list[str]:
        """Return the specialists with their scopes: `NAME@SCOPE`, or `NAME@` for all scopes."""
        return [offer for name in sorted(self.specialists) for offer in self.specialists[name].offers]

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)


class Fallback(Protocol):
    """Handlers for names without a registered handler, such as those of prompts."""

    async def prepare(self, names: Sequence[str]) -> None:
        """Prepare handlers for names of lanes without one; called each time the worker reads the lanes."""

    def find(self, name: str) -> Handler | None:
        """Return the handler for tasks of that name, if this fallback serves them."""

    def names(self) -> list[str]:
        """Return the names known to be served."""


class Catalog(msgspec.Struct):
    """All handlers that a worker can run: registered by users, fallbacks, functions, and the engine's own by kind."""

    registry: Registry
    fallback: Fallback | None = None
    find_function: Callable[[str], Handler | None] = lambda lane_name: None
    builtins: Mapping[str, Handler] = msgspec.field(default_factory=dict)
    find_role: Callable[[str, str], Handler | None] = lambda kind, name: None
    """Returns the goal pipeline's handler for a kind and name."""

    def find(self, kind: str, name: str) -> Handler | None:
        """Return the handler for tasks of a lane: a user's by name, or the engine's own by kind."""
        if kind == EXTERNAL_CANCEL:
            specialist = self.registry.find(name)
            return None if specialist is None else specialist.cancels
        if kind == HANDLER:
            return self.registry.find(name) or (self.fallback.find(name) if self.fallback is not None else None)
        if kind == FUNCTION:
            return self.find_function(name)
        return self.builtins.get(kind) or self.find_role(kind, name)
