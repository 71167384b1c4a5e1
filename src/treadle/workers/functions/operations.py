"""Operations of `ctx` besides steps: durable waits, child tasks and child runs. Each starts when it is awaited or gathered."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from treadle.kernel.functions.decide import new_run
from treadle.kernel.functions.steps import ASK, CALL, RESULT, SLEEP, START, WAIT, Recorded, child_run_id, make_step
from treadle.kernel.store.units import Row
from treadle.model.arguments import arguments_text
from treadle.model.errors import Canceled, InvalidInput, InvalidPayload
from treadle.model.ids import derived_id
from treadle.model.names import Lane
from treadle.model.retry import RetryPolicy
from treadle.model.states import StepState
from treadle.model.stored import write
from treadle.model.tasks import NewTask
from treadle.model.values import Json, encode
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.cleanup import interrupted, is_interrupted
from treadle.workers.functions.errors import blamed, blamed_steps, error_of
from treadle.workers.functions.steps import StepOperation
from treadle.workers.functions.waits import Group, Wait

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver

R_co = TypeVar("R_co", covariant=True)


class WaitOperation:
    """An operation that is only a durable wait."""

    __slots__ = ("driver", "key", "load", "name")
    kind = ""

    def __init__(self, driver: Driver, name: str, key: str | None = None) -> None:
        self.driver, self.name, self.key = driver, name, key
        self.load: Callable[[Json], Any] | None = None
        """Converts the recorded value to its type."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._run(self.driver.branches.enter()).__await__()

    async def _run(self, branch: Branch) -> Any:
        if self.driver.execution.held:
            await self.driver.execution.wait_while_held()
        wait = self.begin(branch)
        await self.driver.inbox.block(wait)
        return self.loaded(wait.result())

    def loaded(self, value: Any) -> Any:
        """Return the recorded value as its type."""
        return value if self.load is None else self.load(value)

    def begin(self, branch: Branch) -> Wait:
        """Return the wait, which may have ended already; its request is recorded once."""
        recorded = self._reach(branch)
        if _is_over(recorded):
            return Wait.over(branch, recorded)
        wait = self._wait(branch, recorded)
        self.driver.inbox.register(wait)
        return wait

    def _reach(self, branch: Branch) -> Recorded:
        """Return the recorded step, or record a new one with its request."""
        self._check()
        journal = self.driver.journal
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.reach(branch, self.kind, name)
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
        return (), ()

    def _wait(self, branch: Branch, recorded: Recorded) -> Wait:
        return Wait(branch, recorded, wake_at=recorded.wake_at)


def _is_over(recorded: Recorded) -> bool:
    return recorded.state in (StepState.COMPLETED, StepState.FAILED, StepState.CANCELED)


class SleepOperation(WaitOperation):
    """`ctx.sleep`, `ctx.sleep_until`."""

    __slots__ = ("at", "sleep_for")
    kind = SLEEP

    def __init__(self, driver: Driver, sleep_for: int | None, at: int | None = None) -> None:
        super().__init__(driver, "sleep")
        self.sleep_for, self.at = sleep_for, at

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        recorded.wake_at = self.at if self.at is not None else self.driver.execution.now() + (self.sleep_for or 0)
        return (), ()


class SignalOperation(WaitOperation):
    """`ctx.wait_for`."""

    __slots__ = ("_step_id", "timeout_for")
    kind = WAIT

    def __init__(self, driver: Driver, signal: str, timeout_for: int | None) -> None:
        super().__init__(driver, signal)
        self.timeout_for = timeout_for
        self._step_id = ""

    def begin(self, branch: Branch) -> Wait:
        wait = super().begin(branch)
        self._step_id = wait.recorded.id
        return wait

    def loaded(self, value: Any) -> Any:
        try:
            return super().loaded(value)
        except InvalidPayload as error:  # a retry of the run repeats the wait
            raise blamed(error, self._step_id) from None

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        recorded.wake_at = None if self.timeout_for is None else self.driver.execution.now() + self.timeout_for
        return (), ()

    def _wait(self, branch: Branch, recorded: Recorded) -> Wait:
        return Wait(branch, recorded, signal=self.name, wake_at=recorded.wake_at)


