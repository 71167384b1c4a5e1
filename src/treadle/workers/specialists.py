"""Specialists: handlers for external services, by name and scope."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from treadle.kernel.external.decide import copy_of, problem_of, unregistered_text
from treadle.kernel.external.service import CANCEL_RETRY, ExternalJobs, Intent
from treadle.kernel.store.process import failpoint
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import ClaimLost, InvalidInput, InvalidPolicy, NotFound, Refused, StoreError
from treadle.model.external import (
    FATE_UNKNOWN,
    LOST,
    OUTCOME_UNKNOWN,
    UNEXPECTED_POLL,
    UNREGISTERED,
    ExternalJobLost,
    ExternalProductionFailure,
    ExternalProductionHandle,
    InvalidHandle,
    Production,
    UnexpectedSpecialistResultError,
    check_handle,
)
from treadle.model.names import check_key, check_name
from treadle.model.outcomes import AwaitingExternal, Failed, Outcome, Problem, Produced, Released, StillWorking, Waiting
from treadle.model.states import TaskState
from treadle.model.values import Json, decode, error_text, shown, text_of, type_name
from treadle.workers.call import origin, stops_caller
from treadle.workers.context import Context, Isolation, RegisteredHandler, Registry

if TYPE_CHECKING:
    from treadle.workers.call import Executor


CALL_TIMEOUT = 60
"""Default timeout of one `start` or `poll`, in seconds."""
CONCURRENCY = 32
"""Default number of concurrent calls to one service per process, so that a service that hangs leaves room for others."""

_ALIASES = {"start": "produce_render", "poll": "poll_external_work"}


class Specialist:
    """A base class for specialists, which documents their methods. Any object with these methods is a specialist.

    Methods are sync or async, and may omit `ctx`. `find` and `cancel` are optional; so is `poll` if `start` never returns a
    handle.
    """

    idempotent_start = False
    """Whether the service creates only one job for two submissions with the same `ctx.dispatch_token`."""

    def start(self, payload: dict[str, Any], ctx: Context) -> Any:
        """Submit the job. Returns

        - an `ExternalProductionHandle`: the job is running; poll it after the handle's interval,
        - a `Production` (or a dict, which is converted to one): the work is done,
        - an `ExternalProductionFailure`, or None: the job failed.

        An exception fails the task. Pass `ctx.dispatch_token` to the service: after a crash, `find` looks the job up by it.
        """
        raise NotImplementedError("A specialist has a method start(payload, ctx).")

    def poll(self, external_job_id: str, ctx: Context) -> Any:
        """Read the state of the job. Returns a handle (its interval and hint may change), a `Production` or a dict, or an
        `ExternalProductionFailure`. An exception does not fail the job: the next poll follows after the interval. But
        `ExternalJobLost` means that the service no longer knows the job.

        IDEMPOTENCE CONTRACT. After a restart, `poll` may be called again for the same `external_job_id`, even if an earlier call
        was in flight when its process died. It must tolerate being asked the same question twice: treat each call as a read of
        the service that does not change it. If `poll` has side effects nevertheless (such as downloading a result), make them
        idempotent, for instance by checking whether the file already exists.
        """
        raise NotImplementedError("This specialist does not support polling: write poll(external_job_id, ctx) to return handles.")


class RenderSpecialist(Specialist):
    """A specialist with the method names and keyword arguments of the document of external-service polling."""

    async def produce_render(
        self, *, job_id: str, engagement_id: str | None, confirmed_shape_event_ref: Any, triggered_by: Any, trigger: Any, db: Any
    ) -> Any:
        """Submit the job; the same as `start`. `db` is the context, `engagement_id` the scope; the other arguments are fields of
        the payload."""
        raise NotImplementedError("A render specialist has a method produce_render(*, job_id, ...).")

    async def poll_external_work(self, *, render_job_id: str, engagement_id: str | None, external_job_id: str, db: Any) -> Any:
        """Read the state of the job; the same as `poll`.

        IDEMPOTENCE CONTRACT. It may be called again for the same `external_job_id` after a restart, even if an earlier call was in
        flight when its process died: treat each call as a read of the service that does not change it.
        """
        raise NotImplementedError(
            "Specialist does not support external polling. Override poll_external_work if produce_render returns "
            "ExternalProductionHandle."
        )


def _read_methods(name: str, specialist: object, *, idempotent_start: bool | None, deadline: Duration | None) -> SpecialistMethods:
    """Return the validated methods of a specialist; a class is instantiated."""
    check_name(name)
    instance = specialist() if inspect.isclass(specialist) else specialist
    start = _method(instance, "start")
    if start is None:
        raise InvalidInput(f"The specialist {name} has no method start(payload, ctx), nor produce_render(...).")
    return SpecialistMethods(
        name,
        start,
        _method(instance, "poll"),
        _method(instance, "find"),
        _method(instance, "cancel"),
        type(instance).__qualname__,
        bool(getattr(instance, "idempotent_start", False)) if idempotent_start is None else idempotent_start,
        None if deadline is None else milliseconds(deadline, "deadline", positive=True),
    )


def _method(instance: object, name: str) -> Callable[..., Any] | None:
    """Return the method by its name or alias; one inherited from the base classes here does not count."""
    for method_name in (name, _ALIASES.get(name, name)):
        method: Callable[..., Any] | None = getattr(instance, method_name, None)
        if callable(method) and getattr(method, "__func__", None) is not getattr(RenderSpecialist, method_name, 0):
            return method
    return None


class Specialists:
    """The specialists of one name, by scope; one without a scope serves all other scopes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_scope: dict[str | None, SpecialistMethods] = {}

    def add(self, scope: str | None, methods: SpecialistMethods) -> None:
        """Add a specialist; a second one for the same scope raises `Refused` (`handler_exists`)."""
        if scope is not None:
            check_key(scope, "scope")
        if scope in self._by_scope:
            of = "" if scope is None else f" in the scope {scope}"
            raise Refused(
                f"There is already a specialist for {self.name}{of}; each name and scope has one in a process.",
                code="handler_exists",
            )
        self._by_scope[scope] = methods

    def find(self, scope: str | None) -> SpecialistMethods | None:
        """Return the specialist for tasks of that scope."""
        return self._by_scope.get(scope) or self._by_scope.get(None)

    @property
    def offers(self) -> list[str]:
        """The entries in a server's list of handlers: `NAME@SCOPE`, or `NAME@` for all scopes."""
        return [f"{self.name}@{scope or ''}" for scope in self._by_scope]

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """The scopes that they serve; None: all."""
        return None if None in self._by_scope else tuple(scope for scope in self._by_scope if scope is not None)

    @property
    def is_async(self) -> bool:
        """Whether none of them needs a thread."""
        return all(methods.is_async for methods in self._by_scope.values())

    async def execute(self, ctx: Context, executor: Executor, handler: RegisteredHandler) -> Outcome:
        """Submit or poll the task's job. Raises only `CancelledError`."""
        external_jobs = ctx.external_jobs
        if external_jobs is None:
            return Failed(Problem("specialist_unavailable", "Specialists need a worker of an engine, in its own process."))
        methods = self.find(ctx.task.scope)
        call = MethodCaller(ctx, executor, handler)
        try:
            if methods is None:
                return await self._unserved(ctx, external_jobs)
            if ctx.task.state == TaskState.AWAITING_EXTERNAL:
                return await poll_job(methods, ctx, external_jobs, call)
            return await start_job(methods, ctx, external_jobs, call)
        except NotFound as error:  # the record of the job is gone: it cannot be polled, now or later
            return Failed(Problem(LOST, f"The record of the external job is gone: {error}"))
        except ClaimLost:
            return Released("the claim was lost")
        except StoreError as error:  # of our own calls: errors of the specialist are handled at its call
            return Released(f"the store could not be read: {error}")

    async def _unserved(self, ctx: Context, external_jobs: ExternalJobs) -> Outcome:
        """Return the outcome for a task of a scope without a specialist here."""
        if ctx.task.state != TaskState.AWAITING_EXTERNAL or await external_jobs.is_offered(ctx.task):
            pending = ctx.task.state == TaskState.PENDING
            return Waiting(RETRY_FOR) if pending else Released("its scope is not served here", RETRY_FOR)
        return Failed(Problem(UNREGISTERED, unregistered_text(ctx.task.name, ctx.task.scope)))

    async def cancel(self, ctx: Context, executor: Executor, handler: RegisteredHandler) -> Outcome | dict[str, Json]:
        """Cancel a job at its service."""
        methods = self.find(ctx.task.scope)
        return Waiting(RETRY_FOR) if methods is None else await cancel_job(methods, ctx, MethodCaller(ctx, executor, handler))


