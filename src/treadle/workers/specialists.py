"""Specialists: handlers for external services, by name and scope."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

from treadle.kernel.external.decide import unregistered_text
from treadle.kernel.external.service import CANCEL_RETRY, ExternalJobs
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import ClaimLost, HandlerExists, InvalidInput, InvalidPolicy, StoreError
from treadle.model.external import UNREGISTERED
from treadle.model.names import check_key, check_name
from treadle.model.outcomes import Failed, Outcome, Problem, Released, Waiting
from treadle.model.states import TaskState
from treadle.model.user_values import shown
from treadle.model.values import Json
from treadle.workers.context import Context
from treadle.workers.handlers import Handler, Isolation, Registry
from treadle.workers.specialist_jobs import RETRY_FOR, MethodCaller, SpecialistMethods, cancel_job, poll_job, start_job

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


RenderSpecialist = Specialist


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
    """Return the method by its name or alias; one inherited from `Specialist` does not count."""
    for known in (name, _ALIASES.get(name)):
        method: Callable[..., Any] | None = getattr(instance, known, None) if known else None
        if callable(method) and getattr(method, "__func__", None) is not getattr(Specialist, known or "", 0):
            return method
    return None


class Specialists:
    """The specialists of one name, by scope; one without a scope serves all other scopes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_scope: dict[str | None, SpecialistMethods] = {}

    def add(self, scope: str | None, methods: SpecialistMethods) -> None:
        """Add a specialist; a second one for the same scope raises `HandlerExists`."""
        if scope is not None:
            check_key(scope, "scope")
        if scope in self._by_scope:
            of = "" if scope is None else f" in the scope {scope}"
            raise HandlerExists(f"There is already a specialist for {self.name}{of}; each name and scope has one in a process.")
        self._by_scope[scope] = methods

    def find(self, scope: str | None) -> SpecialistMethods | None:
        """Return the specialist for tasks of that scope."""
        return self._by_scope.get(scope) or self._by_scope.get(None)

    @property
    def offers(self) -> list[str]:
        """The entries in a server's list of handlers: `NAME@SCOPE`, or `NAME@` for all scopes."""
        return [f"{self.name}@{scope or ''}" for scope in self._by_scope]

    @property
    def is_async(self) -> bool:
        """Whether none of them needs a thread."""
        return all(each.is_async for each in self._by_scope.values())

    async def execute(self, ctx: Context, executor: Executor, handler: Handler) -> Outcome:
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
        except ClaimLost:
            return Released("the claim was lost")
        except StoreError as error:  # of our own calls: errors of the specialist are handled at its call
            return Released(f"the store could not be read: {error}")

    async def _unserved(self, ctx: Context, external_jobs: ExternalJobs) -> Outcome:
        """Return the outcome for a task of a scope without a specialist here."""
        if ctx.task.state != TaskState.AWAITING_EXTERNAL or await external_jobs.is_offered(ctx.task):
            return Waiting(RETRY_FOR) if ctx.task.state == TaskState.PENDING else Released("its scope is not served here")
        return Failed(Problem(UNREGISTERED, unregistered_text(ctx.task.name, ctx.task.scope)))

    async def cancel(self, ctx: Context, executor: Executor, handler: Handler) -> Outcome | dict[str, Json]:
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
    assert existing is None or isinstance(existing, Specialists)
    specialists = existing or Specialists(name)
    specialists.add(scope, methods)
    isolation: Isolation = "loop" if specialists.is_async else "thread"
    cancels = Handler(
        name, methods.start, 0, isolation, CANCEL_RETRY, timeout_for, concurrency=concurrency, executes=specialists.cancel
    )
    handler = Handler(
        name,
        methods.start,
        0,
        isolation,
        timeout_for=timeout_for,
        concurrency=concurrency,
        executes=specialists.execute,
        cancels=cancels,
    )
    if existing is None:
        registry.add(handler)
        registry.specialists[name] = specialists
    else:
        registry.put(handler)
