"""What a function awaits: steps, durable waits, child tasks and runs. An operation does nothing until it is awaited or gathered."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.kernel.functions.rows import (
    CALL,
    RESULT,
    SLEEP,
    START,
    STEP,
    WAIT,
    Recorded,
    completed_body,
    fold_text,
    make_step,
    new_run,
    step_id,
)
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.ids import derived_id
from treadle.model.names import Lane
from treadle.model.outcomes import Failed, Problem, Retry
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.tasks import NewTask
from treadle.model.values import Json, decode, encode
from treadle.workers.call import outcome_of_error
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.inbox import blamed, blamed_steps, error_of
from treadle.workers.functions.waits import Group, Wait
from treadle.workers.handlers import Handler

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver

_COROUTINE = inspect.CO_COROUTINE
_SHORT = {None: "null", True: "true", False: "false"}
_PLAIN = (type(None), bool, int, float, str)


class StepOperation:
    """`ctx.step(...)`: code that is executed once; what it returned is given back ever after."""

    __slots__ = ("args", "driver", "fn", "key", "kwargs", "name", "retry", "timeout_for")
    kind = STEP

    def __init__(
        self,
        driver: Driver,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        key: str | None,
        retry: RetryPolicy | None,
        timeout_for: int | None,
    ) -> None:
        self.driver, self.fn, self.args, self.kwargs = driver, fn, args, kwargs
        self.name, self.key, self.retry, self.timeout_for = name, key, retry, timeout_for

    def __await__(self) -> Generator[Any, None, Any]:
        return self.run(self.driver.enter()).__await__()

    async def run(self, branch: Branch) -> Any:
        driver = self.driver
        if driver.held:
            await driver.stop()
        name = branch.number(self.name) if self.key is None else driver.check_key(self.key)
        place, recorded = driver.reach(branch, STEP, name)
        if recorded is not None:
            if recorded.state == StepState.COMPLETED:
                return recorded.value
            if (error := error_of(recorded)) is not None:
                raise error
            await self._wait_again(branch, recorded)
        while True:
            branch.busy = name
            try:
                code = getattr(self.fn, "__code__", None)
                if self.timeout_for is None and code is not None and code.co_flags & _COROUTINE:
                    value = await self.fn(*self.args, **self.kwargs)  # the short way of most steps
                else:
                    value = await self._call()
                text = _SHORT.get(value) if value is None or type(value) is bool else None
                if text is None:
                    text = encode(value, "result", driver.runtime.payload_limit)
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_stopped(driver):
                    raise
                recorded = await self._failed(branch, place, name, recorded, error)
                continue
            finally:
                branch.busy = None
            break
        await driver.checkpoint(branch, self._completed(branch, place, name, recorded, text, value))
        return value if type(value) in _PLAIN else decode(text)

    async def _call(self) -> Any:
        if self.timeout_for is None:
            return await self._invoke()
        try:
            async with asyncio.timeout(self.timeout_for / 1000) as limit:
                return await self._invoke()
        except TimeoutError:
            if not limit.expired():
                raise
            raise _TimedOut(f"The attempt took longer than {self.timeout_for / 1000:g} s and was stopped.") from None

    async def _invoke(self) -> Any:
        fn = self.fn
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
            return await fn(*self.args, **self.kwargs)
        call = partial(copy_context().run, fn, *self.args, **self.kwargs)
        handler = Handler(self.driver.function.lane_name, call, 0, "thread")
        value = await self.driver.runtime.executor.in_thread(handler, ())
        return await value if inspect.isawaitable(value) else value

    def _completed(self, branch: Branch, place: str, name: str, recorded: Recorded | None, text: str, value: Any) -> Step:
        driver = self.driver
        value_store = driver.runtime.value_store
        if type(value) not in _PLAIN or len(text) > 1000:
            text, blobs = fold_text(text, value, driver.root_id, value_store)
            if blobs:
                branch.later().rows += blobs
        redo = recorded.redo if recorded is not None else driver.history.redo(place) if driver.history else 0
        return Step(
            id=step_id(driver.run_id, place, redo) if redo else driver.ids.at(place),
            run_id=driver.run_id,
            parent_id=None,
            ordinal=driver.count if recorded is None else recorded.ordinal,
            kind=STEP,
            name=name,
            facet=None,
            state=StepState.COMPLETED,
            body=value_store.seal(completed_body(place, text, redo)),
        )

    async def _wait_again(self, branch: Branch, recorded: Recorded) -> None:
        """Wait for the time of the next attempt."""
        wait = Wait(branch, recorded, wake_at=recorded.wake_at)
        self.driver.register(wait)
        await self.driver.block(wait)

    async def _failed(self, branch: Branch, place: str, name: str, recorded: Recorded | None, error: BaseException) -> Recorded:
        """Record a failed attempt, and wait for the next; raises when there is none."""
        driver = self.driver
        if isinstance(error, InvalidInput) and error.code in ("invalid_payload", "payload_too_large"):
            error = NonRetryable(f"What the step returned cannot be kept: {error}", "invalid_result")
        outcome = outcome_of_error(error)
        assert isinstance(outcome, Retry | Failed)
        problem = outcome.problem
        if isinstance(error, _TimedOut):
            problem = Problem("timeout", str(error))
        elif problem.code == "handler_error":
            problem = Problem("step_error", problem.message, problem.type, problem.traceback)
        if recorded is None:
            recorded = driver.make(place, self.kind, name, StepState.PENDING)
        recorded.failures += 1
        recorded.error = {key: value for key, value in problem.as_json().items() if key != "traceback"}
        policy = self.retry or NO_RETRY
        dice = driver.runtime.ids.random() if policy.jitter else 0.0
        delay_for = policy.delay_for(recorded.failures, dice) if isinstance(outcome, Retry) else None
        recorded.state = StepState.PENDING
        if delay_for is None:
            recorded.state, recorded.wake_at = StepState.FAILED, None
            await driver.checkpoint(branch, make_step(driver.run_id, recorded, driver.runtime.value_store))
            failed = error_of(recorded)
            assert failed is not None
            raise failed from error
        recorded.wake_at = driver.now() + delay_for
        driver.record(recorded, driver.share(branch))
        branch.busy = None
        await self._wait_again(branch, recorded)
        if driver.held:
            await driver.stop()
        return recorded


class _TimedOut(TimeoutError):
    """The step's own timeout."""