class SpecialistOptions(TypedDict, total=False):
    """Options of a specialist, as `Engine.specialist` documents them."""

    scope: str | None
    timeout: Duration | None
    concurrency: int
    deadline: Duration | None
    idempotent_start: bool | None


def register(
    registry: Registry,
    name: str,
    given: object,
    *,
    scope: str | None = None,
    timeout: Duration | None = CALL_TIMEOUT,
    concurrency: int = CONCURRENCY,
    deadline: Duration | None = None,
    idempotent_start: bool | None = None,
) -> None:
    """Register a specialist as the handler for tasks of its name, or add another scope to a name."""
    methods = _read_methods(name, given, idempotent_start=idempotent_start, deadline=deadline)
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidPolicy(f"concurrency must be 1 or more, not {shown(concurrency)}.")
    timeout_for = None if timeout is None else milliseconds(timeout, "timeout", positive=True)
    existing = registry.specialists.get(name)
    specialists = existing or Specialists(name)
    specialists.add(scope, methods)
    isolation: Isolation = "loop" if specialists.is_async else "thread"
    cancels = RegisteredHandler(
        name,
        methods.start,
        0,
        isolation,
        CANCEL_RETRY,
        timeout_for,
        concurrency=concurrency,
        executes=specialists.cancel,
        scopes=specialists.scopes,
    )
    handler = RegisteredHandler(
        name,
        methods.start,
        0,
        isolation,
        timeout_for=timeout_for,
        concurrency=concurrency,
        executes=specialists.execute,
        scopes=specialists.scopes,
        cancels=cancels,
    )
    if existing is None:
        registry.add(handler)
        registry.specialists[name] = specialists
    else:
        registry.put(handler)


