"""Operations of `ctx` besides steps: durable waits, updates, child tasks and child runs. Each starts when it is awaited."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from treadle.kernel.core import intercepted
from treadle.kernel.functions.decide import new_run
from treadle.kernel.functions.steps import (
    ASK,
    CALL,
    REPLY,
    RESULT,
    START,
    UPDATE,
    UPDATE_PREFIX,
    Recorded,
    child_run_id,
    make_step,
)
from treadle.kernel.queue.service import limit_fields
from treadle.kernel.runs.records import RunRequest, StartedRun
from treadle.kernel.store.units import Row
from treadle.model.conversion import Converter, plain_object
from treadle.model.errors import InvalidInput, InvalidPayload, MisusedContext, UpdateRejected
from treadle.model.ids import derived_id
from treadle.model.names import HANDLER, QueueKey
from treadle.model.retry import RetryPolicy
from treadle.model.states import StepState
from treadle.model.stored import write
from treadle.model.tasks import NewTask
from treadle.model.values import Json, arguments_text, decode, encode, shown, storable, text_of
from treadle.workers.call import outcome_of_error
from treadle.workers.functions.driver import Driver, answer_row
from treadle.workers.functions.execution import FunctionBranch, Host, executing
from treadle.workers.functions.inbox import Wait
from treadle.workers.functions.journal import blamed, failure_of

R_co = TypeVar("R_co", covariant=True)


class Operation(Coroutine[Any, Any, Any]):
    """An operation of `ctx`. Nothing happens until it is awaited or gathered; the code of a run that never does that fails.

    An asyncio task that is created for it sees a coroutine, which refuses to execute there.
    """

    __slots__ = ("driver", "key", "kind", "load", "name")

    def __init__(self, driver: Driver, kind: str, name: str, key: str | None) -> None:
        self.driver, self.kind, self.name, self.key = driver, kind, name, key
        self.load: Callable[[Json], Any] | None = None
        """Converts the recorded value to its type."""
        driver.note_created(self, kind)

    def __await__(self) -> Generator[Any, None, Any]:
        self.driver.note_begun(self)
        return self.run(self.driver.branches.enter()).__await__()

    def send(self, value: Any) -> Any:
        """Refuse to be the code of an asyncio task."""
        self.close()
        raise self.driver.branches.misuse("in another asyncio task")

    def throw(self, *error: Any) -> Any:
        """End without a beginning."""
        self.close()
        raise error[0]

    def close(self) -> None:
        """End without a beginning."""
        self.driver.note_begun(self)

    def run(self, branch: FunctionBranch) -> Coroutine[Any, Any, Any]:
        """Execute it in the branch, or return the recorded result of the branch."""
        raise NotImplementedError


class WaitOperation(Operation):
    """An operation that is only a durable wait: until an instant, for a signal, or for the first of both."""

    __slots__ = ("_step_id", "at", "signal", "wait_for")

    def __init__(
        self,
        driver: Driver,
        kind: str,
        name: str,
        key: str | None = None,
        *,
        signal: str | None = None,
        wait_for: int | None = None,
        at: int | None = None,
    ) -> None:
        """It waits `wait_for` milliseconds, or until the instant `at`."""
        super().__init__(driver, kind, name, key)
        self.signal, self.wait_for, self.at = signal, wait_for, at
        self._step_id = ""

    async def run(self, branch: FunctionBranch) -> Any:
        await self.driver.execution.wait_while_held()
        wait = self.begin(branch)
        await self.driver.inbox.block(wait)
        return self.loaded(wait.result())

    def loaded(self, value: Any) -> Any:
        """Return the recorded value as its type."""
        try:
            return value if self.load is None else self.load(value)
        except InvalidPayload as error:
            if self.signal is None:
                raise
            raise blamed(error, self._step_id) from None  # a retry of the run repeats the wait

    def begin(self, branch: FunctionBranch) -> Wait:
        """Return the wait, which may have ended already; its request is recorded once."""
        recorded = self._next_step(branch)
        self._step_id = recorded.id
        if _is_over(recorded):
            return Wait.over(branch, recorded)
        wait = self._wait(branch, recorded)
        self.driver.inbox.register(wait)
        return wait

    def _next_step(self, branch: FunctionBranch) -> Recorded:
        """Return the recorded step, or record a new one with its request."""
        self._check()
        journal = self.driver.journal
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.next_step(branch, self.kind, name)
        if is_interrupted(self.driver, branch, recorded):
            recorded = recorded or journal.new_step(place, self.kind, name, StepState.RUNNING)
            return interrupted(self.driver, branch, recorded)
        if recorded is None:
            recorded = journal.new_step(place, self.kind, name, StepState.RUNNING)
            tasks, rows = self._request(recorded)
            unit = self.driver.recorder.share(branch)
            unit.tasks += tasks
            unit.rows += rows
            journal.write(recorded, unit)
        return recorded

    def _check(self) -> None:
        """Refuse invalid arguments, also in replays: before the operation has a place, as it gets none."""

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        """Complete the new step, and return the tasks and rows that it requests."""
        recorded.wake_at = self.at if self.wait_for is None else self.driver.execution.now() + self.wait_for
        return (), ()

    def _wait(self, branch: FunctionBranch, recorded: Recorded) -> Wait:
        return Wait(branch, recorded, signal=self.signal, wake_at=recorded.wake_at)


def _is_over(recorded: Recorded) -> bool:
    return recorded.state in (StepState.COMPLETED, StepState.FAILED, StepState.CANCELED)


R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

_REASON_LIMIT = 16 * 1024


class Update(Generic[T_co]):
    """A request that a caller waits for. Answer it once, with `reply` or `reject`."""

    __slots__ = ("_driver", "id", "name", "value")

    def __init__(self, driver: Driver, update_id: str, name: str, value: T_co) -> None:
        self._driver = driver
        self.id, self.name, self.value = update_id, name, value

    def reply(self, result: Any = None) -> Coroutine[Any, Any, None]:
        """Answer with a value (any JSON, or an instance of a supported class); when this returns, the answer is durable."""
        limit = self._driver.execution.runtime.payload_limit
        answer = self._answer(decode(encode(plain_object(result), "answer", limit)), None)
        return self._driver.created(answer, f"reply to {self.name}")

    def reject(self, reason: str) -> Coroutine[Any, Any, None]:
        """Reject it: `UpdateRejected` with the reason is raised to the caller."""
        error = {"code": UpdateRejected.code, "message": storable(text_of(reason), _REASON_LIMIT)}
        return self._driver.created(self._answer(None, error), f"rejection of {self.name}")

    async def _answer(self, value: Json, error: dict[str, Json] | None) -> None:
        driver = self._driver
        branch = driver.branches.enter()
        await driver.execution.wait_while_held()
        if self.id not in driver.updates:
            raise MisusedContext(f"The update {self.name} was answered before; each is answered once.")
        del driver.updates[self.id]
        name = branch.number(self.name)
        place, recorded = driver.journal.next_step(branch, REPLY, name)
        if recorded is None:
            unit = branch.next_unit()
            driver.journal.write(driver.journal.new_step(place, REPLY, name, StepState.COMPLETED), unit)
            driver.journal.add(answer_row(self.id, self.name, value, error), unit)
            await driver.recorder.commit_decided(branch)


def update_operation(driver: Driver, name: str, timeout_for: int | None) -> WaitOperation:
    """Return `ctx.update` for values of any type."""
    operation = WaitOperation(driver, UPDATE, name, signal=f"{UPDATE_PREFIX}{name}", wait_for=timeout_for)

    def load(message: Any) -> Update[Any]:
        driver.updates[message["id"]] = name
        return Update(driver, message["id"], name, message["value"])

    operation.load = load
    return operation


async def valid_update(driver: Driver, name: str, timeout_for: int | None, load: Callable[[Json], Any]) -> Update[Any]:
    """Wait for the next update whose value matches its type; reject all others."""
    while True:
        update: Update[Any] = await update_operation(driver, name, timeout_for)
        try:
            return Update(driver, update.id, name, load(update.value))
        except InvalidPayload as error:
            await update.reject(str(error))


def typed_loader(annotation: Any, what: str, hint: str = "") -> Callable[[Json], Any]:
    """Return a function that converts JSON to the type; raises `InvalidInput` for a type that cannot be stored."""
    try:
        converter = Converter(annotation)
    except Exception as error:
        raise InvalidInput(f"{what} cannot have the type {shown(annotation)}: {error}.") from None

    def load(value: Json) -> Any:
        try:
            return converter.load(value)
        except InvalidPayload as error:
            raise InvalidPayload(f"{what} does not match its type: {error}{hint}") from None

    return load


class CallOperation(WaitOperation):
    """A child task and its result: `ctx.call`, `ctx.external`, `ctx.approval`."""

    __slots__ = ("packed", "payload", "queue", "template")

    def __init__(
        self,
        driver: Driver,
        queue: QueueKey,
        payload: dict[str, Json],
        template: dict[str, Any],
        *,
        kind: str = CALL,
        name: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        super().__init__(driver, kind, name or queue.name, key)
        self.queue, self.payload, self.template = queue, payload, template
        if retry is not None:
            template["policy"] = write(retry)
        self.packed: tuple[str, Sequence[Row]] = ("", ())

    def _check(self) -> None:
        runtime = self.driver.execution.runtime
        if self.queue.kind == HANDLER and self.template.get("limit_key") is None:
            self.template |= limit_fields(runtime.limits_for(self.queue.name, self.payload))
        self.packed = runtime.value_store.pack(self.payload, self.driver.execution.root_id, "payload", runtime.payload_limit)

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        execution = self.driver.execution
        recorded.task_id = derived_id(recorded.id, "task")
        context = self.payload.get("context") if self.kind == ASK else None
        recorded.about = arguments_text(context if isinstance(context, dict) else self.payload) or None
        text, blobs = self.packed
        task = NewTask(
            id=recorded.task_id,
            queue=self.queue,
            payload=text,
            run_id=execution.run_id,
            step_id=recorded.id,
            flow_id=execution.task.flow_id,
            root_id=execution.root_id,
            trace_id=execution.task.trace_id,
            fairness_key=execution.task.fairness_key,
            baggage=execution.task.baggage,
            **self.template,
        )
        return (task,), blobs

    def _wait(self, branch: FunctionBranch, recorded: Recorded) -> Wait:
        return Wait(branch, recorded, child_step_id=recorded.id)


class StartOperation(Operation):
    """`ctx.start`: a child run, and the handle that waits for its result."""

    __slots__ = ("on_parent_close", "options", "payload", "version")

    def __init__(
        self,
        driver: Driver,
        name: str,
        payload: dict[str, Json],
        version: int | None,
        key: str | None,
        options: dict[str, Any],
        on_parent_close: str | None,
    ) -> None:
        super().__init__(driver, START, name, key)
        self.payload, self.version, self.options, self.on_parent_close = payload, version, options, on_parent_close

    async def run(self, branch: FunctionBranch) -> ChildRun[Any]:
        execution, journal = self.driver.execution, self.driver.journal
        await execution.wait_while_held()
        encode(self.payload, "payload", execution.runtime.payload_limit)  # refused before it has a place, also in replays
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.next_step(branch, START, name)
        if is_interrupted(self.driver, branch, recorded):
            raise failure_of(interrupted(self.driver, branch, recorded or journal.new_step(place, START, name, StepState.RUNNING)))
        if recorded is None:
            recorded = journal.new_step(place, START, name, StepState.COMPLETED)
            await self._start(branch, recorded)
        if recorded.state == StepState.FAILED:
            raise failure_of(recorded)
        if recorded.on_parent_close is not None:
            self.driver.children.append(recorded)
        return ChildRun(self.driver, recorded, self.load)

    async def _start(self, branch: FunctionBranch, recorded: Recorded) -> None:
        """Create the child inside of the interceptors; an exception of theirs is the recorded result of the step."""
        around = self.driver.execution.runtime.around
        if "start" not in around:
            await self._create(branch, recorded, self.name, self.payload, {"version": self.version, **self.options})
            return

        async def create(request: RunRequest) -> StartedRun:
            await self._create(branch, recorded, request.name, request.payload, request.options)
            return StartedRun(recorded.task_id or "")

        request = RunRequest(self.name, self.payload, {"version": self.version, **self.options})
        try:
            await intercepted(around, "start", request, create)
        except Exception as error:
            recorded.state, recorded.task_id = StepState.FAILED, None
            recorded.error = outcome_of_error(error, "start_error").problem.as_json()
            unit = branch.next_unit()
            unit.starts = [start for start in unit.starts if start[2].id != recorded.id]
            self.driver.journal.write(recorded, unit)

    async def _create(
        self, branch: FunctionBranch, recorded: Recorded, name: str, payload: Mapping[str, Json] | None, options: Mapping[str, Any]
    ) -> None:
        execution = self.driver.execution
        runtime, task = execution.runtime, execution.task
        version = await runtime.resolve(name, options.get("version"))
        recorded.task_id, recorded.version = child_run_id(recorded.id), version
        recorded.about = arguments_text(payload or {}) or None
        recorded.on_parent_close = self.on_parent_close
        inherited = {"fairness_key": task.fairness_key, "baggage": task.baggage}
        _, own_task, rows = new_run(
            run_id=recorded.task_id,
            namespace=runtime.namespace,
            name=name,
            payload=payload,
            value_store=runtime.value_store,
            payload_limit=runtime.payload_limit,
            root_id=execution.root_id,
            trace_id=task.trace_id,
            parent_id=execution.run_id,
            parent_step_id=recorded.id,
            limits_for=runtime.limits_for,
            **{**inherited, **options, "version": version},
        )
        step = make_step(execution.run_id, recorded, runtime.value_store)
        branch.next_unit().starts.append((own_task, rows, step))


class ChildRun(Generic[R_co]):
    """A run that a function has started."""

    __slots__ = ("_driver", "_load", "_outcome", "_recorded", "id", "name", "on_parent_close")

    def __init__(self, driver: Driver, recorded: Recorded, load: Callable[[Json], R_co] | None = None) -> None:
        self._driver = driver
        self._load = load
        self._recorded = recorded
        self._outcome: Recorded | None = None
        self.id: str = recorded.task_id or ""
        self.on_parent_close = recorded.on_parent_close
        self.name: str = recorded.name

    def result(self) -> Awaitable[R_co]:
        """Wait for the child to end and return its result; raises `RunFailed` or `RunCanceled`."""
        operation = ResultOperation(self._driver, self)
        operation.load = self._load
        return operation


class ResultOperation(WaitOperation):
    """`await child.result()`."""

    __slots__ = ("child",)

    def __init__(self, driver: Driver, child: ChildRun[Any]) -> None:
        super().__init__(driver, RESULT, f"{child.name}.result")
        self.child = child

    def begin(self, branch: FunctionBranch) -> Wait:
        recorded = self._next_step(branch)
        if _is_over(recorded):
            wait = Wait.over(branch, recorded)
            if recorded.state != StepState.CANCELED:
                self._remember(wait)
            return wait
        if (outcome := self.child._outcome) is not None:
            recorded.state, recorded.value, recorded.error = outcome.state, outcome.value, outcome.error
            self.driver.journal.write(recorded, branch.next_unit())
            return Wait.over(branch, recorded)
        wait = Wait(branch, recorded, child_step_id=recorded.of)
        wait.on_done = self._remember
        self.driver.inbox.register(wait)
        return wait

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        recorded.task_id, recorded.of = self.child.id, self.child._recorded.id
        return (), ()

    def _remember(self, wait: Wait) -> None:
        """Keep the child's end for later calls of `result`, as its message comes only once."""
        self.child._outcome = wait.recorded


