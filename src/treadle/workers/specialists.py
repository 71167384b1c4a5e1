"""Specialists: handlers for outside services. What they return is turned into an outcome here; nothing durable happens here.

A worker takes a specialist's task twice or more: first to submit the job (`start`), then, whenever it is due, to ask how it
is (`poll`). In between no worker is held.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from treadle.kernel.external.decide import problem_of, unregistered_text
from treadle.kernel.external.service import CANCEL_RETRY, ExternalJobs
from treadle.kernel.store.crashpoints import reach
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import ClaimLost, HandlerExists, InvalidInput, InvalidPolicy, StoreError
from treadle.model.external import (
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
from treadle.model.values import Json, decode, encode
from treadle.workers.context import Context
from treadle.workers.handlers import Handler, Isolation, Registry

if TYPE_CHECKING:
    from treadle.workers.call import Executor

POLL_WITHIN = 60
"""Seconds that a `start` or `poll` gets, unless it is registered with another `timeout`."""
AT_ONCE = 32
"""Calls to one service at once in a process, unless it is registered with another `concurrency`: so that one that hangs leaves
room for the others."""
LOOK_AGAIN_FOR = 30_000
"""Milliseconds after which a job is looked for again whose service could not say whether it has it, or that nobody serves."""

_ALIASES = {"start": "produce_render", "poll": "poll_external_work"}


class Specialist:
    """A base class for specialists, and what their methods promise. Any object with these methods will do.

    Methods are sync or async, and may leave `ctx` out. `find` and `cancel` need not be there; nor `poll`, where `start` never
    returns a handle.
    """

    idempotent_start = False
    """Whether the service makes one job of two submits with the same `ctx.dispatch_token`."""

    def start(self, payload: dict[str, Any], ctx: Context) -> Any:
        """Submit the job. Returns

        - an `ExternalProductionHandle`: the job goes on; ask again after its interval,
        - a `Production` (or a dict, which stands for one): the work is done,
        - an `ExternalProductionFailure`, or None: it failed.

        What it raises fails the task. Give the service `ctx.dispatch_token`: `find` is asked for it after a crash.
        """
        raise NotImplementedError("A specialist has a method start(payload, ctx).")

    def poll(self, external_job_id: str, ctx: Context) -> Any:
        """Ask how the job is. Returns a handle (with another interval or hint, if need be), a `Production` or a dict, or an
        `ExternalProductionFailure`. What it raises does not fail the job: it is asked again after the interval; but
        `ExternalJobLost` says that the service does not know the job any more.

        IDEMPOTENCE CONTRACT. It may be called again for the same `external_job_id` after a restart, even if an earlier call was
        in flight when its process died. Tolerate being asked the same question twice: treat each call as a look at the
        service, not as something that changes it. Where there are effects nevertheless (such as downloading what is done),
        make them idempotent, for instance by looking whether it is there already.
        """
        raise NotImplementedError("This specialist does not support polling: write poll(external_job_id, ctx) to return handles.")


RenderSpecialist = Specialist


@dataclass(frozen=True, slots=True)
class Registered:
    """A specialist as it was registered."""

    name: str
    start: Callable[..., Any]
    poll: Callable[..., Any] | None
    find: Callable[..., Any] | None
    cancel: Callable[..., Any] | None
    specialist: str
    idempotent_start: bool
    deadline_for: int | None

    @property
    def is_async(self) -> bool:
        methods = [method for method in (self.start, self.poll, self.find, self.cancel) if method is not None]
        return all(inspect.iscoroutinefunction(method) for method in methods)


def read_specialist(name: str, given: object, *, idempotent_start: bool | None, deadline: Duration | None) -> Registered:
    """The specialist's methods, checked; a class is made an object of."""
    check_name(name)
    one = given() if inspect.isclass(given) else given
    start = _method(one, "start")
    if start is None:
        raise InvalidInput(f"The specialist {name} has no method start(payload, ctx), nor produce_render(...).")
    declared = bool(getattr(one, "idempotent_start", False)) if idempotent_start is None else idempotent_start
    deadline_for = None if deadline is None else milliseconds(deadline, "deadline", positive=True)
    made = Registered(
        name,
        start,
        _method(one, "poll"),
        _method(one, "find"),
        _method(one, "cancel"),
        type(one).__qualname__,
        declared,
        deadline_for,
    )
    for method, known in ((made.start, _START), (made.poll, _POLL), (made.find, _FIND), (made.cancel, _POLL)):
        if method is not None:
            _check_parameters(name, method, known)
    return made


