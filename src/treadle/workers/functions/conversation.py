"""Operations of `ctx` with which a function talks with its callers: signals, updates with answers, published values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from treadle.kernel.functions.steps import (
    ANSWER,
    PUBLISH,
    REPLY,
    UPDATE,
    UPDATE_PREFIX,
    Recorded,
    answer_id,
    folded,
)
from treadle.model.clock import Duration, milliseconds
from treadle.model.conversion import Converter, is_raw, plain_object
from treadle.model.errors import InvalidInput, InvalidPayload, MisusedContext, UpdateRejected, UpdateUnanswered
from treadle.model.names import check_name
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.user_values import shown, storable, text_of
from treadle.model.values import Json, decode, encode
from treadle.workers.functions.branches import Branch, PendingUnit
from treadle.workers.functions.errors import error_of
from treadle.workers.functions.operations import SignalOperation
from treadle.workers.functions.waits import Wait

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver

R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

PUBLISHED_LIMIT = 100
"""Limit on the names that a run publishes."""
_REASON_LIMIT = 16 * 1024


class Update(Generic[T_co]):
    """A request that a caller waits for. Answer it once, with `reply` or `reject`."""

    __slots__ = ("_driver", "id", "name", "value")

    def __init__(self, driver: Driver, update_id: str, name: str, value: T_co) -> None:
        self._driver = driver
        self.id, self.name, self.value = update_id, name, value

    async def reply(self, result: Any = None) -> None:
        """Answer with a value (any JSON, or an instance of a supported class); when this returns, the answer is durable."""
        limit = self._driver.execution.runtime.payload_limit
        await self._answer(decode(encode(plain_object(result), "answer", limit)), None)

    async def reject(self, reason: str) -> None:
        """Reject it: `UpdateRejected` with the reason is raised to the caller."""
        await self._answer(None, {"code": UpdateRejected.code, "message": storable(text_of(reason), _REASON_LIMIT)})

    async def _answer(self, value: Json, error: dict[str, Json] | None) -> None:
        driver = self._driver
        branch = driver.branches.enter()
        if driver.execution.held:
            await driver.execution.wait_while_held()
        if self.id not in driver.updates:
            raise MisusedContext(f"The update {self.name} was answered before; each is answered once.")
        del driver.updates[self.id]
        name = branch.number(self.name)
        place, recorded = driver.journal.reach(branch, REPLY, name)
        if recorded is None:
            unit = branch.next_unit()
            driver.journal.write(driver.journal.new_step(place, REPLY, name, StepState.COMPLETED), unit)
            add_row(driver, unit, answer_id(self.id), ANSWER, self.name, value, error)
            await driver.recorder.commit_decided(branch)


def add_row(
    driver: Driver, unit: PendingUnit, row_id: str, kind: str, name: str, value: Json, error: dict[str, Json] | None = None
) -> None:
    """Add a row without a place to the unit."""
    execution = driver.execution
    state = StepState.COMPLETED if error is None else StepState.FAILED
    row = Recorded(id=row_id, kind=kind, name=name, state=state, value=value, error=error)
    step, blobs = folded(execution.run_id, row, execution.root_id, execution.runtime.value_store)
    unit.rows += blobs
    unit.steps[row_id] = step


def unanswered(driver: Driver) -> Sequence[Step]:
    """The answers to the updates that the function has received and not answered, for the end of a run that continues."""
    unit = PendingUnit()
    for update_id, name in driver.updates.items():
        add_row(driver, unit, answer_id(update_id), ANSWER, name, None, {"code": UpdateUnanswered.code})
    return list(unit.steps.values())


class UpdateOperation(SignalOperation):
    """`ctx.update`."""

    __slots__ = ()
    kind = UPDATE

    def __init__(self, driver: Driver, name: str, timeout_for: int | None) -> None:
        super().__init__(driver, name, timeout_for)
        self.load = self._load

    def _wait(self, branch: Branch, recorded: Recorded) -> Wait:
        return Wait(branch, recorded, signal=f"{UPDATE_PREFIX}{self.name}", wake_at=recorded.wake_at)

    def _load(self, message: Any) -> Update[Any]:
        self.driver.updates[message["id"]] = self.name
        return Update(self.driver, message["id"], self.name, message["value"])


async def _valid_update(driver: Driver, name: str, timeout_for: int | None, load: Callable[[Json], Any]) -> Update[Any]:
    """Wait for the next update whose value matches its type; reject all others."""
    while True:
        update: Update[Any] = await UpdateOperation(driver, name, timeout_for)
        try:
            return Update(driver, update.id, name, load(update.value))
        except InvalidPayload as error:
            await update.reject(str(error))


class Conversation:
    """The operations of `ctx` for callers."""

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None) -> Awaitable[Json]: ...
    @overload
    def wait_for(self, signal: str, timeout: Duration | None = None, *, type: type[R]) -> Awaitable[R]: ...
    def wait_for(self, signal: str, timeout: Duration | None = None, *, type: Any = Any) -> Awaitable[Any]:  # noqa: A002
        """Wait for the next signal of that name and return its payload; earlier signals are consumed first, in order.

        With a `type`, the payload arrives as that type, or `InvalidPayload` is raised; if that fails the run, a retry
        waits for the next signal. Raises `SignalTimeout` if none arrives within `timeout`.
        """
        timeout_for = None if timeout is None else milliseconds(timeout, "timeout")
        operation = SignalOperation(self._driver, check_name(signal, "signal name"), timeout_for)
        if not is_raw(type):
            again = f". `treadle runs retry {self._driver.execution.run_id}` waits for it again; then send one that matches."
            operation.load = _loader(type, f"The signal {signal}", again)
        return operation

    @overload
    def update(self, name: str, timeout: Duration | None = None) -> Awaitable[Update[Any]]: ...
    @overload
    def update(self, name: str, timeout: Duration | None = None, *, type: type[R]) -> Awaitable[Update[R]]: ...
    def update(self, name: str, timeout: Duration | None = None, *, type: Any = Any) -> Awaitable[Any]:  # noqa: A002
        """Wait for the next update of that name: a request whose caller waits for `await update.reply(...)` or `.reject(...)`.

        `update.value` is the caller's payload. With a `type` it arrives as that type; updates that do not match it are rejected.
        Raises `SignalTimeout` if none arrives within `timeout`.
        """
        timeout_for = None if timeout is None else milliseconds(timeout, "timeout")
        check_name(name, "update name")
        if is_raw(type):
            return UpdateOperation(self._driver, name, timeout_for)
        return _valid_update(self._driver, name, timeout_for, _loader(type, f"The update {name}"))

    def publish(self, name: str, value: Any) -> None:
        """Set a value that `handle.query(name)` returns to any caller, without a worker and also after the end.

        The value is any JSON or an instance of a supported class; it is stored with the next step, or when the run waits or ends.
        The run that `continue_as_new` starts keeps it. A run publishes up to 100 names, together up to the limit on payloads.
        """
        driver = self._driver
        check_name(name, "name of a published value")
        limit = driver.execution.runtime.payload_limit
        stored = decode(encode(plain_object(value), "published value", limit))
        journal, branch = driver.journal, driver.branches.enter()
        step_name = branch.number(name)
        place, recorded = journal.reach(branch, PUBLISH, step_name)
        if recorded is None:
            recorded, unit = journal.new_step(place, PUBLISH, step_name, StepState.COMPLETED), branch.next_unit()
            known = {**journal.published, name: {"value": stored, "at": driver.execution.now()}}
            try:  # depends on other branches and earlier runs, so a refusal is recorded
                if len(known) > PUBLISHED_LIMIT:
                    raise InvalidInput(f"A run publishes values under up to {PUBLISHED_LIMIT} names.")
                encode(known, "published values", limit)
            except InvalidInput as error:
                recorded.state, recorded.error = StepState.FAILED, {"code": error.code, "message": str(error)}
            else:
                journal.published, unit.publishes = known, True
            journal.write(recorded, unit)
        if (refused := error_of(recorded)) is not None:
            raise refused


def _loader(annotation: Any, what: str, hint: str = "") -> Callable[[Json], Any]:
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