RETRY_FOR = 30_000
"""Milliseconds until the next attempt to find a job at its service, or a worker that serves its scope."""

_START_KEYWORDS = ("payload", "ctx", "job_id", "engagement_id", "confirmed_shape_event_ref", "triggered_by", "trigger", "db")
_POLL_KEYWORDS = ("external_job_id", "ctx", "render_job_id", "job_id", "engagement_id", "payload", "db")
_FIND_KEYWORDS = ("token", "ctx", "job_id", "engagement_id", "payload", "db")


@dataclass(frozen=True, slots=True)
class SpecialistMethods:
    """The methods of a registered specialist, and its options."""

    name: str
    start: Callable[..., Any]
    poll: Callable[..., Any] | None
    find: Callable[..., Any] | None
    cancel: Callable[..., Any] | None
    specialist: str
    """The name of its class."""
    idempotent_start: bool
    deadline_for: int | None

    def __post_init__(self) -> None:
        checked = ((self.start, _START_KEYWORDS), (self.poll, _POLL_KEYWORDS), (self.find, _FIND_KEYWORDS))
        for method, keywords in (*checked, (self.cancel, _POLL_KEYWORDS)):
            if method is not None:
                self._check_keywords(method, keywords)

    def _check_keywords(self, method: Callable[..., Any], allowed: tuple[str, ...]) -> None:
        for parameter in _keyword_only(method):
            if parameter.default is inspect.Parameter.empty and parameter.name not in allowed:
                raise InvalidInput(
                    f"The specialist {self.name} has a parameter {parameter.name!r} in {method.__name__}; "
                    f"available are {', '.join(allowed)}."
                )

    @property
    def is_async(self) -> bool:
        """Whether none of the methods needs a thread."""
        methods = [method for method in (self.start, self.poll, self.find, self.cancel) if method is not None]
        return all(inspect.iscoroutinefunction(method) for method in methods)


class MethodCaller:
    """Calls methods of a specialist in one attempt: async ones on the event loop, sync ones in a thread."""

    def __init__(self, ctx: Context, executor: Executor, handler: RegisteredHandler) -> None:
        self._ctx, self._executor, self._handler = ctx, executor, handler

    async def __call__(self, method: Callable[..., Any], first: Any, **named: Any) -> Any:
        """Call the method with (first, ctx), or with the keyword-only parameters that it declares."""
        ctx = self._ctx
        if wanted := _keyword_only(method):
            values = _keyword_values(ctx) | named
            bound = partial(method, **{parameter.name: values[parameter.name] for parameter in wanted if parameter.name in values})
        else:
            bound = partial(method, *(first, ctx)[: _positional_count(method)])
        if inspect.iscoroutinefunction(method):
            return await bound()
        returned = await self._executor.in_thread(msgspec.structs.replace(self._handler, call=bound), ())
        return await returned if inspect.isawaitable(returned) else returned


