"""Records of starting and driving runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from treadle.kernel.store.units import Unit
from treadle.model.clock import Duration
from treadle.model.runs import Run
from treadle.model.tags import Tags
from treadle.model.tasks import Preclaimed
from treadle.model.values import Json


class RunStartOptions(TypedDict, total=False):
    """Options of `Runs.start` and `Runs.prepare`."""

    version: int | None
    """Version of a published flow; default: the newest."""
    lenient: bool
    """Do not check the inputs against the workflow's parameters (D59)."""
    strict: bool
    """Of sources: warnings are errors, and a result of a handler that does not fit its declaration fails the step (D76)."""
    idempotency_key: str | None
    """A second start with this key returns the first run and changes nothing."""
    task_list: str
    priority: int
    trace_id: str | None
    tags: Tags | None
    """Search attributes (`model.tags`)."""
    parent_id: str | None
    run_id: str | None
    """A new id that other records may already refer to."""
    preclaimed: Preclaimed | None
    """The owner that drives the run in this process; its handler tasks are preclaimed by that owner (D56)."""
    actor: str | None
    """Recorded in the log."""
    deadline: Duration | str | None
    """Cancel the run this long after its start; a text such as `2h` is possible."""
    deadline_at: datetime | None
    """Cancel the run at this time."""
    fairness_key: str | None
    baggage: str | None
    """The values of context variables in stored form; default: those of the caller."""
    """Its tasks share their queues fairly with those of other keys."""
    on_failure: str | None
    """`stop` or `finish` the other branches once the run cannot succeed; default: `stop`, unless the setting names the workflow."""


class ExecutionStatus(StrEnum):
    """The state of a run for its driver."""

    COMPLETED = "COMPLETED"
    PAUSED = "PAUSED"
    """A fixed point: no progress without a handler's result, or the run was paused."""
    ERROR = "ERROR"
    RUNNING = "RUNNING"
    """The engine is working; the agent SDK shows it as PAUSED."""
    CANCELED = "CANCELED"
    """The agent SDK shows it as ERROR."""
    TIMEOUT = "TIMEOUT"
    """Of the agent SDK: the run still progressed after `max_iterations` polls."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The state of a run: `outputs` if completed, `error` if failed or canceled."""

    status: ExecutionStatus
    workflow_id: str
    outputs: dict[str, Json]
    error: str | None = None
    iterations: int = 0
    """Number of commits that have advanced it."""

    @property
    def success(self) -> bool:
        """Whether nothing has failed so far."""
        return self.status not in (ExecutionStatus.ERROR, ExecutionStatus.CANCELED, ExecutionStatus.TIMEOUT)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request to start a run, as interceptors see it."""

    name: str
    """The function, or the workflow; empty: the only one of the flow."""
    payload: Mapping[str, Json] | None
    """The payload of the function, or the inputs of the workflow."""
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that represents the request; `created` is False if the idempotency key already had one."""

    id: str
    created: bool = True


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be stored, its unit, and the callback for after the commit."""

    run: Run
    unit: Unit
    committed: Callable[[], None]
