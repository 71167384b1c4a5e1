"""The context of a handler: facts about its task, effects, and reports of progress. Threads may use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

import msgspec

from treadle.kernel.effects.decide import current_keys
from treadle.kernel.store.units import Row, UnitAnswer
from treadle.model.approvals import split_checkpoint
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, InvalidPolicy, NonRetryable, Refused
from treadle.model.external import Production
from treadle.model.names import EXTERNAL_CANCEL, FUNCTION, HANDLER, check_key, check_name, handles, short_name
from treadle.model.retry import NO_RETRY, PolicyWithCode, RetryPolicy, as_policy
from treadle.model.tags import Tags, TagValue, check_tags
from treadle.model.tasks import Claim, LogLine, Task, TaskLimit, log_line, progress_text
from treadle.model.values import Json, decode, shown
from treadle.workers.baggage import NO_BAGGAGE, Baggage
from treadle.workers.effects import AttemptEffects, EffectKernel
from treadle.workers.injection import Dependencies
from treadle.workers.limits import Limit, check_limits, keys_of
from treadle.workers.signatures import Kind, Signature, adapted, batch_signature_of, is_async, signature_of, unwrapped
from treadle.workers.streams import Outlet, Streams, StreamWriter

if TYPE_CHECKING:
    from treadle.kernel.external.service import ExternalJobs
    from treadle.workers.specialists import Specialists

Isolation = Literal["loop", "thread", "process"]

MAX_BATCH = 1_000
"""The maximum number of tasks in one batch."""
BATCH_CALLS = 4
"""Concurrent calls of a batch handler without a `concurrency`."""


class Settled(msgspec.Struct, frozen=True):
    """The result of one of the engine's own handlers that has settled its task itself; `answer` is the store's answer."""

    answer: UnitAnswer


class BatchOptions(msgspec.Struct, frozen=True):
    """How a batch handler collects tasks."""

    size: int
    within_for: int
    """Maximum wait for more tasks, in milliseconds."""
    key: str | None
    """The field of the payload that is the same in one batch."""
    concurrency: int
    """Maximum number of concurrent calls in one process."""


class RegisteredHandler(msgspec.Struct, frozen=True):
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
    limits: tuple[Limit, ...] = ()
    """The limits of its tasks that this process enqueues without a key of their own."""
    executes: Callable[..., Awaitable[Any]] | None = None
    """For specialists: executes the task with (ctx, executor, handler) instead of `call`."""
    scopes: tuple[str, ...] | None = None
    """For specialists: the scopes that they serve here; None: all."""
    cancels: RegisteredHandler | None = None
    """For specialists: the handler of tasks that cancel jobs at the external service."""
    signature: Signature | None = None
    """The arguments and the result of the user's code; None for code of the engine. Of a batch handler: those for one task."""
    batch: BatchOptions | None = None


class HandlerOptions(TypedDict, total=False):
    """Options of a handler, as `Engine.handler` documents them."""

    retry: RetryPolicy | int | None
    timeout: Duration | None
    progress_every: Duration | None
    concurrency: int | None
    isolation: Isolation | None
    limit_key: str | None
    limits: Sequence[Limit]


class BatchHandlerOptions(HandlerOptions, total=False):
    """Further options of a batch handler."""

    within: Duration
    key: str | None


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
    limits: Sequence[Limit] = (),
    batch: int | None = None,
    within: Duration | None = None,
    key: str | None = None,
    kind: Kind = "raw",
) -> RegisteredHandler:
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
    policy = as_policy(retry, stored=False) or NO_RETRY
    if isinstance(policy, PolicyWithCode) and chosen == "process":
        raise InvalidPolicy(f"The handler {name} runs in a process, so its exceptions cannot reach should_retry; use on and never.")
    limits = check_limits(name, limits, limit_key)
    limit_key = next((limit.name for limit in limits if limit.by is None), limit_key)
    batching: dict[str, Any] = {}
    if batch is None:
        if within is not None or key is not None:
            raise InvalidPolicy(
                f"The handler {name} has within= or key=, which belong to batch=: the maximum number of tasks in a batch."
            )
        signature = signature_of(name, call, kind)
        code, arguments = adapted(signature, call, kind), 2 if signature.is_typed else signature.arguments
    else:
        if chosen == "process" or kind != "handler":
            raise InvalidPolicy(f"The batch handler {name} must be a handler that is async or runs in a thread.")
        signature, arguments = batch_signature_of(name, call)
        code, batching = call, _batching(batch, within, key, concurrency)
    return RegisteredHandler(
        name,
        code,
        arguments,
        chosen,
        policy,
        None if timeout is None else milliseconds(timeout, "timeout", positive=True),
        None if progress_every is None else milliseconds(progress_every, "progress_every", positive=True),
        concurrency,
        None if limit_key is None else check_key(limit_key, "limit key"),
        limits,
        signature=signature,
        **batching,
    )


