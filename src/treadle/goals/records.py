"""The artifacts of the goal pipeline as they are stored and shown: each is one JSON document with a schema that we ship.

An objective that is approved becomes executable, which emits a readiness event; that becomes a workorder with a context
snapshot; what its handler brings is an output bundle; gates judge it in a run record, and a pause state says what to do
next. Instants are RFC 3339 in UTC. Ids of everything but objectives are derived (D11), so that doing it twice names the same.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

from treadle.model.errors import InvalidInput, NotFound
from treadle.model.ids import derived_id
from treadle.model.values import Json


class Status(StrEnum):
    """Where an objective stands."""

    NEW = "NEW"
    TODO = "TODO"
    IN_PROGRESS = "IN_PROGRESS"
    BLOCKED = "BLOCKED"
    DONE = "DONE"


class ObjectiveType(StrEnum):
    """What an objective is: done once, or asked for again and again."""

    TICKET = "TICKET"
    STANDING = "STANDING"


class PauseReason(StrEnum):
    """Why the pipeline paused at an objective; `DEADLINE_PASSED` is the monitor's, all others end a workorder."""

    RUN_COMPLETE = "RUN_COMPLETE"
    GATE_FAILED = "GATE_FAILED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    DEADLINE_PASSED = "DEADLINE_PASSED"


PASS, FAIL = "PASS", "FAIL"
BUDGET_CODE = "budget_exhausted"
"""The error code of a workorder whose time was spent."""

SCHEDULED, STALE, UNSERVED = "SCHEDULED", "STALE", "NO_TYPE_IN_TOPOLOGY"
"""Why a readiness event was processed: a workorder was made, its objective has moved on, or nothing serves its type."""

LEVELS = range(5)
"""Importance and urgency, 4 the highest."""

PAST_KEPT = 20
"""Workorders that an objective remembers by digest; older ones are found by id only."""


class ObjectiveNotFound(NotFound):
    """No such objective."""

    code = "objective_not_found"

    def __init__(self, objective_id: str) -> None:
        super().__init__(f"There is no objective {objective_id}; `treadle objectives list` shows what there is.")
        self.objective_id = objective_id


class InvalidArtifact(InvalidInput):
    """What was to be written does not fit its schema."""

    code = "invalid_artifact"


class _Artifact(msgspec.Struct, frozen=True, kw_only=True):
    def as_json(self) -> dict[str, Json]:
        """The document, as its schema describes it."""
        made: dict[str, Json] = msgspec.to_builtins(self)
        return made


class BlockerRef(_Artifact, frozen=True, kw_only=True):
    """What keeps an objective from being worked on: another objective until it is DONE, or a text until a person resolves it."""

    blocker_id: str
    kind: str
    """`OBJECTIVE` or `TEXT`."""
    objective_id: str | None = None
    text: str | None = None
    resolved: bool = False
    resolved_at: str | None = None
    resolved_by: str | None = None


class PastWorkorder(_Artifact, frozen=True, kw_only=True):
    """A workorder that was judged: what it came to, and digests of what it left."""

    work_order_id: str
    gate_result: str
    run_record_digest: str
    output_bundle_digest: str


class Objective(_Artifact, frozen=True, kw_only=True):
    """Something that people want, and how far it is."""

    objective_id: str
    title: str
    acceptance_criteria: list[str] = []
    type: str = ObjectiveType.TICKET
    status: str = Status.NEW
    importance: int = 2
    urgency: int = 2
    blockers: list[BlockerRef] = []
    metadata: dict[str, Json] = {}
    prompt: str | None = None
    """The text for its handler, instead of that of the topology."""
    key: str | None = None
    status_version: int = 0
    """Rises with every change of status: at most one readiness event is emitted for each (D41)."""
    emitted_version: int | None = None
    """The last status version that an event was emitted for."""
    work_order_id: str | None = None
    """The workorder that it is in progress by."""
    failed_workorders: int = 0
    """Since it was approved or unblocked."""
    workorders: list[PastWorkorder] = []
    created_by: str
    approved_by: str | None = None
    approved_at: str | None = None
    overdue_at: str | None = None
    created_at: str
    updated_at: str

    @property
    def open_blockers(self) -> list[BlockerRef]:
        """Those that are not resolved."""
        return [blocker for blocker in self.blockers if not blocker.resolved]

    @property
    def executable(self) -> bool:
        """TODO and no open blocker (D41)."""
        return self.status == Status.TODO and not self.open_blockers


