"""Effects of functions: steps that are recorded before they happen, so that a takeover knows which outcomes are unknown (D22).

The outcome is committed with the step. A step that began and has not ended therefore belongs to a process that died, or ended
without an answer: it is repeated under the key of the next attempt. So is an effect that ended as unknown, if the function
catches the error and requests the same effect again, at whatever place: it is the same effect, with the same dedupe key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.kernel.effects.decide import (
    REPEAT,
    UNRESOLVED,
    Begin,
    Effect,
    failed,
    is_definite,
    making,
    no_response,
    stable_hash,
    succeeded,
    succeeded_without_response,
)
from treadle.kernel.functions.steps import EFFECT, Recorded
from treadle.kernel.store.crashpoints import reach
from treadle.model.arguments import arguments_text
from treadle.model.errors import EffectUnknown, InvalidInput, StepFailed
from treadle.model.retry import RetryPolicy
from treadle.model.states import StepState
from treadle.model.user_values import error_text, type_name
from treadle.model.values import Json, decode, encode
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.cleanup import is_interrupted
from treadle.workers.functions.doubts import Doubts, Known
from treadle.workers.functions.errors import error_of
from treadle.workers.functions.steps import StepOperation

if TYPE_CHECKING:
    from treadle.workers.functions.driver import Driver


class EffectOperation(StepOperation):
    """`ctx.effect(...)`."""

    __slots__ = ("action", "on_unknown", "request", "unknown")
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
        on_unknown: str,
        limit_key: str | None,
    ) -> None:
        super().__init__(driver, fn, (), {}, action, key, retry, timeout_for, limit_key)
        self.action, self.request, self.unknown, self.on_unknown = action, request, unknown, on_unknown

    async def run(self, branch: Branch) -> Any:
        execution, journal = self.driver.execution, self.driver.journal
        if execution.held:
            await execution.wait_while_held()
        what = (self.action, stable_hash(self.request, "request"), self.key)
        name = journal.step_name(branch, self.name, self.key)
        place, recorded = journal.reach(branch, EFFECT, name)
        request = self.request if isinstance(self.request, dict) else {"request": self.request}
        about = "" if self.request is None else arguments_text(request)
        first = journal.ids.at(place) if recorded is None or recorded.of is None else recorded.of
        lost = recorded is not None and recorded.state == StepState.RUNNING
        if recorded is not None:
            journal.history.take_questions(place, recorded.attempt - lost)
        if is_interrupted(self.driver, branch, recorded):
            step = recorded or journal.new_step(place, EFFECT, name, StepState.PENDING)
            step.doubtful = step.doubtful or lost
            journal.history.take_questions(place, step.attempt)
            if step.doubtful:
                journal.note_unknown(what, first, place, step.attempt)
            await self._interrupt(branch, step)
        if recorded is None:
            recorded = journal.new_step(place, EFFECT, name, StepState.RUNNING)
            recorded.about = about or None
            first = self._repeat(recorded, what)
        elif recorded.state == StepState.COMPLETED:
            return self._loaded(recorded.value)
        elif (error := error_of(recorded)) is not None:
            if recorded.doubtful:
                journal.note_unknown(what, first, place, recorded.attempt)
            raise error
        elif recorded.state == StepState.PENDING:
            await self._wait_for_retry(branch, recorded)
        else:
            recorded.doubtful = True
        effect = Effect.of(execution.run_id, first, execution.root_id, self.action, self.request, held_by=execution.task.id)
        doubts = Doubts(self, branch, effect)
        if lost and self.on_unknown != REPEAT:
            await self.driver.recorder.log_if_unlogged(Begin(effect, recorded.attempt))
            cause = "its process ended before the answer."
            if (known := await self._resolve(doubts, recorded, cause, what, first)) is not None:
                return await self._succeeded(branch, Begin(effect, recorded.attempt), recorded, known.response)
        while True:
            if self.limit_key is not None:
                await self.driver.permits.acquire(self.limit_key)
            begin = await self._begin(branch, recorded, effect)
            branch.busy, branch.place = name, place
            began_at = self.driver.start(EFFECT, place, name, recorded, about)
            try:
                with making(begin.keys):
                    value = await self._call()
            except BaseException as error:
                if self._is_stopped_by(error):
                    raise
                recorded.doubtful = not is_definite(error, self.unknown)
                if recorded.doubtful:
                    await self.driver.recorder.log_unknown(*begin.unknown)
                else:
                    branch.next_unit().rows.append(failed(begin, error, execution.runtime.value_store))
                execution.executing.pop(place, None)
                await self._end_streams(branch)
                branch.busy = None
                if recorded.doubtful and self.on_unknown != REPEAT:
                    recorded.began_at, recorded.ended_at = began_at, execution.now()
                    if self.limit_key is not None:
                        self.driver.permits.release(branch)
                    cause = f"it raised {type_name(error)}: {error_text(error)}."
                    if (known := await self._resolve(doubts, recorded, cause, what, first)) is None:
                        continue
                    return await self._succeeded(branch, begin, recorded, known.response)
                try:
                    recorded = await self._failed(branch, place, name, recorded, error, began_at, about)
                except StepFailed:
                    if recorded.doubtful:
                        journal.note_unknown(what, first, place, recorded.attempt)
                    raise
                continue
            finally:
                branch.busy = None
                execution.executing.pop(place, None)
            recorded.began_at, recorded.ended_at = began_at, execution.now()
            await self._end_streams(branch)
            reach("effect.made")
            if self.limit_key is not None:
                self.driver.permits.release(branch)
            return await self._succeeded(branch, begin, recorded, value)

    async def _resolve(
        self, doubts: Doubts, recorded: Recorded, cause: str, what: tuple[str, str, str | None], first: str
    ) -> Known | None:
        try:
            return await doubts.resolve(recorded, cause)
        except EffectUnknown:
            self.driver.journal.note_unknown(what, first, recorded.place, recorded.attempt)
            raise

    def _repeat(self, recorded: Recorded, what: tuple[str, str, str | None]) -> str:
        """Continue the count of attempts if the new step repeats an unknown effect; return the step of the first attempt."""
        journal, place = self.driver.journal, recorded.place
        if (before := journal.history.replaced(place)) is not None:
            recorded.of, recorded.doubtful = before.of, before.doubtful or before.state == StepState.RUNNING
            recorded.attempt = max(before.attempt, journal.history.begun.get(before.of or journal.ids.at(place), 0))
        elif (found := journal.find_unknown(what, place)) is not None:
            recorded.of, recorded.attempt = found
            recorded.doubtful = True
        return recorded.of or journal.ids.at(place)

    async def _begin(self, branch: Branch, recorded: Recorded, effect: Effect) -> Begin:
        """Commit that the effect is about to happen."""
        driver = self.driver
        begin = Begin(effect, recorded.attempt + 1, UNRESOLVED if recorded.doubtful else None)
        driver.journal.history.begun[effect.step_id or ""] = begin.attempt
        if recorded.doubtful:
            await driver.recorder.log_if_unlogged(Begin(effect, recorded.attempt))
        recorded.attempt, recorded.state, recorded.doubtful = begin.attempt, StepState.RUNNING, False
        recorded.wake_at = None
        unit = branch.next_unit()
        unit.rows += begin.rows
        driver.journal.write(recorded, unit)
        reach("effect.before_begin")
        await driver.recorder.commit_decided(branch)
        reach("effect.begun")
        return begin

    async def _succeeded(self, branch: Branch, begin: Begin, recorded: Recorded, value: Any) -> Any:
        """Commit the outcome with the step, and return the value as a replay would."""
        driver, runtime = self.driver, self.driver.execution.runtime
        unit = branch.next_unit()
        try:
            value = value if self.converter is None else self.converter.dump(value)
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
        return self._loaded(recorded.value)
