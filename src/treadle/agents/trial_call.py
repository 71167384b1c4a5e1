"""A trial call of a registered handler, without a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.agents.invoke import call_tool, payload_for
from treadle.agents.modules import Modules
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.outcomes import Failed, Problem, Retry, Succeeded
from treadle.model.records import HandlerRegistration
from treadle.model.tasks import Task
from treadle.model.values import Json, encode
from treadle.workers.call import outcome_of
from treadle.workers.context import Context

_NO_ID = "00000000-0000-7000-8000-000000000000"


def try_handler(
    registration: HandlerRegistration, payload: dict[str, Json], roots: Sequence[str], now: Callable[[], int]
) -> dict[str, Json]:
    """Return the handler's result for the payload; raise `NonRetryable` with the code that a task would fail with."""
    function = Modules(roots).find(registration)
    task = Task(id=_NO_ID, lane_id=0, name=registration.facet_name)
    context = Context(task, now, lambda _: None)
    try:
        returned = call_tool(function, payload_for(payload, context, _ignore, registration.metadata), registration.timeout_ms)
    except NonRetryable:
        raise
    except BaseException as error:
        raise NonRetryable(f"The handler failed: {type(error).__name__}: {error}", "handler_error") from error
    outcome = outcome_of(returned)
    if not isinstance(outcome, Succeeded):
        problem = (
            outcome.problem if isinstance(outcome, Failed | Retry) else Problem("failed", f"The handler returned {outcome!r}.")
        )
        raise NonRetryable(problem.message, problem.code)
    try:
        encode(outcome.result, "result")
    except InvalidInput as error:
        raise NonRetryable(str(error), error.code) from error
    return outcome.result


def _ignore(_: str, __: Mapping[str, Any]) -> None:
    """Discard partial results, because there is no step."""