class ReadinessEvent(_Artifact, frozen=True, kw_only=True):
    """An objective became executable."""

    event_id: str
    event_type: str = "OBJECTIVE_READY"
    resource_type: str = "OBJECTIVE"
    resource_id: str
    status_version: int
    processed: bool = False
    processed_reason: str | None = None
    processed_at: str | None = None
    created_at: str


class Digest(_Artifact, frozen=True, kw_only=True):
    """An artifact as it was, known by the digest of its document."""

    id: str
    digest: str


class ContextSnapshot(_Artifact, frozen=True, kw_only=True):
    """All that was known when a workorder was made (D43); never changed."""

    snapshot_id: str
    event_id: str
    objective_id: str
    objective: Objective
    blockers: list[BlockerRef]
    run_records: list[Digest]
    output_bundles: list[Digest]
    topology_name: str
    topology_digest: str
    prompt: str
    created_at: str


class Workorder(_Artifact, frozen=True, kw_only=True):
    """One try at an objective by one handler, within a budget."""

    work_order_id: str
    objective_id: str
    event_id: str
    diazotroph_type: str
    snapshot_id: str
    budget_ms: int
    status: str = "CREATED"
    created_at: str
    executed_at: str | None = None


class BundleError(_Artifact, frozen=True, kw_only=True):
    """Why a workorder brought nothing."""

    code: str
    message: str


class OutputBundle(_Artifact, frozen=True, kw_only=True):
    """What the handler of a workorder brought; never changed."""

    bundle_id: str
    work_order_id: str
    objective_id: str
    title: str
    metadata: dict[str, Json] = {}
    content: Json = None
    notes: list[str] = []
    error: BundleError | None = None
    created_at: str


class GateReport(_Artifact, frozen=True, kw_only=True):
    """What one gate said."""

    gate: str
    result: str
    reason: str


class RunRecord(_Artifact, frozen=True, kw_only=True):
    """How a workorder was judged: one for each."""

    run_record_id: str
    work_order_id: str
    objective_id: str
    bundle_id: str
    gate_result: str
    reason: str
    gates: list[GateReport] = []
    created_at: str


class NextAction(_Artifact, frozen=True, kw_only=True):
    """Something to do next; 1 comes first."""

    priority: int
    action: str


class PauseState(_Artifact, frozen=True, kw_only=True):
    """Where the pipeline paused, why, and one to three things to do next. Terminal ones end a workorder, one for each."""

    pause_state_id: str
    objective_id: str
    work_order_id: str | None = None
    reason: str
    terminal: bool
    actions: list[NextAction]
    created_at: str


class ClaimRecord(_Artifact, frozen=True, kw_only=True):
    """The claim on a task, as the polling protocol names its parts (D40)."""

    resource_type: str
    resource_id: str
    owner_id: str
    lease_expires_at: str
    heartbeat_at: str
    claim_version: int
    task_id: str


A = TypeVar("A", bound=_Artifact)


def artifact_of(kind: type[A], document: dict[str, Json]) -> A:
    """The artifact of a document that was stored; one that does not fit is refused with `InvalidArtifact`."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidArtifact(f"A stored {kind.__name__} cannot be read: {error}. It was written by something else.") from None


# --- places: the ids of what follows from what ---


def event_id_of(objective_id: str, status_version: int) -> str:
    """The readiness event of that status of the objective: there is only this one (D41)."""
    return derived_id(objective_id, f"ready/{status_version}")


def schedule_task_id(event_id: str) -> str:
    """The task whose claim is the claim of the event."""
    return derived_id(event_id, "schedule")


def snapshot_id_of(event_id: str) -> str:
    return derived_id(event_id, "snapshot")


def work_order_id_of(event_id: str) -> str:
    return derived_id(event_id, "workorder")


def run_task_id(work_order_id: str) -> str:
    """The task whose claim is the claim of a workorder that is created."""
    return derived_id(work_order_id, "run")


def gate_task_id(work_order_id: str) -> str:
    """The task whose claim is the claim of a workorder that is executed."""
    return derived_id(work_order_id, "gate")


def bundle_id_of(work_order_id: str) -> str:
    return derived_id(work_order_id, "bundle")


def run_record_id_of(work_order_id: str) -> str:
    return derived_id(work_order_id, "run_record")


def pause_state_id_of(work_order_id: str) -> str:
    return derived_id(work_order_id, "pause_state")


def overdue_pause_id_of(objective_id: str) -> str:
    """An objective is flagged once."""
    return derived_id(objective_id, "overdue")