class CallOperation(WaitOperation):
    """A child task and its result: `ctx.call`, `ctx.external`, `ctx.approval`."""

    __slots__ = ("kind", "lane", "packed", "payload", "template")

    def __init__(
        self,
        driver: Driver,
        lane: Lane,
        payload: dict[str, Json],
        template: dict[str, Any],
        *,
        kind: str = CALL,
        name: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        super().__init__(driver, name or lane.name, key)
        self.lane, self.payload, self.template, self.kind = lane, payload, template, kind
        if retry is not None:
            template["policy"] = write(retry)
        self.packed: tuple[str, Sequence[Row]] = ("", ())

    def _check(self) -> None:
        runtime = self.driver.execution.runtime
        self.packed = runtime.value_store.pack(self.payload, self.driver.execution.root_id, "payload", runtime.payload_limit)

    def _request(self, recorded: Recorded) -> tuple[Sequence[NewTask], Sequence[Row]]:
        execution = self.driver.execution
        recorded.task_id = derived_id(recorded.id, "task")
        context = self.payload.get("context") if self.kind == ASK else None
        recorded.about = arguments_text(context if isinstance(context, dict) else self.payload) or None
        text, blobs = self.packed
        task = NewTask(
            id=recorded.task_id,
            lane=self.lane,
            payload=text,
            run_id=execution.run_id,
            step_id=recorded.id,
            flow_id=execution.task.flow_id,
            root_id=execution.root_id,
            trace_id=execution.task.trace_id,
            fairness_key=execution.task.fairness_key,
            **self.template,
        )
        return (task,), blobs

    def _wait(self, branch: Branch, recorded: Recorded) -> Wait:
        return Wait(branch, recorded, child_step_id=recorded.id)


class StartOperation:
    """`ctx.start`: a child run, and the handle that waits for its result."""

    __slots__ = ("driver", "key", "load", "name", "on_parent_close", "options", "payload", "version")

    def __init__(
        self, driver: Driver, name: str, payload: dict[str, Json], version: int | None, key: str | None, options: dict[str, Any]
    ) -> None:
        self.driver, self.name, self.payload, self.version = driver, name, payload, version
        self.key, self.options = key, options
        self.on_parent_close: str | None = None
        self.load: Callable[[Json], Any] | None = None

    def __await__(self) -> Generator[Any, None, ChildRun[Any]]:
        return self._run(self.driver.branches.enter()).__await__()

    async def _run(self, branch: Branch) -> ChildRun[Any]:
        execution, journal = self.driver.execution, self.driver.journal
        if execution.held:
            await execution.wait_while_held()
        encode(self.payload, "payload", execution.runtime.payload_limit)  # refused before it has a place, also in replays
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.reach(branch, START, name)
        if is_interrupted(self.driver, branch, recorded):
            error = error_of(interrupted(self.driver, branch, recorded or journal.new_step(place, START, name, StepState.RUNNING)))
            assert error is not None
            raise error
        if recorded is None:
            runtime = execution.runtime
            version = await runtime.resolve(self.name, self.version)
            recorded = journal.new_step(place, START, name, StepState.COMPLETED)
            recorded.task_id, recorded.version = child_run_id(recorded.id), version
            recorded.about = arguments_text(self.payload) or None
            recorded.on_parent_close = self.on_parent_close
            _, task, rows = new_run(
                run_id=recorded.task_id,
                namespace=runtime.namespace,
                name=self.name,
                version=version,
                payload=self.payload,
                value_store=runtime.value_store,
                payload_limit=runtime.payload_limit,
                root_id=execution.root_id,
                trace_id=execution.task.trace_id,
                parent_id=execution.run_id,
                parent_step_id=recorded.id,
                fairness_key=execution.task.fairness_key,
                **self.options,
            )
            step = make_step(execution.run_id, recorded, runtime.value_store)
            branch.next_unit().starts.append((task, rows, step))
        if recorded.on_parent_close is not None:
            self.driver.children.append(recorded)
        return ChildRun(self.driver, recorded, self.load)


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
    kind = RESULT

    def __init__(self, driver: Driver, child: ChildRun[Any]) -> None:
        super().__init__(driver, f"{child.name}.result")
        self.child = child

    def begin(self, branch: Branch) -> Wait:
        recorded = self._reach(branch)
        if _is_over(recorded):
            wait = Wait.over(branch, recorded)
            if recorded.state != StepState.CANCELED:
                self._remember(wait)
            return wait
        if (known := self.child._outcome) is not None:
            recorded.state, recorded.value, recorded.error = known.state, known.value, known.error
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


async def gather(driver: Driver, awaitables: tuple[Any, ...]) -> list[Any]:
    """Run all concurrently, wait for ALL of them, then raise the first failure in the order of the arguments."""
    try:
        branch = driver.branches.enter()
        if driver.execution.held:
            await driver.execution.wait_while_held()
        place = driver.journal.reach_gather(branch, len(awaitables))
        await driver.recorder.commit_decided(branch)
        _check_gathered(awaitables)
    except BaseException:
        for each in awaitables:
            if inspect.iscoroutine(each):
                each.close()
        raise
    group = Group(len(awaitables))
    branches = [Branch(f"{place}.{index}.", branch) for index in range(len(awaitables))]
    for index, (each, own) in enumerate(zip(awaitables, branches, strict=True)):
        if not isinstance(each, WaitOperation):
            driver.branches.fork(group, index, own, each)
            continue
        try:
            wait = each.begin(own)
        except Exception as error:
            group.end(index, None, error, driver.execution)
            continue
        if wait.done:
            if own.pending is not None:
                branch.next_unit().take(own.pending)
            group.end(index, wait.value, wait.error, driver.execution)
        else:
            wait.group, wait.index = group, index
    await driver.branches.join(group)
    errors = [error for _, error in group.results if error is not None]
    if errors:
        if (canceled := next((each for each in errors if isinstance(each, Canceled)), None)) is not None:
            raise canceled
        steps = [each for error in errors for each in blamed_steps(error)]
        raise blamed(errors[0], *steps) if steps else errors[0]
    pairs = zip(awaitables, group.results, strict=True)
    return [each.loaded(value) if isinstance(each, WaitOperation) else value for each, (value, _) in pairs]


def _check_gathered(awaitables: tuple[Any, ...]) -> None:
    for each in awaitables:
        if not (inspect.iscoroutine(each) or isinstance(each, StepOperation | WaitOperation | StartOperation)):
            raise InvalidInput(
                f"ctx.gather takes operations of ctx and coroutines, not {type(each).__name__}: everything it waits for must be "
                "durable."
            )