def is_interrupted(driver: Driver, branch: FunctionBranch, recorded: Recorded | None) -> bool:
    """Return whether `Canceled` is raised at the operation with this step, and note it in the branch."""
    if recorded is not None and recorded.state == StepState.CANCELED:
        branch.interrupt()
        return True
    ended = recorded is not None and recorded.state in (StepState.COMPLETED, StepState.FAILED)
    if driver.execution.cancel is None or branch.interrupted or ended:
        return False
    branch.interrupt()
    return True


def interrupted(driver: Driver, branch: FunctionBranch, recorded: Recorded) -> Recorded:
    """Record that `Canceled` is raised at the operation with this step."""
    if recorded.state != StepState.CANCELED:
        assert driver.execution.cancel is not None
        recorded.state, recorded.wake_at, recorded.ended_at = StepState.CANCELED, None, driver.execution.now()
        recorded.error = {"code": driver.execution.cancel.code, "message": driver.execution.cancel.message}
        driver.journal.write(recorded, branch.next_unit())
    return recorded


async def run_hosted(driver: Driver, host: Host, name: str, operation: Operation) -> Any:
    """Await the operation in the calling task as a branch of the host."""
    execution, task = driver.execution, asyncio.current_task()
    if execution.closed or task is None:
        raise asyncio.CancelledError
    operation.name, branch = host.branch_for(name)
    before = driver.branches.enter_as(task, branch)
    token = executing.set((execution.function.name, execution.function.code, branch))
    host.begin()
    try:
        return await operation
    finally:
        executing.reset(token)
        driver.branches.leave(task, before)
        if not execution.closed:
            driver.recorder.share(branch)
        host.end(branch)


def host_of(driver: Driver) -> Host:
    """Return the host of the branch that the calling task belongs to; the next operation of the branch itself ends it."""
    current = executing.get()
    if current is None or current[2].host is not None:
        raise MisusedContext("ctx.hosted was called outside a function, or inside another operation.")
    branch, journal = current[2], driver.journal
    if branch.hosting is None:
        place = journal.next_gather(branch, sys.maxsize)
        width = journal.history.widest.get(place, 0)
        branch.hosting = Host(driver.execution, branch, place, journal.history.named(place), width)
    return branch.hosting