def _method(one: object, name: str) -> Callable[..., Any] | None:
    """The method, by its name or the other one that is accepted; one that only the base class has is none."""
    for known in (name, _ALIASES.get(name)):
        method: Callable[..., Any] | None = getattr(one, known, None) if known else None
        if callable(method) and getattr(method, "__func__", None) is not getattr(Specialist, known or "", 0):
            return method
    return None


_START = ("payload", "ctx", "job_id", "engagement_id", "confirmed_shape_event_ref", "triggered_by", "trigger", "db")
_POLL = ("external_job_id", "ctx", "render_job_id", "job_id", "engagement_id", "payload", "db")
_FIND = ("token", "ctx", "job_id", "engagement_id", "payload", "db")


def _check_parameters(name: str, method: Callable[..., Any], known: tuple[str, ...]) -> None:
    for parameter in _keyword_only(method):
        if parameter.default is inspect.Parameter.empty and parameter.name not in known:
            raise InvalidInput(
                f"The specialist {name} wants {parameter.name!r} in {method.__name__}; what it can be given is {', '.join(known)}."
            )


def _keyword_only(method: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(method).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


class Specialists:
    """The specialists of one name, by scope; the one without a scope serves all others."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_scope: dict[str | None, Registered] = {}

    def add(self, scope: str | None, registered: Registered) -> None:
        """Add it; a second one of the same name and scope raises `HandlerExists`."""
        if scope is not None:
            check_key(scope, "scope")
        if scope in self._by_scope:
            of = "" if scope is None else f" in the scope {scope}"
            raise HandlerExists(f"There is a specialist for {self.name}{of} already; each name has one in a process.")
        self._by_scope[scope] = registered

    def find(self, scope: str | None) -> Registered | None:
        """The specialist for tasks of that scope."""
        return self._by_scope.get(scope) or self._by_scope.get(None)

    @property
    def offers(self) -> list[str]:
        """What a server says that it serves: `NAME@SCOPE`, and `NAME@` for all scopes."""
        return [f"{self.name}@{scope or ''}" for scope in self._by_scope]

    @property
    def is_async(self) -> bool:
        """Whether none of them needs a thread."""
        return all(each.is_async for each in self._by_scope.values())

    # execution

    async def execute(self, ctx: Context, executor: Executor, handler: Handler) -> Outcome:
        """Submit the task's job, or poll it. Raises only `CancelledError`."""
        external_jobs = ctx.external_jobs
        if external_jobs is None:
            return Failed(Problem("specialist_unavailable", "Specialists need a worker of an engine, in its own process."))
        registered = self.find(ctx.task.scope)
        call = _Call(ctx, executor, handler)
        try:
            if registered is None:
                return await self._unserved(ctx, external_jobs)
            if ctx.task.state == TaskState.AWAITING_EXTERNAL:
                return await _poll(registered, ctx, external_jobs, call)
            return await _start(registered, ctx, external_jobs, call)
        except ClaimLost:
            return Released("the claim was lost")
        except StoreError as error:  # ours: what the specialist raises is dealt with where it is called
            return Released(f"the store could not be read: {error}")

    async def _unserved(self, ctx: Context, external_jobs: ExternalJobs) -> Outcome:
        """There is none for the scope here."""
        if ctx.task.state != TaskState.AWAITING_EXTERNAL or await external_jobs.is_offered(ctx.task):
            return Waiting(LOOK_AGAIN_FOR) if ctx.task.state == TaskState.PENDING else Released("its scope is not served here")
        return Failed(Problem(UNREGISTERED, unregistered_text(ctx.task.name, ctx.task.scope)))

    async def cancel(self, ctx: Context, executor: Executor, handler: Handler) -> Outcome | dict[str, Json]:
        """Tell the service that a job is not wanted any more; what it raises is retried."""
        registered = self.find(ctx.task.scope)
        if registered is None:
            return Waiting(LOOK_AGAIN_FOR)
        said = decode(ctx.task.payload)
        call = _Call(ctx, executor, handler)
        job_id: str | None = said["external_job_id"]
        if registered.cancel is None:
            return {"canceled": False, "reason": f"The specialist {self.name} has no method cancel(external_job_id, ctx)."}
        if job_id is None and registered.find is not None:
            found = await call(registered.find, said["token"], token=said["token"])
            job_id = found.external_job_id if isinstance(found, ExternalProductionHandle) else None
        if job_id is None:
            return {"canceled": False, "reason": "No job was found at the service."}
        await call(registered.cancel, job_id, external_job_id=job_id)
        return {"canceled": True, "external_job_id": job_id}


class _Call:
    """Calls methods of a specialist: async ones here, sync ones in a thread."""

    def __init__(self, ctx: Context, executor: Executor, handler: Handler) -> None:
        self._ctx, self._executor, self._handler = ctx, executor, handler

    async def __call__(self, method: Callable[..., Any], first: Any, **said: Any) -> Any:
        ctx = self._ctx
        if wanted := _keyword_only(method):
            known: Mapping[str, Any] = _known(ctx) | said
            named = {parameter.name: known[parameter.name] for parameter in wanted if parameter.name in known}
            bound = _bind(method, (), named)
        else:
            bound = _bind(method, (first, ctx)[: _positional(method)], {})
        if inspect.iscoroutinefunction(method):
            return await bound()
        returned = await self._executor.in_thread(dataclasses.replace(self._handler, call=bound), ())
        return await returned if inspect.isawaitable(returned) else returned


def _bind(method: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Callable[[], Any]:
    return lambda: method(*arguments, **named)


def _positional(method: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return 2
    return sum(parameter.kind in kinds for parameter in parameters)


def _known(ctx: Context) -> dict[str, Any]:
    """What a method may ask for by name."""
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


# --- start ---


async def _start(registered: Registered, ctx: Context, external_jobs: ExternalJobs, call: _Call) -> Outcome:
    intent = await external_jobs.begin(ctx.task, ctx.token)
    ctx.dispatch_token, ctx.callback_token = intent.token, intent.callback
    if intent.again:
        outcome = await _after_a_crash(registered, ctx, external_jobs, call, intent.token)
        if outcome is not None:
            return outcome
    payload = decode(ctx.task.payload)
    try:
        returned = await call(registered.start, payload, payload=payload)
    except ClaimLost:
        raise
    except (Exception, SystemExit) as error:
        return _raised(error)
    reach("external.after_start")
    return _started(registered, ctx, returned, intent.token)


async def _after_a_crash(
    registered: Registered, ctx: Context, external_jobs: ExternalJobs, call: _Call, token: str
) -> Outcome | None:
    """An earlier attempt may have submitted the job: find it, or say that nobody knows. None: it may be submitted now."""
    if registered.find is None:
        if registered.idempotent_start:
            await external_jobs.note_unknown(ctx.task, ctx.token, "submitted again under the same token")
            return None
        await external_jobs.note_unknown(ctx.task, ctx.token, "given up")
        return Failed(
            Problem(
                OUTCOME_UNKNOWN,
                f"A worker was lost while the job was submitted, and the specialist {registered.name} cannot find it (it has no "
                "method find(token)): nobody knows whether the service has it. Look there, then retry the task or cancel it.",
            )
        )
    try:
        found = await call(registered.find, token, token=token)
    except (Exception, SystemExit) as error:
        ctx.log(f"The service could not say whether it has the job: {error}", "warning")
        return Waiting(LOOK_AGAIN_FOR)
    return None if found is None else _started(registered, ctx, found, token, reattached=True)


def _started(registered: Registered, ctx: Context, returned: Any, token: str, *, reattached: bool = False) -> Outcome:
    """What `start` (or `find`) came to."""
    try:
        match returned:
            case Production() | dict():
                return _produced(ctx, returned)
            case ExternalProductionHandle():
                if registered.poll is None:
                    said = f"The specialist {registered.name} returned a handle, but has no method poll(external_job_id, ctx)."
                    return Failed(Problem("poll_not_supported", said))
                check_handle(returned)
                return AwaitingExternal(returned, token, registered.specialist, registered.deadline_for, reattached)
            case ExternalProductionFailure():
                return Failed(problem_of(returned))
            case None:
                return Failed(Problem("specialist_failed", f"The specialist {registered.name} returned None: it could not start."))
            case _:
                raise UnexpectedSpecialistResultError(
                    f"The specialist's start returned unexpected type {type(returned).__name__}; expected a Production, a dict, "
                    "ExternalProductionHandle, ExternalProductionFailure or None."
                )
    except InvalidHandle as error:
        return Failed(Problem(error.reason, str(error), type(error).__name__))
    except UnexpectedSpecialistResultError as error:
        return Failed(Problem(error.code, str(error), type(error).__name__))


def _produced(ctx: Context, returned: Production | dict[str, Json]) -> Outcome:
    """All that was appended; what is returned last, appended or not."""
    last = Production(returned) if isinstance(returned, dict) else returned
    encode(last.content, "production", 2**31)
    return Produced((*(each for each in ctx.produced if each is not last), last))


def _raised(error: BaseException) -> Outcome:
    kind = type(error).__name__
    return Failed(Problem("specialist_raised", f"specialist raised: {str(error) or kind}", kind))


# --- poll ---


async def _poll(registered: Registered, ctx: Context, external_jobs: ExternalJobs, call: _Call) -> Outcome:
    record = await external_jobs.open(ctx.task)
    ctx.dispatch_token, ctx.callback_token = record.token, external_jobs.callback_of(ctx.task)
    if record.deadline_at is not None and record.deadline_at <= (ctx.task.claimed_at or 0):
        return Failed(Problem("deadline_exceeded", "The job's deadline passed before its service was done with it."))
    if registered.poll is None:
        return Failed(Problem("poll_not_supported", f"The specialist {registered.name} has no method poll(external_job_id, ctx)."))
    job_id = record.external_job_id
    try:
        returned = await call(registered.poll, job_id, external_job_id=job_id)
        reach("external.after_poll")
        return _answered(ctx, returned)
    except ExternalJobLost as error:
        return Failed(Problem(LOST, str(error) or f"The service does not know the job {job_id} any more."))
    except UnexpectedSpecialistResultError as error:
        return Failed(Problem(UNEXPECTED_POLL, str(error), type(error).__name__))
    except InvalidHandle as error:
        return StillWorking(None, f"{error.reason}: {error}")
    except (Exception, SystemExit) as error:
        return StillWorking(None, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _answered(ctx: Context, returned: Any) -> Outcome:
    match returned:
        case Production() | dict():
            return _produced(ctx, returned)
        case ExternalProductionHandle():
            return StillWorking(check_handle(returned))
        case ExternalProductionFailure():
            return Failed(problem_of(returned))
        case _:
            raise UnexpectedSpecialistResultError(
                f"Specialist returned unexpected type {type(returned).__name__}; expected a Production (RenderEvent), a dict, "
                "ExternalProductionHandle, or ExternalProductionFailure."
            )


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
    timeout: Duration | None = POLL_WITHIN,
    concurrency: int = AT_ONCE,
    deadline: Duration | None = None,
    idempotent_start: bool | None = None,
) -> None:
    """Add a specialist to the registry, as the handler for tasks of its name; another scope of a name joins the first."""
    registered = read_specialist(name, given, idempotent_start=idempotent_start, deadline=deadline)
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidPolicy(f"concurrency must be 1 or more, not {concurrency!r}.")
    timeout_for = None if timeout is None else milliseconds(timeout, "timeout", positive=True)
    older = registry.specialists.get(name)
    assert older is None or isinstance(older, Specialists)
    specialists = older or Specialists(name)
    specialists.add(scope, registered)
    isolation: Isolation = "loop" if specialists.is_async else "thread"
    cancels = Handler(
        name, registered.start, 0, isolation, CANCEL_RETRY, timeout_for, concurrency=concurrency, executes=specialists.cancel
    )
    handler = Handler(
        name,
        registered.start,
        0,
        isolation,
        timeout_for=timeout_for,
        concurrency=concurrency,
        executes=specialists.execute,
        cancels=cancels,
    )
    if older is None:
        registry.add(handler)
        registry.specialists[name] = specialists
    else:
        registry.put(handler)
