"""The artifacts of the goal pipeline, as stored and shown: each is a JSON document with a schema that Treadle includes.

An approved objective becomes executable, which emits a readiness event; the event becomes a workorder with a context snapshot;
its handler produces an output bundle; gates judge it in a run record, and a pause state lists the next actions. Instants are RFC
3339 in UTC. Ids of everything but objectives are derived (D11), so that repeating a step produces the same ids.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import msgspec

from treadle.api.objectives import Artifact
from treadle.api.wire import from_builtins
from treadle.model.errors import InvalidInput, NotFound
from treadle.model.ids import derived_id
from treadle.model.values import Json


class Status(StrEnum):
    """The status of an objective."""

    NEW = "NEW"
    TODO = "TODO"
    IN_PROGRESS = "IN_PROGRESS"
    BLOCKED = "BLOCKED"
    DONE = "DONE"


TICKET, STANDING = "TICKET", "STANDING"
"""The built-in types of objectives: done once, or recurring."""


class PauseReason(StrEnum):
    """The reason why the pipeline paused at an objective; `DEADLINE_PASSED` comes from the monitor, all others end a workorder."""

    RUN_COMPLETE = "RUN_COMPLETE"
    GATE_FAILED = "GATE_FAILED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    DEADLINE_PASSED = "DEADLINE_PASSED"


PASS, FAIL = "PASS", "FAIL"
BUDGET_CODE = "budget_exhausted"
"""The error code of a workorder that exceeded its budget."""

SCHEDULED, STALE, UNSERVED = "SCHEDULED", "STALE", "NO_TYPE_IN_TOPOLOGY"
"""Why a readiness event was processed: a workorder was created, its objective has changed, or nothing serves its type."""

LEVELS = range(5)
"""Importance and urgency; 4 is the highest."""

PAST_KEPT = 20
"""Workorders that an objective keeps by digest; older ones are found only by id."""


class ObjectiveNotFound(NotFound, code="objective_not_found"):
    """There is no such objective."""

    def __init__(self, objective_id: str) -> None:
        super().__init__(f"There is no objective {objective_id}; `treadle objectives list` shows all.")
        self.objective_id = objective_id


class InvalidArtifact(InvalidInput, code="invalid_artifact"):
    """A document does not fit its schema."""


A = TypeVar("A", bound=Artifact)


def artifact_of(kind: type[A], document: dict[str, Json]) -> A:
    """Decode the artifact of a stored document; raise `InvalidArtifact` if it does not fit."""
    try:
        artifact: A = from_builtins(document, kind)
        return artifact
    except msgspec.ValidationError as error:
        raise InvalidArtifact(f"A stored {kind.__name__} cannot be read: {error}. Another program wrote it.") from None


def with_unknown(kind: Any, before: dict[str, Json], made: dict[str, Json]) -> dict[str, Json]:
    """Return a document with the fields of the stored one that this version does not know, also in its nested records."""
    hints = _hints(kind)
    unknown = {name: value for name, value in before.items() if name not in hints}
    for name, value in made.items():
        inner = next((hint for hint in (*get_args(hints.get(name)), hints.get(name)) if is_artifact(hint)), None)
        if inner is None:
            continue
        if isinstance(value, dict) and isinstance(before.get(name), dict):
            made[name] = with_unknown(inner, before[name], value)
        elif isinstance(value, list) and isinstance(before.get(name), list):
            key = next(iter(_hints(inner)))
            previous = {record[key]: record for record in before[name] if isinstance(record, dict) and key in record}
            made[name] = [with_unknown(inner, previous.get(record[key], {}), record) for record in value]
    return unknown | made


def is_artifact(hint: Any) -> bool:
    """Return whether a type is one of the artifacts."""
    return isinstance(hint, type) and issubclass(hint, Artifact)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


# --- ids derived from the preceding artifact ---

FollowUp = Literal["schedule", "snapshot", "workorder", "run", "gate", "bundle", "run_record", "pause_state", "overdue"]
"""The one artifact or task that follows from another one.

An event has its `schedule` task, its `snapshot` and its `workorder`; a workorder its `run` and `gate` tasks, its `bundle`,
`run_record` and `pause_state`; an objective the pause state that flags it `overdue`. The claim of an event or a workorder is the
claim of its task.
"""


def event_id_of(objective_id: str, status_version: int) -> str:
    """Return the id of the one readiness event for that status of the objective (D41)."""
    return derived_id(objective_id, f"ready/{status_version}")


def follow_up_id(source_id: str, follow_up: FollowUp) -> str:
    """Return the id of the artifact or task that follows from the artifact."""
    return derived_id(source_id, follow_up)