def is_stopped(driver: Driver) -> bool:
    """Whether the branch itself is stopped; else something that the step awaited was canceled."""
    task = asyncio.current_task()
    return driver.closed or (task is not None and task.cancelling() > 0)


class WaitOperation:
    """An operation that is nothing but a durable wait: `begin` asks for what it waits for."""

    __slots__ = ("driver",)

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __await__(self) -> Generator[Any, None, Any]:
        return self._run(self.driver.enter()).__await__()

    async def _run(self, branch: Branch) -> Any:
        if self.driver.held:
            await self.driver.stop()
        wait = self.begin(branch)
        if not wait.done:
            await self.driver.block(wait)
        return wait.outcome()

    def begin(self, branch: Branch) -> Wait:
        """Ask for it, unless that was recorded before; a wait that may be over already."""
        raise NotImplementedError

    def _recall(self, branch: Branch, kind: str, name: str) -> tuple[str, Recorded | None, Wait | None]:
        """The place, what is recorded there, and the wait if it is over."""
        place, recorded = self.driver.reach(branch, kind, name)
        if recorded is None or recorded.state not in (StepState.COMPLETED, StepState.FAILED):
            return place, recorded, None
        wait = Wait(branch, recorded)
        wait.done, wait.value, wait.error = True, recorded.value, error_of(recorded)
        return place, recorded, wait


class Sleeping(WaitOperation):
    """`ctx.sleep`, `ctx.sleep_until`."""

    __slots__ = ("at", "sleep_for")

    def __init__(self, driver: Driver, sleep_for: int | None, at: int | None = None) -> None:
        super().__init__(driver)
        self.sleep_for, self.at = sleep_for, at

    def begin(self, branch: Branch) -> Wait:
        driver = self.driver
        name = branch.number("sleep")
        place, recorded, over = self._recall(branch, SLEEP, name)
        if over is not None:
            return over
        if recorded is None:
            recorded = driver.make(place, SLEEP, name, StepState.RUNNING)
            recorded.wake_at = self.at if self.at is not None else driver.now() + (self.sleep_for or 0)
            driver.record(recorded, driver.share(branch))
        wait = Wait(branch, recorded, wake_at=recorded.wake_at)
        driver.register(wait)
        return wait


