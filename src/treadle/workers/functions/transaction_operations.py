"""Transactional steps: code that changes the user's own database exactly once, because the same transaction records its result."""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any

from treadle.kernel.functions.steps import Recorded
from treadle.model.errors import MisusedContext
from treadle.model.values import Json, decode, encode
from treadle.workers.context import RegisteredHandler
from treadle.workers.functions.execution import FunctionBranch
from treadle.workers.functions.step_operations import StepOperation
from treadle.workers.functions.sync import drive, wait
from treadle.workers.signatures import is_async


class TransactionOperation(StepOperation):
    """`ctx.transaction(...)`: a step whose code is called in a transaction of `session`."""

    __slots__ = ("place", "session", "step_name")

    def __init__(self, session: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.session = session

    async def _attempt(
        self, branch: FunctionBranch, place: str, name: str, recorded: Recorded | None, about: str
    ) -> tuple[int, Any, BaseException | None]:
        self.place, self.step_name = place, name
        return await super()._attempt(branch, place, name, recorded, about)

    async def _execute(self) -> Any:
        if is_async(self.fn):
            return await drive(partial(self._transact, wait))
        execution = self.driver.execution
        call = partial(copy_context().run, execution.runtime.wrap_in_thread(self._transact), None)
        return await execution.runtime.executor.in_thread(RegisteredHandler(execution.function.queue_name, call, 0, "thread"), ())

    def _transact(self, wait: Any) -> Json:
        """Execute the step in a thread, or in a greenlet in which `wait` awaits a value."""
        execution = self.driver.execution
        if execution.runtime.record_step is None:
            raise MisusedContext("Transactional steps are not available here: they need a worker of an engine.")

        def call(session: Any) -> str:
            value = self.fn(session, *self.args, **self.kwargs)
            return encode(super(TransactionOperation, self)._stored(value if wait is None else wait(value)))

        # the same for every attempt, and also if an operator has the step repeated
        identity = self.driver.journal.ids.at(self.place)
        step = {"step_id": identity, "run_id": execution.run_id, "name": self.step_name, "at": execution.now()}
        return decode(execution.runtime.record_step(self.session, step, call, wait))

    def _stored(self, value: Any) -> Json:
        # as it was recorded, unless an interceptor has returned another value
        return decode(encode(value, "result", self.driver.execution.runtime.payload_limit))