def _keyword_only(method: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(method).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def _positional_count(method: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return 2
    return sum(parameter.kind in kinds for parameter in parameters)


def _keyword_values(ctx: Context) -> dict[str, Any]:
    task = ctx.task
    payload = decode(task.payload)
    return {
        "payload": payload,
        "ctx": ctx,
        "db": ctx,
        "job_id": task.id,
        "render_job_id": task.id,
        "engagement_id": task.scope,
        "confirmed_shape_event_ref": payload.get("confirmed_shape_event_ref"),
        "triggered_by": payload.get("triggered_by"),
        "trigger": payload.get("trigger"),
    }


# start


async def start_job(methods: SpecialistMethods, ctx: Context, external_jobs: ExternalJobs, call: MethodCaller) -> Outcome:
    """Submit the job, or find the one that an earlier attempt submitted."""
    intent = await external_jobs.begin(ctx.task, ctx.token)
    ctx.dispatch_token, ctx.callback_token = intent.token, intent.callback
    if intent.again:
        outcome = await _reattach(methods, ctx, call, intent)
        if outcome is not None:
            return outcome
        intent = await external_jobs.begin_anew(
            ctx.task, ctx.token, msgspec.structs.replace(intent, asked=methods.find is not None)
        )
        ctx.dispatch_token, ctx.callback_token = intent.token, intent.callback
    payload = decode(ctx.task.payload)
    try:
        returned = await call(methods.start, payload, payload=payload)
    except ClaimLost:
        raise
    except BaseException as error:
        if stops_caller(error):
            raise
        error = origin(error)
        return Failed(Problem("specialist_raised", f"specialist raised: {error_text(error)}", type_name(error)))
    failpoint("external.after_start")
    outcome = _started(methods, ctx, returned, intent.token)
    if isinstance(outcome, Failed) and outcome.problem.code not in FATE_UNKNOWN:
        await external_jobs.resolve_submission(ctx.task, ctx.token)
    return outcome


async def _reattach(methods: SpecialistMethods, ctx: Context, call: MethodCaller, intent: Intent) -> Outcome | None:
    """Find the job that an earlier attempt may have submitted, or fail if that is impossible. None: submit it now.

    An operator who retries a task has checked a service that cannot find jobs.
    """
    if methods.find is None and (intent.retried or methods.idempotent_start):
        return None
    if methods.find is None:
        return Failed(
            Problem(
                OUTCOME_UNKNOWN,
                f"A worker was lost while it submitted the job, and the specialist {methods.name} cannot find it (it has no method "
                "find(token)), so the service may or may not have the job. Check the service, then retry or cancel the task.",
            )
        )
    try:
        job = await call(methods.find, intent.token, token=intent.token)
    except BaseException as error:
        if stops_caller(error):
            raise
        ctx.log(f"The service did not report whether it has the job: {error_text(error)}", "warning")
        return Waiting(RETRY_FOR)
    return None if job is None else _started(methods, ctx, job, intent.token, reattached=True)


def _started(methods: SpecialistMethods, ctx: Context, returned: Any, token: str, *, reattached: bool = False) -> Outcome:
    """Return the outcome for the result of `start` or `find`."""
    try:
        match returned:
            case Production() | dict():
                return _produced(ctx, returned)
            case ExternalProductionHandle():
                if methods.poll is None:
                    message = f"The specialist {methods.name} returned a handle, but has no method poll(external_job_id, ctx)."
                    return Failed(Problem("poll_not_supported", message))
                return AwaitingExternal(check_handle(returned), token, methods.specialist, methods.deadline_for, reattached)
            case ExternalProductionFailure():
                return Failed(problem_of(returned))
            case None:
                return Failed(Problem("specialist_failed", f"The specialist {methods.name} returned None: it could not start."))
            case _:
                raise UnexpectedSpecialistResultError(
                    f"The specialist's start returned unexpected type {type_name(returned)}; expected a Production, a dict, "
                    "ExternalProductionHandle, ExternalProductionFailure or None."
                )
    except InvalidHandle as error:
        return Failed(Problem(error.reason, str(error), type(error).__name__))
    except (UnexpectedSpecialistResultError, InvalidInput) as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))
    except Exception as error:  # attributes of the returned object may raise anything
        return Failed(_unreadable(returned, error))