class Calling(WaitOperation):
    """A child task, and its end: `ctx.call`, `ctx.external`, `ctx.approval`."""

    __slots__ = ("key", "kind", "lane", "name", "payload", "template")

    def __init__(
        self, driver: Driver, kind: str, name: str, lane: Lane, payload: dict[str, Json], template: dict[str, Any], key: str | None
    ) -> None:
        super().__init__(driver)
        self.kind, self.name, self.lane, self.payload, self.template, self.key = kind, name, lane, payload, template, key

    def begin(self, branch: Branch) -> Wait:
        driver = self.driver
        name = branch.number(self.name) if self.key is None else driver.check_key(self.key)
        place, recorded, over = self._recall(branch, self.kind, name)
        if over is not None:
            return over
        if recorded is None:
            recorded = driver.make(place, self.kind, name, StepState.RUNNING)
            recorded.task_id = derived_id(recorded.id, "task")
            limit = driver.runtime.payload_limit
            text, blobs = driver.runtime.value_store.pack(self.payload, driver.root_id, "payload", limit)
            shared = driver.share(branch)
            shared.rows += blobs
            shared.tasks.append(
                NewTask(
                    id=recorded.task_id,
                    lane=self.lane,
                    payload=text,
                    run_id=driver.run_id,
                    step_id=recorded.id,
                    flow_id=driver.task.flow_id,
                    root_id=driver.root_id,
                    trace_id=driver.task.trace_id,
                    **self.template,
                )
            )
            driver.record(recorded, shared)
        wait = Wait(branch, recorded, mail_key=recorded.id)
        driver.register(wait)
        return wait


def call_operation(
    driver: Driver,
    name: str,
    payload: dict[str, Json],
    *,
    task_list: str,
    kind: str,
    step_kind: str = CALL,
    step_name: str | None = None,
    key: str | None = None,
    retry: RetryPolicy | None = None,
    **template: Any,
) -> Calling:
    """A child task of a handler, or (`step_kind`) a question to a person."""
    lane = Lane(driver.runtime.namespace, kind, task_list, name)
    if retry is not None:
        template["policy"] = msgspec.json.encode(retry).decode()
    return Calling(driver, step_kind, step_name or name, lane, payload, template, key)


class SignalOperation(WaitOperation):
    """`ctx.wait_for`."""

    __slots__ = ("signal", "timeout_for")

    def __init__(self, driver: Driver, signal: str, timeout_for: int | None) -> None:
        super().__init__(driver)
        self.signal, self.timeout_for = signal, timeout_for

    def begin(self, branch: Branch) -> Wait:
        driver = self.driver
        name = branch.number(self.signal)
        place, recorded, over = self._recall(branch, WAIT, name)
        if over is not None:
            return over
        if recorded is None:
            recorded = driver.make(place, WAIT, name, StepState.RUNNING)
            recorded.wake_at = None if self.timeout_for is None else driver.now() + self.timeout_for
            driver.record(recorded, driver.share(branch))
        wait = Wait(branch, recorded, signal=self.signal, wake_at=recorded.wake_at)
        driver.register(wait)
        return wait


class StartOperation:
    """`ctx.start`: a child run, which goes its own way; its handle waits for its end."""

    __slots__ = ("driver", "key", "name", "options", "payload", "version")

    def __init__(
        self, driver: Driver, name: str, payload: dict[str, Json], version: int | None, key: str | None, options: dict[str, Any]
    ) -> None:
        self.driver, self.name, self.payload, self.version = driver, name, payload, version
        self.key, self.options = key, options

    def __await__(self) -> Generator[Any, None, ChildRun]:
        return self._run(self.driver.enter()).__await__()

    async def _run(self, branch: Branch) -> ChildRun:
        driver = self.driver
        if driver.held:
            await driver.stop()
        name = branch.number(self.name) if self.key is None else driver.check_key(self.key)
        place, recorded = driver.reach(branch, START, name)
        if recorded is None:
            runtime = driver.runtime
            version = await runtime.resolve(self.name, self.version)
            recorded = driver.make(place, START, name, StepState.COMPLETED)
            recorded.task_id, recorded.version = derived_id(recorded.id, "run"), version
            _, task, rows = new_run(
                run_id=recorded.task_id,
                namespace=runtime.namespace,
                name=self.name,
                version=version,
                payload=self.payload,
                value_store=runtime.value_store,
                payload_limit=runtime.payload_limit,
                root_id=driver.root_id,
                trace_id=driver.task.trace_id,
                parent_id=driver.run_id,
                parent_step_id=recorded.id,
                **self.options,
            )
            step = make_step(driver.run_id, recorded, runtime.value_store)
            branch.later().starts.append((task, rows, step))
        return ChildRun(driver, recorded)


