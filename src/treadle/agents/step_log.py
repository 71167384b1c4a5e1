"""The framework's log lines about a step: task claimed, handler called, outcome.

They appear among the handler's lines in the step's log, as shown by `treadle runs logs` and `get_step_logs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.model.outcomes import Failed, Outcome, Problem, Retry
from treadle.model.tasks import FRAMEWORK, SOURCE
from treadle.model.values import Json
from treadle.workers.call import outcome_of, outcome_of_error
from treadle.workers.context import Context


class StepLog:
    """Writes log lines about one attempt at a step's task, which begins now; a task without a step has none."""

    def __init__(self, context: Context, monotonic: Callable[[], float]) -> None:
        self._context = context
        self._monotonic = monotonic
        task = context.task
        self._write("Task claimed", "info", attempt=task.attempt, owner_id=task.owner_id)
        self._write("Dispatching handler", "info", name=task.name)
        self._started = monotonic()

    def end(self, outcome: Outcome, timeout_for: int | None = None) -> Outcome:
        """Log the outcome; a timeout or an abandoned call counts as a failure."""
        took = (self._monotonic() - self._started) * 1000
        if timeout_for is not None and took > timeout_for and not isinstance(outcome, Failed):
            outcome = Failed(Problem("timeout", f"The attempt took longer than {timeout_for / 1000:g} s."))
        if isinstance(outcome, Failed | Retry):
            self._write(f"Handler error: {outcome.problem.message}", "error", code=outcome.problem.code, took_ms=round(took))
        elif self._context.cancelled:
            self._write("Handler error: it ended after its timeout, so its outcome is dropped", "error", took_ms=round(took))
        else:
            self._write(f"Handler completed ({took:.0f} ms)", "success")
        return outcome

    def _write(self, message: str, level: str, **details: Json) -> None:
        if self._context.task.step_id is not None:
            self._context.log(message, level, **{SOURCE: FRAMEWORK, **details})


def call_logged(context: Context, monotonic: Callable[[], float], timeout_for: int | None, work: Callable[[], Any]) -> Outcome:
    """Call a handler's function in this thread, with log lines around it; every end but KeyboardInterrupt is an outcome."""
    step_log = StepLog(context, monotonic)
    try:
        outcome = outcome_of(work())
    except KeyboardInterrupt as error:
        step_log.end(outcome_of_error(error), timeout_for)
        raise  # the caller knows whether it is Ctrl-C
    except BaseException as error:
        outcome = outcome_of_error(error)
    return step_log.end(outcome, timeout_for)