def _batching(size: int, within: Duration | None, key: str | None, concurrency: int | None) -> dict[str, Any]:
    from treadle.workers.batches import Batches  # most workers have no batch handlers

    if type(size) is not int or not 1 <= size <= MAX_BATCH:
        raise InvalidPolicy(f"batch must be a number of tasks from 1 to {MAX_BATCH:,}, not {shown(size)}.")
    if key is not None and not isinstance(key, str):
        raise InvalidPolicy(f"key must be the name of a field of the payload, not {shown(key)}.")
    within_for = 0 if within is None else milliseconds(within, "within")
    return {"batch": BatchOptions(size, within_for, key, concurrency or BATCH_CALLS), "executes": Batches().execute}


class Registry:
    """The handlers of a process, found by exact name or by the short name after the last dot."""

    def __init__(self, baggage: Baggage = NO_BAGGAGE) -> None:
        self._handlers: dict[str, RegisteredHandler] = {}
        self.specialists: dict[str, Specialists] = {}
        """The handlers that are specialists, by name."""
        self.dependencies = Dependencies()
        """Objects that are injected into handlers, functions and steps, and hooks of workers."""
        self.around: dict[str, list[Callable[[Any, Any], Awaitable[Any]]]] = {}
        """Methods of interceptors by name, the outermost first."""
        self.baggage = baggage
        self.fallback: Fallback | None = None
        self.catch_all: RegisteredHandler | None = None
        """Serves names without a handler: see `treadle.llm.use_llm`."""
        self.limits_of_run: Callable[[str, Mapping[str, Any]], dict[str, TaskLimit]] = lambda name, payload: {}
        """Returns the limit keys of a run, by the name of the queue of its function."""

    def put(self, handler: RegisteredHandler) -> None:
        """Add the handler, or replace the one of that name."""
        self._handlers[handler.name] = handler

    def add(self, handler: RegisteredHandler) -> None:
        """Add the handler; a second one of the same name raises `Refused` (`handler_exists`)."""
        if handler.name in self._handlers:
            raise Refused(
                f"There is already a handler for {handler.name}; each name has one handler in a process.", code="handler_exists"
            )
        self._handlers[handler.name] = handler

    def find(self, name: str) -> RegisteredHandler | None:
        """Return the handler for tasks of that name."""
        return self._handlers.get(name) or self._handlers.get(short_name(name))

    def limits_for(self, name: str, payload: Mapping[str, Any]) -> dict[str, TaskLimit]:
        """Return the limit keys of a task by the limits of its handler or function here, each with the limit that the task sets."""
        handler = self.find(name)
        if handler is None:
            return self.limits_of_run(name, payload)
        return keys_of(handler.limits, payload) if handler.limits else {}

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        return sorted(self._handlers)

    def offers(self) -> list[str]:
        """Return the specialists with their scopes: `NAME@SCOPE`, or `NAME@` for all scopes."""
        return [offer for name in sorted(self.specialists) for offer in self.specialists[name].offers]

    def __iter__(self) -> Iterator[RegisteredHandler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)


class Fallback(Protocol):
    """Handlers for names without a registered handler, such as those of prompts."""

    async def prepare(self, names: Sequence[str]) -> None:
        """Prepare handlers for names of queues without one; called each time the worker reads the queues."""

    def find(self, name: str) -> RegisteredHandler | None:
        """Return the handler for tasks of that name, if this fallback serves them."""

    def names(self) -> list[str]:
        """Return the names known to be served."""


class CatchAll:
    """The fallback that handles every name that no live worker serves, with one handler (`@engine.handler("*")`)."""

    def __init__(
        self, handler: RegisteredHandler, inner: Fallback | None, list_served: Callable[[], Awaitable[Collection[str]]]
    ) -> None:
        """`inner` comes first; `list_served` returns the handlers of live workers."""
        self._handler, self._inner, self._list_served = handler, inner, list_served
        self._unserved: frozenset[str] = frozenset()

    async def prepare(self, names: Sequence[str]) -> None:
        if self._inner is not None:
            await self._inner.prepare(names)
        served = await self._list_served()
        self._unserved = frozenset(name for name in names if not handles(served, name))

    def find(self, name: str) -> RegisteredHandler | None:
        handler = None if self._inner is None else self._inner.find(name)
        return msgspec.structs.replace(self._handler, name=name) if handler is None and name in self._unserved else handler

    def names(self) -> list[str]:
        """Return the names of the inner fallback: other workers serve the rest first."""
        return [] if self._inner is None else self._inner.names()


