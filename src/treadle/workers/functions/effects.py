"""Effects of functions: steps that are announced before they are made, so that a takeover knows what nobody knows (D22).

The outcome is committed with the step, so a step that was begun and has not ended is one that a process died over, or that ended
without an answer: it is made again under the key of the next attempt, and the log says so.
"""

from __future__ import annotations

import asyncio
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
from treadle.kernel.functions.rows import EFFECT, Recorded
from treadle.kernel.store.crashpoints import reach
from treadle.model.errors import InvalidInput
from treadle.model.retry import RetryPolicy
from treadle.model.states import StepState
from treadle.model.values import Json, decode, encode
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.inbox import error_of
from treadle.workers.functions.operations import StepOperation, is_stopped

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
        driver = self.driver
        if driver.held:
            await driver.stop()
        name = branch.number(self.name) if self.key is None else driver.check_key(self.key)
        place, recorded = driver.reach(branch, EFFECT, name)
        if recorded is not None:
            if recorded.state == StepState.COMPLETED:
                return recorded.value
            if (error := error_of(recorded)) is not None:
                raise error
            if recorded.state == StepState.PENDING:
                await self._wait_again(branch, recorded)
            else:
                recorded.doubtful = True
        value_store = driver.runtime.value_store
        effect = Effect.of(driver.run_id, driver.ids.at(place), driver.root_id, self.action, self.request)
        while True:
            begin = await self._begin(branch, place, name, recorded, effect)
            recorded = begin[1]
            branch.busy = name
            try:
                with making(begin[0].keys):
                    value = await self._call()
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_stopped(driver):
                    raise
                recorded.doubtful = not is_definite(error, self.unknown)
                if not recorded.doubtful:
                    branch.later().rows.append(failed(begin[0], error, value_store))
                recorded = await self._failed(branch, place, name, recorded, error)
                continue
            finally:
                branch.busy = None
            reach("effect.made")
            return await self._made(branch, begin[0], recorded, value)

    async def _begin(
        self, branch: Branch, place: str, name: str, recorded: Recorded | None, effect: Effect
    ) -> tuple[Begin, Recorded]:
        """Commit that the effect is about to be made."""
        driver = self.driver
        if recorded is None:
            recorded = driver.make(place, EFFECT, name, StepState.RUNNING)
            recorded.attempt, recorded.doubtful = driver.history.attempts(place), driver.history.doubted(place)
        begin = Begin(effect, recorded.attempt + 1, UNRESOLVED if recorded.doubtful else None)
        recorded.attempt, recorded.state, recorded.doubtful = begin.attempt, StepState.RUNNING, False
        recorded.wake_at = None
        later = branch.later()
        later.rows.append(begin.row)
        later.doubt = begin.data if begin.doubt else None
        driver.record(recorded, later)
        reach("effect.before_begin")
        await driver.commit_decided(branch)
        reach("effect.begun")
        return begin, recorded

    async def _made(self, branch: Branch, begin: Begin, recorded: Recorded, value: Any) -> Any:
        """Commit the outcome with the step; what comes back is what a replay would give."""
        driver = self.driver
        later = branch.later()
        try:
            rows = succeeded(begin, value, driver.runtime.value_store)
            text = encode(value, "response", driver.runtime.payload_limit)
        except InvalidInput as error:
            later.rows.append(succeeded_without_response(begin))
            recorded.state = StepState.FAILED
            recorded.error = {"code": no_response().error_code, "message": str(no_response())}
            driver.record(recorded, later)
            await driver.commit_decided(branch)
            raised = error_of(recorded)
            assert raised is not None
            raise raised from error
        later.rows += rows
        recorded.state, recorded.value, recorded.error = StepState.COMPLETED, decode(text), None
        driver.record(recorded, later)
        await driver.commit_decided(branch)
        reach("effect.recorded")
        return recorded.value
