"""Effects of functions: steps that are recorded before they happen, so that a takeover knows which outcomes are unknown (D22).

The outcome is committed with the step. A step that began and has not ended therefore belongs to a process that died, or ended
without an answer: it is repeated under the key of the next attempt, and the log records `tool_call.unknown`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.kernel.effects.decide import (
    UNRESOLVED,
    Begin,
    Effect,
    failed,
    is_definite,
    making,
    no_response,
    succeeded,
    succeeded_without_response,
)
from treadle.kernel.functions.steps import EFFECT, Recorded
from treadle.kernel.store.crashpoints import reach
from treadle.model.errors import InvalidInput
from treadle.model.retry import RetryPolicy
from treadle.model.states import StepState
from treadle.model.values import Json, decode, encode
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.errors import error_of
from treadle.workers.functions.steps import StepOperation

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver


class EffectOperation(StepOperation):
    """`ctx.effect(...)`."""

    __slots__ = ("action", "request", "unknown")
    kind = EFFECT

    def __init__(
        self,
        driver: Driver,
        action: str,
        fn: Callable[..., Any],
        request: Json,
        key: str | None,
        retry: RetryPolicy | None,
        timeout_for: int | None,
        unknown: tuple[type[BaseException], ...],
    ) -> None:
        super().__init__(driver, fn, (), {}, action, key, retry, timeout_for)
        self.action, self.request, self.unknown = action, request, unknown

    async def run(self, branch: Branch) -> Any:
        execution, journal = self.driver.execution, self.driver.journal
        if execution.held:
            await execution.wait_while_held()
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.reach(branch, EFFECT, name)
        if recorded is not None:
            if recorded.state == StepState.COMPLETED:
                return recorded.value
            if (error := error_of(recorded)) is not None:
                raise error
            if recorded.state == StepState.PENDING:
                await self._wait_for_retry(branch, recorded)
            else:
                recorded.doubtful = True
        effect = Effect.of(execution.run_id, journal.ids.at(place), execution.root_id, self.action, self.request)
        while True:
            begin, recorded = await self._begin(branch, place, name, recorded, effect)
            branch.busy = name
            try:
                with making(begin.keys):
                    value = await self._call()
            except BaseException as error:
                if self._is_stopped_by(error):
                    raise
                recorded.doubtful = not is_definite(error, self.unknown)
                if not recorded.doubtful:
                    branch.next_unit().rows.append(failed(begin, error, execution.runtime.value_store))
                recorded = await self._failed(branch, place, name, recorded, error)
                continue
            finally:
                branch.busy = None
            reach("effect.made")
            return await self._succeeded(branch, begin, recorded, value)

    async def _begin(
        self, branch: Branch, place: str, name: str, recorded: Recorded | None, effect: Effect
    ) -> tuple[Begin, Recorded]:
        """Commit that the effect is about to happen."""
        journal = self.driver.journal
        if recorded is None:
            recorded = journal.new_step(place, EFFECT, name, StepState.RUNNING)
            recorded.attempt, recorded.doubtful = journal.history.attempts(place), journal.history.doubted(place)
        begin = Begin(effect, recorded.attempt + 1, UNRESOLVED if recorded.doubtful else None)
        recorded.attempt, recorded.state, recorded.doubtful = begin.attempt, StepState.RUNNING, False
        recorded.wake_at = None
        unit = branch.next_unit()
        unit.rows.append(begin.row)
        unit.doubt = begin.data if begin.doubt else None
        journal.write(recorded, unit)
        reach("effect.before_begin")
        await self.driver.recorder.commit_decided(branch)
        reach("effect.begun")
        return begin, recorded

    async def _succeeded(self, branch: Branch, begin: Begin, recorded: Recorded, value: Any) -> Any:
        """Commit the outcome with the step, and return the value as a replay would."""
        driver, runtime = self.driver, self.driver.execution.runtime
        unit = branch.next_unit()
        try:
            rows = succeeded(begin, value, runtime.value_store)
            text = encode(value, "response", runtime.payload_limit)
        except InvalidInput as error:
            unit.rows.append(succeeded_without_response(begin))
            recorded.state = StepState.FAILED
            unstorable = no_response(error)
            recorded.error = {"code": unstorable.error_code, "message": str(unstorable)}
            driver.journal.write(recorded, unit)
            await driver.recorder.commit_decided(branch)
            raised = error_of(recorded)
            assert raised is not None
            raise raised from error
        unit.rows += rows
        recorded.state, recorded.value, recorded.error = StepState.COMPLETED, decode(text), None
        driver.journal.write(recorded, unit)
        await driver.recorder.commit_decided(branch)
        reach("effect.recorded")
        return recorded.value
