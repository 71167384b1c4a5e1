"""Unknown outcomes of a function's effects that are not simply repeated: the effect fails, or a person decides.

The approval has a place below that of its effect, so that steps after the effect keep their places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from treadle.kernel.effects.decide import ASK, Effect, unrepeated
from treadle.kernel.functions import steps
from treadle.kernel.functions.steps import Recorded, make_step, question_place
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import InvalidPayload, TreadleError
from treadle.model.names import APPROVAL, Lane
from treadle.model.states import StepState
from treadle.model.values import Json
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.errors import UNKNOWN_OUTCOME, error_of
from treadle.workers.functions.operations import CallOperation

if TYPE_CHECKING:
    from treadle.workers.functions.effects import EffectOperation


_RESPONSE = "response"
_CONTEXT = {"action", "request", "attempt", "dedupe_key", "cause"}


class Known(NamedTuple):
    """The response of an effect that a person found to have happened."""

    response: object


class Doubts:
    """The unknown outcomes of one effect with `on_unknown="ask"` or `"fail"`."""

    __slots__ = ("_branch", "_effect", "_operation")

    def __init__(self, operation: EffectOperation, branch: Branch, effect: Effect) -> None:
        self._operation, self._branch, self._effect = operation, branch, effect

    async def resolve(self, recorded: Recorded, cause: str) -> Known | None:
        """Return the response if a person knows it, or None to repeat the effect; otherwise record and raise `EffectUnknown`."""
        if self._operation.on_unknown != ASK:
            await self._fail(recorded, cause)
        try:
            decision = await self._ask(recorded, cause)
        except TreadleError as refused:  # denied, expired, or its task was canceled
            await self._fail(recorded, f"{cause} {refused}")
        context = decision.get("context")
        if not isinstance(context, dict) or _RESPONSE not in context:
            if isinstance(context, dict) and not decision.get("edited") and context.keys() <= _CONTEXT:
                return None
            await self._fail(recorded, f'{cause} The decision has an edit without the key "{_RESPONSE}", which has no meaning.')
        converter = self._operation.converter
        try:
            return Known(context[_RESPONSE] if converter is None else converter.load(context[_RESPONSE]))
        except InvalidPayload as error:
            await self._fail(recorded, f"{cause} The response in the decision does not match its type: {error}")

    async def _ask(self, recorded: Recorded, cause: str) -> dict[str, Json]:
        operation, effect = self._operation, self._effect
        driver = operation.driver
        task = driver.execution.task
        context: dict[str, Json] = {
            "action": effect.action,
            "request": operation.request,
            "attempt": recorded.attempt,
            "dedupe_key": effect.dedupe_key,
            "cause": cause,
        }
        asked = ApprovalRequest.of(
            f"Repeat the effect {effect.action}? It is unknown whether it happened. Deny to fail it; if it happened, approve with "
            'its response as an edit: {"response": ...}.',
            context=context,
            edits=True,
        )
        asked = msgspec.structs.replace(asked, edit_keys=(_RESPONSE,))
        lane = Lane(driver.execution.runtime.namespace, APPROVAL, task.task_list, APPROVAL)
        name = f"decide {effect.action}"
        question = CallOperation(driver, lane, asked.as_json(), {"priority": task.priority}, kind=steps.ASK, name=name)
        below = Branch(question_place(recorded.place, recorded.attempt)[:-1], self._branch)
        try:
            wait = question.begin(below)
            await driver.inbox.block(wait)
        finally:
            if below.pending is not None:
                self._branch.next_unit().take(below.pending)
        return wait.result()  # type: ignore[no-any-return]

    async def _fail(self, recorded: Recorded, cause: str) -> NoReturn:
        driver = self._operation.driver
        execution = driver.execution
        error = unrepeated(self._effect.action, f"treadle effects list --run {execution.run_id}", cause)
        recorded.state, recorded.wake_at, recorded.doubtful = StepState.FAILED, None, True
        recorded.error = {"code": error.code, "message": str(error), "state": UNKNOWN_OUTCOME}
        await driver.recorder.checkpoint(self._branch, make_step(execution.run_id, recorded, execution.runtime.value_store))
        raised = error_of(recorded)
        assert raised is not None
        raise raised
