"""Operations of `ctx` for several others: `ctx.gather` waits for all of them, `ctx.first` for the first.

In a `first`, each operation has a branch, as in a gather. When the first one ends, one unit records the winner, marks the steps of
the others as canceled, and stores the task that cancels their tasks and runs. The function continues after that commit, so that
every replay sees the same winner.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from treadle.kernel.functions.decide import ABANDON
from treadle.kernel.functions.steps import ASK, CALL, RESULT, Recorded, is_finished
from treadle.kernel.queue.engine_tasks import cancel_task
from treadle.model.errors import Canceled, InvalidInput, InvalidPayload, MisusedContext
from treadle.model.states import StepState
from treadle.workers.functions.driver import Driver
from treadle.workers.functions.execution import FunctionBranch, FunctionExecution
from treadle.workers.functions.inbox import GatherGroup, Wait
from treadle.workers.functions.journal import blamed, blamed_steps
from treadle.workers.functions.step_operations import EffectOperation, StepOperation
from treadle.workers.functions.wait_operations import (
    ResultOperation,
    StartOperation,
    WaitOperation,
)


async def gather(driver: Driver, awaitables: tuple[Any, ...], return_exceptions: bool) -> list[Any]:
    """Run all concurrently, wait for ALL of them, then raise the first failure in the order of the arguments, or return all."""
    try:
        branch = driver.branches.enter()
        await driver.execution.wait_while_held()
        place = driver.journal.next_gather(branch, len(awaitables))
        await driver.recorder.commit_decided(branch)
        _check_gathered(awaitables)
    except BaseException:
        _close_coroutines(awaitables)
        raise
    group = GatherGroup(len(awaitables))
    branches = [FunctionBranch(f"{place}.{index}.", branch) for index in range(len(awaitables))]
    for index, (awaitable, own) in enumerate(zip(awaitables, branches, strict=True)):
        if isinstance(awaitable, WaitOperation):
            _begin_wait(group, index, awaitable, own, branch)
        else:
            driver.branches.fork(group, index, own, awaitable)
    await driver.branches.join(group)
    errors = [error for _, error in group.results if error is not None and not (return_exceptions and isinstance(error, Exception))]
    if errors:
        if (canceled := next((error for error in errors if isinstance(error, Canceled)), None)) is not None:
            raise canceled
        steps = [step for error in errors for step in blamed_steps(error)]
        raise blamed(errors[0], *steps) if steps else errors[0]
    results: list[Any] = []
    for awaitable, (value, error) in zip(awaitables, group.results, strict=True):
        try:
            is_typed = error is None and isinstance(awaitable, WaitOperation)
            results.append(awaitable.loaded(value) if is_typed else value if error is None else error)
        except InvalidPayload as mismatch:
            if not return_exceptions:
                raise
            results.append(mismatch)
    return results


def _close_coroutines(awaitables: Sequence[Any]) -> None:
    for awaitable in awaitables:
        if inspect.iscoroutine(awaitable):
            awaitable.close()


def _begin_wait(
    group: GatherGroup, index: int, operation: WaitOperation, own: FunctionBranch, parent: FunctionBranch
) -> Wait | None:
    """Begin an operation of a group that only waits; return its wait, or None if it has ended already."""
    execution = operation.driver.execution
    try:
        wait = operation.begin(own)
    except Exception as error:
        group.end(index, None, error, execution)
        return None
    if not wait.done:
        wait.group, wait.index = group, index
        return wait
    if own.pending is not None:
        parent.next_unit().take(own.pending)
        own.pending = None
    group.end(index, wait.value, wait.error, execution)
    return None


def _check_gathered(awaitables: tuple[Any, ...]) -> None:
    for awaitable in awaitables:
        if not (inspect.iscoroutine(awaitable) or isinstance(awaitable, StepOperation | WaitOperation | StartOperation)):
            raise InvalidInput(
                f"ctx.gather takes operations of ctx and coroutines, not {type(awaitable).__name__}: everything it waits for must "
                "be durable."
            )


R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Winner(Generic[R_co]):
    """The operation of a `ctx.first` that ended first, and its result."""

    name: str
    """The keyword that it was given with; empty for a positional argument."""
    index: int
    """Its position among all arguments."""
    value: R_co


class _First(GatherGroup):
    """The operations of one `first`."""

    __slots__ = ("branches", "driver", "names", "operations", "parent", "recorded", "waits", "winner")
    needs_all = False

    def __init__(
        self, driver: Driver, parent: FunctionBranch, names: Sequence[str], operations: Sequence[Any], recorded: Recorded
    ) -> None:
        super().__init__(len(operations))
        self.driver, self.parent, self.names, self.operations, self.recorded = driver, parent, names, operations, recorded
        self.branches = [FunctionBranch(f"{recorded.place}.{index}.", parent) for index in range(len(operations))]
        self.waits: dict[int, Wait] = {}
        self.winner: int | None = None

    def begin(self, indexes: Sequence[int]) -> None:
        """Begin these operations: first those that only wait, as one of them may have ended already, then the steps."""
        for index in indexes:
            if self.winner is None and isinstance(operation := self.operations[index], WaitOperation):
                wait = _begin_wait(self, index, operation, self.branches[index], self.parent)
                if wait is not None:
                    self.waits[index] = wait
        for index in indexes:
            if self.winner is None and isinstance(self.operations[index], StepOperation):
                self.driver.branches.fork(self, index, self.branches[index], self.operations[index])

    def end(self, index: int, value: Any, error: BaseException | None, execution: FunctionExecution) -> None:
        """Let the first branch that ends win; the ends of the others are dropped."""
        if self.winner is not None:
            return
        self.winner, self.left = index, 0
        self.results[index] = (value, error)
        if self.recorded.value is None:
            self._decide(index, canceled=isinstance(error, Canceled))
        execution.resume(self.future)

    def _decide(self, winner: int, *, canceled: bool) -> None:
        """Add the winner and the ends of the others to the unit with which the function continues."""
        journal, unit = self.driver.journal, self.parent.next_unit()
        journal.count_first(self.recorded)
        self.recorded.value = {"index": winner, "name": self.names[winner]}
        self.recorded.about = None if canceled else self.names[winner] or str(winner)
        self.recorded.state = StepState.CANCELED if canceled else StepState.COMPLETED
        journal.write(self.recorded, unit)
        tasks: list[str] = []
        runs: list[str] = []
        for index in range(len(self.operations)):
            loser = None if index == winner else self._leave(index)
            if loser is None or is_finished(loser):
                continue
            loser.state, loser.ended_at, loser.wake_at = StepState.CANCELED, self.driver.execution.now(), None
            journal.write(loser, unit)
            if loser.kind == RESULT and not self._is_abandoned(index):
                runs.append(loser.task_id or "")
            elif loser.kind in (CALL, ASK):
                tasks.append(loser.task_id or "")
        if tasks or runs:
            reason = f"{self.names[winner] or winner} was first in the run {self.driver.execution.run_id}."
            unit.tasks.append(cancel_task(self.recorded.id, self.driver.execution.runtime.namespace, reason, tasks, runs))

    def _is_abandoned(self, index: int) -> bool:
        operation = self.operations[index]
        return isinstance(operation, ResultOperation) and operation.child.on_parent_close == ABANDON

    def _leave(self, index: int) -> Recorded | None:
        """Stop an operation that lost; return its step, if it has one that is not recorded as ended."""
        own = self.branches[index]
        if (wait := self.waits.get(index)) is not None:
            self.driver.inbox.abandon(wait)
            return self._ignore(wait.recorded)
        began = own.position > 0
        executes = f"{own.scope}0" in self.driver.execution.executing
        if executes and getattr(self.operations[index], "limit_key", None) is not None:
            self.driver.semaphore_slots.release(self.parent)
        interrupted = self._interrupted(own) if began else None
        self.driver.branches.drop(own)
        return interrupted if began else self.skip(index)

    def _interrupted(self, own: FunctionBranch) -> Recorded | None:
        """The step of a branch that executes its code, or waits for its next attempt."""
        place, execution = f"{own.scope}0", self.driver.execution
        if (wait := self.driver.inbox.find_wait(own)) is not None:
            self.driver.inbox.abandon(wait)
            return wait.recorded
        if (running := execution.executing.pop(place, None)) is None:
            return None
        began_at, kind, name, _, ordinal, _, about = running
        recorded = self.driver.journal.new_step(place, kind, name, StepState.RUNNING)
        recorded.began_at, recorded.ordinal, recorded.about = began_at, ordinal, about or None
        return recorded

    def skip(self, index: int) -> Recorded | None:
        """Pass an operation that lost and does not begin here; return its step, if an earlier claim has begun it."""
        operation = self.operations[index]
        return self._ignore(self.driver.journal.skip(self.branches[index], operation.kind, operation.name, operation.key))

    def _ignore(self, recorded: Recorded | None) -> Recorded | None:
        if recorded is not None and recorded.kind in (CALL, ASK):
            self.driver.inbox.ignore(recorded.id)
        return recorded


async def first(driver: Driver, operations: Sequence[tuple[str, Any]]) -> Winner[Any]:
    """Wait for the first of the named operations to end; cancel the others; raise the winner's failure."""
    names, contenders = [name for name, _ in operations], [operation for _, operation in operations]
    _check(names, contenders)
    branch = driver.branches.enter()
    await driver.execution.wait_while_held()
    recorded, decided = driver.journal.next_first(branch, names)
    await driver.recorder.commit_decided(branch)
    group = _First(driver, branch, names, contenders, recorded)
    if decided:
        winner = recorded.value["index"]
        for index in range(len(contenders)):
            if index != winner:
                group.skip(index)
        group.begin([winner])
    else:
        group.begin(range(len(contenders)))
    await driver.branches.join(group)
    if not decided:
        await driver.recorder.commit_decided(branch)
    index = group.winner or 0
    value, error = group.results[index]
    if error is not None:
        raise error
    operation = contenders[index]
    return Winner(names[index], index, operation.loaded(value) if isinstance(operation, WaitOperation) else value)


def _check(names: Sequence[str], operations: Sequence[Any]) -> None:
    """Refuse everything but waits and steps of `ctx`."""
    problem = None if operations else "ctx.first needs an operation to wait for."
    for name, operation in zip(names, operations, strict=True):
        if isinstance(operation, EffectOperation):
            problem = "An effect cannot lose, as its outcome would be unknown. Await it after the ctx.first, or in a child run."
        elif isinstance(operation, StartOperation):
            problem = "ctx.start does not wait. Give ctx.first the result: `child = await ctx.start(...)`, then `child.result()`."
        elif not isinstance(operation, WaitOperation | StepOperation):
            problem = (
                f"ctx.first takes operations of ctx, not {type(operation).__name__}{f' ({name})' if name else ''}: it must be able "
                "to cancel them. Put other code, also a gather, into a step or a child run."
            )
    if problem is None:
        return
    _close_coroutines(operations)
    raise (MisusedContext if operations else InvalidInput)(problem)
