"""What a durable function is given: everything that it may do to the world, each recorded, so that it survives anything."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from treadle.kernel.effects.decide import current_keys
from treadle.kernel.functions.rows import ASK, NOW, PATCH
from treadle.model.approvals import ApprovalRequest
from treadle.model.clock import Duration, instant, milliseconds
from treadle.model.errors import InvalidApproval, InvalidInput, MisusedContext
from treadle.model.names import APPROVAL, HANDLER, check_key, check_name
from treadle.model.retry import RetryPolicy, as_policy
from treadle.model.states import StepState
from treadle.model.values import Json
from treadle.workers.functions.effects import EffectOperation
from treadle.workers.functions.operations import (
    ChildRun,
    SignalOperation,
    Sleeping,
    StartOperation,
    StepOperation,
    call_operation,
    gather,
)

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver

_NO_KWARGS: dict[str, Any] = {}


class FunctionContext:
    """One run of a durable function, as its code sees it.

    The code between two operations must come to the same each time it is executed: use `now` and `random` from here, and do
    everything else that may differ in a `step`.
    """

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._driver.run_id

    @property
    def trace_id(self) -> str | None:
        """The trace that the run belongs to."""
        return self._driver.task.trace_id

    @property
    def version(self) -> int:
        """The version of the function that executes the run."""
        return self._driver.function.version

    # work

    def step(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | int | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> Awaitable[Any]:
        """Call `fn` (async on the event loop, sync in a thread), once: what it returned (any JSON) is given back ever after.

        A failed attempt is repeated by `retry` (default: not at all), without holding a worker in between; then `StepFailed`
        is raised. `timeout` bounds one attempt. `key` names a step that must not come twice.
        """
        if name is None and key is None:
            name = getattr(fn, "__name__", None) or type(fn).__name__
            if name == "<lambda>":
                name = "lambda"
        return StepOperation(
            self._driver,
            fn,
            args,
            kwargs or _NO_KWARGS,
            name or "step",
            None if key is None else check_key(key, "step key"),
            None if retry is None else as_policy(retry),
            None if timeout is None else milliseconds(timeout, "timeout", positive=True),
        )

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
    ) -> Awaitable[Any]:
        """A step that does something to the outside world, once as far as that can be known: `fn` is called without arguments.

        Before it is made, its row is `unknown`; after it, what it came to. While `fn` runs, `ctx.idempotency_key` is new for each
        attempt and `ctx.dedupe_key` the same for all, for services that deduplicate. `request` (any JSON) is what is asked for.
        An exception that leaves open whether it was made (all but `EffectFailed`, `NonRetryable` and HTTP answers below 500) fails
        the attempt, but not the effect: with `retry` it is made again, and the log says `tool_call.unknown`.
        """
        return EffectOperation(
            self._driver,
            action,
            fn,
            request,
            None if key is None else check_key(key, "step key"),
            None if retry is None else as_policy(retry),
            None if timeout is None else milliseconds(timeout, "timeout", positive=True),
            unknown,
        )

    @property
    def idempotency_key(self) -> str:
        """The key of the effect that is being made, new for each attempt."""
        return current_keys().idempotency_key

    @property
    def dedupe_key(self) -> str:
        """The key of the effect that is being made, the same for all attempts: what a service can deduplicate on."""
        return current_keys().dedupe_key

    def call(
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
    ) -> Awaitable[dict[str, Json]]:
        """A task of another handler, wherever it runs; its result. Raises `TaskFailed`, `TaskCanceled` or `TaskIgnored`."""
        task = self._driver.task
        return call_operation(
            self._driver,
            check_name(handler),
            _payload(payload),
            kind=HANDLER,
            task_list=task.task_list if task_list is None else check_name(task_list, "task list"),
            step_name=name,
            key=key,
            retry=None if retry is None else as_policy(retry),
            priority=task.priority if priority is None else priority,
            timeout_for=None if timeout is None else milliseconds(timeout, "timeout", positive=True),
            deadline_for=None if deadline is None else milliseconds(deadline, "deadline", positive=True),
            limit_key=None if limit_key is None else check_key(limit_key, "limit key"),
            limit=limit,
        )

    def external(self, specialist: str, payload: Mapping[str, Json] | None = None, **options: Any) -> Awaitable[dict[str, Json]]:
        """Work of an outside service, through its specialist; options as for `call`."""
        return self.call(specialist, payload, **options)

    def start(
        self,
        function: str,
        payload: Mapping[str, Json] | None = None,
        *,
        version: int | None = None,
        key: str | None = None,
        task_list: str | None = None,
        priority: int | None = None,
    ) -> Awaitable[ChildRun]:
        """Start a function as a run of its own; `await handle.result()` waits for what it returns."""
        task = self._driver.task
        options = {
            "task_list": task.task_list if task_list is None else check_name(task_list, "task list"),
            "priority": task.priority if priority is None else priority,
        }
        return StartOperation(self._driver, check_name(function, "function name"), _payload(payload), version, key, options)

    def gather(self, *awaitables: Any) -> Coroutine[Any, Any, list[Any]]:
        """Do operations and coroutines at once; their results in order.

        Waits for ALL of them, and then raises the first failure in the order of the arguments, so that it is the same each time.
        """
        return gather(self._driver, awaitables)

    # waiting

    def sleep(self, duration: Duration) -> Awaitable[None]:
        """Wait so long, without holding a worker, through restarts."""
        return Sleeping(self._driver, milliseconds(duration, "duration"))

    def sleep_until(self, at: datetime) -> Awaitable[None]:
        """Wait until that instant (with a time zone)."""
        return Sleeping(self._driver, None, instant(at))

    def wait_for(self, signal: str, timeout: Duration | None = None) -> Awaitable[Json]:
        """The payload of the next signal of that name; those that came before are taken first, in order.

        Raises `SignalTimeout` when none comes in time.
        """
        timeout_for = None if timeout is None else milliseconds(timeout, "timeout")
        return SignalOperation(self._driver, check_name(signal, "signal name"), timeout_for)

    def approval(self, question: str, *, key: str | None = None, **request: Any) -> Awaitable[dict[str, Json]]:
        """Ask a person; the decision: who (`by`), why (`reason`), and the `context` as it was approved.

        Options are those of `ApprovalRequest.of`. Raises `ApprovalDenied` or `ApprovalExpired`.
        """
        task = self._driver.task
        try:
            asked = ApprovalRequest.of(question, **request)
        except TypeError as error:
            raise InvalidApproval(f"The approval cannot be asked for: {error}.") from None
        return call_operation(
            self._driver,
            APPROVAL,
            asked.as_json(),
            kind=APPROVAL,
            step_kind=ASK,
            task_list=task.task_list,
            key=key,
            priority=task.priority,
        )

    def continue_as_new(self, payload: Mapping[str, Json] | None = None) -> Coroutine[Any, Any, None]:
        """End this run, and go on as a new one with that payload and no steps behind it; never returns.

        Whoever waits for this run waits for the new one. It takes the newest version, as every start does.
        """
        return self._continue(_payload(payload))

    async def _continue(self, payload: dict[str, Json]) -> None:
        driver = self._driver
        if driver.enter().scope:
            raise MisusedContext("ctx.continue_as_new cannot be used inside a gather: the rest of it would be lost.")
        if driver.held:
            await driver.stop()
        driver.successor = payload
        await driver.end_here()

    # values

    def now(self) -> datetime:
        """The time (UTC), the same in every replay."""
        driver = self._driver
        branch = driver.enter()
        name = branch.number("now")
        place, recorded = driver.reach(branch, NOW, name)
        if recorded is None:
            recorded = driver.make(place, NOW, name, StepState.COMPLETED)
            recorded.value = driver.now()
            driver.record(recorded, branch.later())
        return datetime.fromtimestamp(recorded.value / 1000, UTC)

    def random(self) -> float:
        """A number in [0, 1), the same in every replay."""
        driver = self._driver
        branch = driver.enter()
        branch.randoms += 1
        seed = hashlib.sha256(f"{driver.run_id}/{branch.scope}random/{branch.randoms}".encode()).digest()
        return int.from_bytes(seed[:7], "big") / 2**56

    def patched(self, name: str) -> bool:
        """Whether to take the new way: True for runs that get here first with this code, False for those that went past before.

        if ctx.patched("fraud-check"):
            await ctx.step(check_fraud, order)
        """
        driver = self._driver
        branch = driver.enter()
        check_key(name, "name of a patch")
        if driver.replaying:
            recorded = driver.history.look(f"{branch.scope}{branch.position}")
            same = recorded is not None and recorded.kind == PATCH and recorded.name == name
            if not same and driver.history.went_past(branch.scope, branch.position):
                return False
        place, recorded = driver.reach(branch, PATCH, name)
        if recorded is None:
            driver.record(driver.make(place, PATCH, name, StepState.COMPLETED), branch.later())
        return True

    # for people

    def log(self, message: str, level: str = "info", **details: Json) -> None:
        """Write a line about this run; not again while the run is replayed."""
        driver = self._driver
        if driver.context is not None and not driver.replaying:
            driver.context.log(message, level, **details)

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Say how far the run is, for people."""
        if self._driver.context is not None:
            self._driver.context.progress(fraction, message)


def _payload(payload: Mapping[str, Json] | None) -> dict[str, Json]:
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
    return dict(payload or {})
