"""Questions to running functions: published values, and updates with their answers."""

from __future__ import annotations

from typing import Any

from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import Unsupported
from treadle.model.ids import Ref
from treadle.model.values import Json


class FunctionCalls:
    """The part of `Runs` for callers of durable functions. Each call reaches the current run of the chain."""

    _of_functions: FunctionRuns | None

    async def query(self, run_id: Ref, name: str) -> Json:
        """Return the value that the function last published (`ctx.publish(name, value)`); needs no worker.

        Raises `NothingPublished` if there is none.
        """
        return await self._functions().query(run_id, name)

    async def update(
        self,
        run_id: Ref,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        actor: str | None = None,
    ) -> Json:
        """Send an update, and return the answer of the function (`await ctx.update(name)`); the call may be repeated with its key.

        Raises `UpdateRejected` with the reason of the function, `UpdateUnanswered` if the run ends or continues without an answer,
        and `TimeoutError` after `timeout`: the update stays, and a call with the same key waits for the same answer.
        """
        functions = self._functions()
        sent = await functions.send_update(run_id, name, payload, idempotency_key=idempotency_key, actor=actor)
        if (answer := await functions.wait_for_answer(sent, timeout)) is not None:
            return answer.value
        waited = 0 if timeout is None else milliseconds(timeout, "timeout") / 1000
        raise TimeoutError(
            f"The run {sent.run_id} has not answered the update {name} after {waited:g} s; the update stays, and a call with the "
            "same idempotency key waits for its answer."
        )

    def _functions(self) -> Functions:
        if self._of_functions is None:
            raise Unsupported("Runs of durable functions are not available here.")
        return self._of_functions.functions