class Catalog(msgspec.Struct):
    """All handlers that a worker can run: registered by users, fallbacks, functions, and the engine's own by kind."""

    registry: Registry
    fallback: Fallback | None = None
    find_function: Callable[[str], RegisteredHandler | None] = lambda queue_name: None
    builtins: Mapping[str, RegisteredHandler] = msgspec.field(default_factory=dict)
    find_role: Callable[[str, str], RegisteredHandler | None] = lambda kind, name: None
    """Returns the goal pipeline's handler for a kind and name."""

    def find(self, kind: str, name: str) -> RegisteredHandler | None:
        """Return the handler for tasks of a queue: a user's by name, or the engine's own by kind."""
        if kind == EXTERNAL_CANCEL:
            specialist = self.registry.find(name)
            return None if specialist is None else specialist.cancels
        if kind == HANDLER:
            return self.registry.find(name) or (self.fallback.find(name) if self.fallback is not None else None)
        if kind == FUNCTION:
            return self.find_function(name)
        return self.builtins.get(kind) or self.find_role(kind, name)


class Holder(Protocol):
    """An attempt, or a run in this process, whose claim changes each time that it continues."""

    task: Task
    token: Claim


holder: ContextVar[Holder | None] = ContextVar("treadle_holder", default=None)
"""The holder that this code runs for; copied into tasks and threads that it starts, None outside of held work."""

_flagging = threading.Lock()
"""Guards the creation of a context's cancellation flag, which most attempts never need."""


