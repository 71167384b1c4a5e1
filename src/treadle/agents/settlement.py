"""Settlement of a task through an agent's evaluator: `continue_step`, `fail_step`, `resume`, as specified.

It is still one commit: the store object holds the claim, and the evaluator settles under it. The worker settles itself where the
evaluator is Treadle's own; it calls an evaluator that overrides these methods.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from treadle.agents.connection import Held
from treadle.agents.evaluator import Evaluator
from treadle.agents.invoke import is_interrupt
from treadle.agents.persistence import Persistence
from treadle.kernel.functions.steps import is_function
from treadle.kernel.store.units import DONE, Answer, Finish, Park
from treadle.model.errors import InvalidInput, StoreError, TreadleError
from treadle.model.outcomes import Failed, Outcome, Problem, Retry, Succeeded
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task
from treadle.model.text import safe_logger
from treadle.model.values import decode

_log = safe_logger("treadle.agents")


class EvaluatorSettler:
    """Ends an agent's tasks through its evaluator; `asts` are the programs that it was given for `resume`."""

    def __init__(self, persistence: Persistence, evaluator: Evaluator, asts: Mapping[str, Mapping[str, Any]]) -> None:
        self._persistence = persistence
        self._evaluator = evaluator
        self._asts = asts
        self._fail_options = _options_of(evaluator.fail_step)
        self._resumes = _own(evaluator, "resume")
        self.asked = self._resumes or _own(evaluator, "continue_step") or _own(evaluator, "fail_step")
        """Whether the evaluator overrides methods that the worker must call."""

    def end(self, held: Held, outcome: Outcome) -> None:
        """Give a step its result or its error, and end its task, in the calling thread."""
        task = held.task
        if _of_flow(task) and task.step_id is not None and isinstance(outcome, Succeeded | Failed | Retry):
            try:
                self._call_evaluator(task.step_id, outcome)
            except StoreError:
                raise
            except InvalidInput as error:
                outcome = _unstorable(error)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                _log.error("the evaluator raised for step %s, whose task is settled without it: %r", task.step_id, error)
        if self._persistence.claims.take(task.id) is not None:
            self._settle(held, outcome)

    def _settle(self, held: Held, outcome: Outcome) -> None:
        persistence = self._persistence
        try:
            persistence.run(persistence.settle(held, outcome))
        except InvalidInput as error:
            persistence.claims.take(held.task.id)
            persistence.run(persistence.settle(held, _unstorable(error)))

    def _call_evaluator(self, step_id: str, outcome: Succeeded | Failed | Retry) -> None:
        if isinstance(outcome, Succeeded):
            self._evaluator.continue_step(step_id, outcome.result)
            return
        problem = outcome.problem
        details = {"code": problem.code, "error_type": problem.type, "traceback": problem.traceback}
        options: dict[str, Any] = {name: value for name, value in details.items() if name in self._fail_options}
        self._evaluator.fail_step(step_id, problem.message, **options)

    def resume(self, task: Task) -> None:
        """Continue the task's run; errors are logged. A durable function continues by itself."""
        run_id = task.run_id
        if run_id is None or is_function(task.flow_id):
            return
        try:
            self._evaluator.resume(run_id, self._asts.get(run_id))
        except TreadleError as error:
            _log.error("run %s could not be resumed: %s", run_id, error)
        except BaseException as error:
            if is_interrupt(error):
                raise
            _log.error("the evaluator raised while it resumed run %s: %r", run_id, error)

    async def settle(self, task: Task, claim: Claim, decided: Finish | Park) -> Answer:
        """Settle for the worker of `start` through an overriding evaluator, in a thread, because its methods block."""
        if not _of_flow(task) or task.step_id is None or not isinstance(decided, Finish):
            return await self._persistence.engine.kernel.run_services.settler.settle(task, claim, decided)
        held = Held(task, self._persistence.engine.kernel.clock.monotonic())
        self._persistence.claims.add(held)
        await asyncio.to_thread(self._end_and_resume, held, _outcome_of(decided))
        return DONE

    def _end_and_resume(self, held: Held, outcome: Outcome) -> None:
        self.end(held, outcome)
        if self._resumes:
            self.resume(held.task)


def _of_flow(task: Task) -> bool:
    """Whether the task belongs to a workflow's step."""
    return task.run_id is not None and not is_function(task.flow_id)


def _unstorable(error: InvalidInput) -> Failed:
    """Return the end of a task with a result that cannot be stored."""
    return Failed(Problem(error.code, str(error), type(error).__name__))


def _own(evaluator: Evaluator, name: str) -> bool:
    """Whether the evaluator overrides that method."""
    return getattr(getattr(evaluator, name), "__func__", None) is not getattr(Evaluator, name)


def _options_of(function: Any) -> frozenset[str]:
    """Return the options that its `fail_step` accepts; the one in the specification accepts none."""
    known = frozenset({"code", "error_type", "traceback"})
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return frozenset()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return known
    return known.intersection(parameters)


def _outcome_of(decided: Finish) -> Outcome:
    if decided.state == TaskState.COMPLETED:
        return Succeeded(decode(decided.result) or {})
    error = decode(decided.error) or {}
    return Failed(Problem(error.get("code", "failed"), error.get("message", "failed"), error.get("type"), error.get("traceback")))