def _unreadable(returned: object, error: Exception) -> Problem:
    message = f"The specialist returned a {type_name(returned)} that cannot be read: {error_text(error)}"
    return Problem(UnexpectedSpecialistResultError.code, message, type_name(error))


def _produced(ctx: Context, returned: Production | dict[str, Json]) -> Outcome:
    """Return all appended productions; the returned one comes last, whether or not it was appended.

    Each is a copy, so that a specialist may return one object for several tasks.
    """
    productions = (*(production for production in ctx.produced if production is not returned), returned)
    return Produced(tuple(copy_of(production) for production in productions))


# poll


async def poll_job(methods: SpecialistMethods, ctx: Context, external_jobs: ExternalJobs, call: MethodCaller) -> Outcome:
    """Poll the job; an error of the poll does not fail it."""
    record = await external_jobs.open(ctx.task)
    ctx.dispatch_token, ctx.callback_token = record.token, external_jobs.callback_of(ctx.task)
    if record.deadline_at is not None and record.deadline_at <= (ctx.task.claimed_at or 0):
        return Failed(Problem("deadline_exceeded", "The job's deadline passed before its service finished it."))
    if methods.poll is None:
        return Failed(Problem("poll_not_supported", f"The specialist {methods.name} has no method poll(external_job_id, ctx)."))
    job_id = record.external_job_id
    external_jobs.count_poll(ctx.task)
    try:
        returned = await call(methods.poll, job_id, external_job_id=job_id)
        failpoint("external.after_poll")
    except ExternalJobLost as error:
        return Failed(Problem(LOST, text_of(error) or f"The service no longer knows the job {job_id}."))
    except UnexpectedSpecialistResultError as error:
        return Failed(Problem(UNEXPECTED_POLL, error_text(error), type_name(error)))
    except BaseException as error:
        if stops_caller(error):
            raise
        text, kind = text_of(error), type_name(error)
        return StillWorking(None, f"{kind}: {text}" if text else kind)
    try:
        return _polled(ctx, returned)
    except UnexpectedSpecialistResultError as error:
        return Failed(Problem(UNEXPECTED_POLL, str(error), type(error).__name__))
    except InvalidHandle as error:
        if isinstance(returned, ExternalProductionFailure):  # the service is done with the job
            return Failed(Problem(error.reason, f"{text_of(returned.failure_detail)} ({error})", type(error).__name__))
        return StillWorking(None, f"{error.reason}: {error}")
    except InvalidInput as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))
    except Exception as error:  # attributes of the returned object may raise anything
        return Failed(_unreadable(returned, error))


def _polled(ctx: Context, returned: Any) -> Outcome:
    match returned:
        case Production() | dict():
            return _produced(ctx, returned)
        case ExternalProductionHandle():
            return StillWorking(check_handle(returned))
        case ExternalProductionFailure():
            return Failed(problem_of(returned))
        case _:
            raise UnexpectedSpecialistResultError(
                f"Specialist returned unexpected type {type_name(returned)}; expected a Production (RenderEvent), a dict, "
                "ExternalProductionHandle, or ExternalProductionFailure."
            )


# cancel


async def cancel_job(methods: SpecialistMethods, ctx: Context, call: MethodCaller) -> dict[str, Json]:
    """Cancel the job at its service; an exception makes the worker retry."""
    payload = decode(ctx.task.payload)
    job_id: str | None = payload["external_job_id"]
    if methods.cancel is None:
        return {"canceled": False, "reason": f"The specialist {methods.name} has no method cancel(external_job_id, ctx)."}
    if job_id is None and methods.find is not None:
        job = await call(methods.find, payload["token"], token=payload["token"])
        job_id = check_handle(job).external_job_id if isinstance(job, ExternalProductionHandle) else None
    if job_id is None:
        return {"canceled": False, "reason": "No job was found at the service."}
    await call(methods.cancel, job_id, external_job_id=job_id)
    return {"canceled": True, "external_job_id": job_id}