class Context:
    """One attempt at a task, as its handler sees it."""

    __slots__ = (
        "_cancelled",
        "_effect_kernel",
        "_effects",
        "_now",
        "_on_line",
        "_on_progress",
        "_streams",
        "before_renewal",
        "callback_token",
        "dispatch_token",
        "external_jobs",
        "on_stream",
        "on_tags",
        "produced",
        "progress_text",
        "progressed",
        "tags",
        "task",
        "token",
    )

    def __init__(
        self,
        task: Task,
        now: Callable[[], int],
        on_line: Callable[[LogLine], None],
        on_progress: Callable[[str], None] | None = None,
        effects: EffectKernel | None = None,
        external_jobs: ExternalJobs | None = None,
    ) -> None:
        self.task = task
        self.token: Claim = task.claim
        self._now = now
        self._on_line = on_line
        self._on_progress = on_progress
        self._effect_kernel = effects
        self._effects: AttemptEffects | None = None
        self._streams: Streams | None = None
        self.on_stream: Callable[[str, str | None], None] | None = None
        """Receives the entries of streams (name and JSON) where this process does not hold the claim."""
        self._cancelled: threading.Event | None = None
        self.progressed = False
        self.progress_text: str | None = None
        self.tags: dict[str, str] = {}
        """Tags to store with the end of the attempt, in stored form."""
        self.on_tags: Callable[[dict[str, str]], None] | None = None
        """Receives all tags after each change."""
        self.before_renewal: Callable[[], None] | None = None
        """Called by the lease renewer, in its thread, before it looks for progress."""
        self.external_jobs = external_jobs
        self.dispatch_token: str | None = None
        """For specialists: the token of the submission. Pass it to the service; after a crash `find` looks it up."""
        self.callback_token: str | None = None
        """For specialists: the token with which the service can resolve the job through a callback, without polling."""
        self.produced: list[Production] = []

    def standing_in(self, task: Task) -> Context:
        """Return a context for another handler that runs that task within this attempt: its reports and effects are ours."""
        context = Context(task, self._now, self._on_line, self.note_progress)
        context.tags = self.tags
        if self._effect_kernel is not None:
            context._effects = self._own_effects()
            context.on_stream = self.add_entry
        return context

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def task_name(self) -> str:
        """The task's name, which a handler of several names (`@engine.handler("*")`) needs."""
        return self.task.name

    @property
    def attempt(self) -> int:
        """The number of this execution, from 1."""
        return self.task.attempt

    @property
    def fencing_token(self) -> int:
        """Rises with each claim of the task. Pass it to external systems that can refuse an older token."""
        return self.task.claim_version

    @property
    def deadline_at(self) -> int | None:
        """The task's deadline (ms since 1970), or None."""
        return self.task.deadline_at

    @property
    def checkpoint(self) -> Json:
        """The value that this handler stored with `Waiting(..., checkpoint=...)` or `AwaitingApproval(...)`, or None."""
        return split_checkpoint(decode(self.task.checkpoint))[1]

    @property
    def approval_decisions(self) -> list[dict[str, Json]]:
        """The approvals of this task so far, oldest first, each in the form of `approval_decision`."""
        return split_checkpoint(decode(self.task.checkpoint))[0]

    @property
    def approval_decision(self) -> dict[str, Json] | None:
        """The last approval, when a handler that returned `AwaitingApproval` is called again; otherwise None.

        `by`, `at` and `reason` are the decider, the time and the reason; `context` is the approved context, and `edited` is
        true if the decider changed it. A denial fails the task, so a handler never sees one.
        """
        decisions = self.approval_decisions
        return decisions[-1] if decisions else None

    @property
    def callback_url(self) -> str | None:
        """For specialists: the URL for the service's callback, including the token. None without `TREADLE_PUBLIC_URL`."""
        if self.callback_token is None or self.external_jobs is None:
            return None
        return self.external_jobs.callback_url(self.callback_token)

    @property
    def cancelled(self) -> bool:
        """Whether the work should stop: canceled, lease lost, timed out or shutting down. Sync handlers must check it."""
        return self._cancelled is not None and self._cancelled.is_set()

    def cancel(self) -> None:
        """Set `cancelled`."""
        self._flag().set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep up to `seconds` in a sync handler, or until it should stop; return whether it should."""
        return self._flag().wait(seconds)

    def _flag(self) -> threading.Event:
        with _flagging:
            if self._cancelled is None:
                self._cancelled = threading.Event()
            return self._cancelled

    # effects

    def effect(
        self,
        action: str,
        call: Callable[[], Any],
        request: Json = None,
        *,
        key: str | None = None,
        unknown: tuple[type[BaseException], ...] = (),
        on_unknown: Literal["fail", "repeat"] = "repeat",
    ) -> Coroutine[Any, Any, Any]:
        """Call `call()` once over all attempts at this task, as far as can be known, and return its response. Await it.

        The response (JSON) is stored before the task settles; a later attempt that gets here receives the stored response
        without a call. `action` and `request` (JSON, the same in each attempt) identify the effect; pass a `key` if the request
        differs between attempts. Two identical effects in one attempt are two effects.

        Exceptions of `call` propagate. Only `EffectFailed`, `NonRetryable` and errors of HTTP clients with a status below 500
        mean that the effect did not happen (unless their type is in `unknown`). If the outcome of an earlier attempt is
        unknown, the next one calls again, with the same `idempotency_key`, and the log records `tool_call.unknown`.
        With `on_unknown="fail"` it raises `EffectUnknown` instead, until an operator retries the task.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NonRetryable(
                "ctx.effect(...) is for async handlers; use ctx.effect_blocking(...) in sync handlers.", "effect_unavailable"
            ) from None
        effects = self._own_effects()
        code = effects.perform(action, call, request, key, unknown, on_unknown)
        effects.created.append((code, action))
        return code

    def _check_awaited(self) -> None:
        """Raise `NonRetryable` if the handler has returned without awaiting an effect."""
        if self._effects is not None:
            self._effects.check_awaited()

    def effect_blocking(
        self,
        action: str,
        call: Callable[[], Any],
        request: Json = None,
        *,
        key: str | None = None,
        unknown: tuple[type[BaseException], ...] = (),
        on_unknown: Literal["fail", "repeat"] = "repeat",
    ) -> Any:
        """`effect` for sync handlers: `call` runs in the handler's thread.

        `action`, `request`, `key`, `unknown` and `on_unknown` are those of `effect`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._own_effects().perform_blocking(action, call, request, key, unknown, on_unknown)
        raise NonRetryable(
            "ctx.effect_blocking(...) is for sync handlers; await ctx.effect(...) in async handlers.", "effect_unavailable"
        )

    # streams

    def stream(self, name: str) -> StreamWriter:
        """Return the stream of that name, for readers that follow the work: `ctx.stream("tokens").write("Hello")`.

        It belongs to the task's run, or to the task if it has none. If this attempt is abandoned, the next one begins a new
        generation of the entries, and readers are notified.
        """
        writer = StreamWriter(name, self.add_entry, self.flush_streams)
        self.add_entry(name, None)
        return writer

    def add_entry(self, name: str, text: str | None) -> None:
        """Append an entry (as JSON) to a stream; None only opens it."""
        if self.on_stream is not None:
            return self.on_stream(name, text)
        if self._streams is None:
            token = self.token
            self._streams = Streams(Outlet(self.stream_kernel, self.task, lambda: token), self.task.id, str(token.version))
        return self._streams.add(name, text)

    async def flush_streams(self) -> None:
        """Wait until all entries of streams are stored, where this process holds the claim."""
        if self._streams is not None:
            await self._streams.outlet.flush()

    @property
    def has_streams(self) -> bool:
        """Whether the attempt has opened a stream."""
        return self._streams is not None

    async def close_streams(self, *, continues: bool = False) -> tuple[Row, ...]:
        """Return the rows of entries that are not stored yet, to commit with the end of the attempt."""
        assert self._streams is not None
        return await self._streams.outlet.close(self._streams, continues=continues)

    def drop_streams(self) -> None:
        """Forget entries that are not stored: the attempt is over."""
        if self._streams is not None:
            self._streams.outlet.drop()

    @property
    def can_stream(self) -> bool:
        """Whether streams are available here."""
        return self.on_stream is not None or (self._effect_kernel is not None and self._effect_kernel.loop is not None)

    @property
    def stream_kernel(self) -> EffectKernel:
        """The services that streams use; raises `NonRetryable` where there are none."""
        if self._effect_kernel is None or self._effect_kernel.loop is None:
            raise NonRetryable("Streams are not available here: they need a worker of an engine.", "stream_unavailable")
        return self._effect_kernel

    @property
    def idempotency_key(self) -> str:
        """The key of the effect in progress, the same for all attempts: pass it to services that deduplicate.

        Available only inside the function given to `effect`, like the other keys.
        """
        return current_keys().idempotency_key

    @property
    def dedupe_key(self) -> str:
        """The same as `idempotency_key`."""
        return current_keys().idempotency_key

    @property
    def attempt_key(self) -> str:
        """The key of this attempt at the effect in progress, under which its outcome is recorded."""
        return current_keys().attempt_key

    def _own_effects(self) -> AttemptEffects:
        if self._effects is not None:
            return self._effects
        if self._effect_kernel is None:
            raise NonRetryable(
                "Effects are not available here: they need a worker of an engine, and a handler that runs in its process "
                "(async or in a thread, not isolation='process').",
                "effect_unavailable",
            )
        self._effects = AttemptEffects(self._effect_kernel, self.task, self.token)
        return self._effects

    def append_produced(self, production: Production | dict[str, Json]) -> Production:
        """For specialists: add a production of the job, and return it. It is stored when the task ends, or not at all."""
        added = Production(production) if isinstance(production, dict) else production
        if not any(production is added for production in self.produced):
            self.produced.append(added)
        return added

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Report progress: resets the progress deadline, and stores a `fraction` (0 to 1) and a `message` for display.

        Cheap: stored at most about once a second, with the lease renewal. A fraction outside the range is clamped to 0 or 1,
        so that reporting progress never fails the work.
        """
        text = progress_text(fraction, message)
        if self._on_progress is not None:
            self._on_progress(text)
        self.note_progress(text)

    def note_progress(self, text: str) -> None:
        """Note progress (as JSON text); the lease renewer stores it."""
        self.progress_text = text
        self.progressed = True

    def tag(self, tags: Tags | None = None, /, **more: TagValue) -> None:
        """Set search attributes of this task, and of its run if it has one: `ctx.tag(customer="acme")`.

        Pass them by name, or as a mapping `tags`; `more` wins. They are stored when the attempt ends, with any outcome, under its
        claim; a lost attempt stores none.
        """
        self.tags.update(check_tags({**(tags or {}), **more}))
        if self.on_tags is not None:
            self.on_tags(self.tags)

    def log(self, message: str, level: str = "info", **details: Json) -> None:
        """Write a log line about this task: a `message`, a `level` and any JSON `details`.

        It is stored with the task within about a second, and is not fenced by the claim.
        """
        self.add_line(log_line(self.task, self._now(), message, level, details))

    def add_line(self, line: LogLine) -> None:
        """Write a complete log line."""
        self._on_line(line)