class ChildRun:
    """A run that a function has started."""

    __slots__ = ("_driver", "_outcome", "_recorded", "id", "name")

    def __init__(self, driver: Driver, recorded: Recorded) -> None:
        self._driver = driver
        self._recorded = recorded
        self._outcome: Recorded | None = None
        self.id: str = recorded.task_id or ""
        self.name: str = recorded.name

    def result(self) -> ResultOperation:
        """What the child returned, once it has ended; raises `RunFailed` or `RunCanceled` for those ends."""
        return ResultOperation(self._driver, self)

    def settled(self, wait: Wait) -> None:
        """Remember its end, as mail of it comes only once."""
        self._outcome = wait.recorded


class ResultOperation(WaitOperation):
    """`await child.result()`."""

    __slots__ = ("child",)

    def __init__(self, driver: Driver, child: ChildRun) -> None:
        super().__init__(driver)
        self.child = child

    def begin(self, branch: Branch) -> Wait:
        driver, child = self.driver, self.child
        name = branch.number(f"{child.name}.result")
        place, recorded, over = self._recall(branch, RESULT, name)
        if over is not None:
            child.settled(over)
            return over
        if recorded is None:
            recorded = driver.make(place, RESULT, name, StepState.RUNNING)
            recorded.task_id, recorded.of = child.id, child._recorded.id
            driver.record(recorded, driver.share(branch))
        known = child._outcome
        if known is not None:
            recorded.state, recorded.value, recorded.error = known.state, known.value, known.error
            driver.record(recorded, branch.later())
            wait = Wait(branch, recorded)
            wait.done, wait.value, wait.error = True, recorded.value, error_of(recorded)
            return wait
        wait = Wait(branch, recorded, mail_key=recorded.of)
        wait.on_done = child.settled
        driver.register(wait)
        return wait


async def gather(driver: Driver, awaitables: tuple[Any, ...]) -> list[Any]:
    """All of them at once; waits for ALL, then raises the first failure in the order of the arguments."""
    try:
        branch = driver.enter()
        if driver.held:
            await driver.stop()
        place = driver.reach_gather(branch, len(awaitables))
        await driver.commit_decided(branch)
        _check_gathered(awaitables)
    except BaseException:
        for each in awaitables:
            if inspect.iscoroutine(each):
                each.close()
        raise
    group = Group(len(awaitables))
    for index, each in enumerate(awaitables):
        own = Branch(f"{place}.{index}.", branch)
        if not isinstance(each, WaitOperation):
            driver.fork(group, index, own, each)
            continue
        try:
            wait = each.begin(own)
        except Exception as error:
            driver.one_less(group, index, None, error)
            continue
        if wait.done:
            if own.pending is not None:
                branch.later().take(own.pending)
            driver.one_less(group, index, wait.value, wait.error)
        else:
            wait.group, wait.index = group, index
    await driver.join(group)
    errors = [error for _, error in group.results if error is not None]
    if errors:
        steps = [each for error in errors for each in blamed_steps(error)]
        raise blamed(errors[0], *steps) if steps else errors[0]
    return [value for value, _ in group.results]


def _check_gathered(awaitables: tuple[Any, ...]) -> None:
    for each in awaitables:
        if not (inspect.iscoroutine(each) or isinstance(each, StepOperation | WaitOperation | StartOperation)):
            raise InvalidInput(
                f"ctx.gather takes operations of ctx and coroutines, not {type(each).__name__}: what it waits for must be durable."
            )
