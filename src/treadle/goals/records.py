"""The artifacts of the goal pipeline, as stored and shown: each is a JSON document with a schema that Treadle includes.

An approved objective becomes executable, which emits a readiness event; the event becomes a workorder with a context snapshot;
its handler produces an output bundle; gates judge it in a run record, and a pause state lists the next actions. Instants are RFC
3339 in UTC. Ids of everything but objectives are derived (D11), so that repeating a step produces the same ids.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

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


class ObjectiveType(StrEnum):
    """The type of an objective: done once, or recurring."""

    TICKET = "TICKET"
    STANDING = "STANDING"


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


class ObjectiveNotFound(NotFound):
    """There is no such objective."""

    code = "objective_not_found"

    def __init__(self, objective_id: str) -> None:
        super().__init__(f"There is no objective {objective_id}; `treadle objectives list` shows all.")
        self.objective_id = objective_id


class InvalidArtifact(InvalidInput):
    """A document does not fit its schema."""

    code = "invalid_artifact"


class _Artifact(msgspec.Struct, frozen=True, kw_only=True):
    def as_json(self) -> dict[str, Json]:
        """Return the document that the schema describes."""
        made: dict[str, Json] = msgspec.to_builtins(self)
        return made


class BlockerRef(_Artifact, frozen=True, kw_only=True):
    """A reason why an objective cannot proceed: another objective until it is DONE, or a text until a person resolves it."""

    blocker_id: str
    kind: str
    """`OBJECTIVE` or `TEXT`."""
    objective_id: str | None = None
    text: str | None = None
    resolved: bool = False
    resolved_at: str | None = None
    resolved_by: str | None = None


class PastWorkorder(_Artifact, frozen=True, kw_only=True):
    """A judged workorder: its verdict, and digests of its artifacts."""

    work_order_id: str
    gate_result: str
    run_record_digest: str
    output_bundle_digest: str


class Objective(_Artifact, frozen=True, kw_only=True):
    """A goal that people set, and its progress."""

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
    """The prompt for its handler, instead of the topology's."""
    key: str | None = None
    status_version: int = 0
    """Incremented with every change of status; at most one readiness event is emitted for each version (D41)."""
    emitted_version: int | None = None
    """The last status version for which an event was emitted."""
    work_order_id: str | None = None
    """The workorder in progress."""
    failed_workorders: int = 0
    """Failed workorders since the last approval or unblocking."""
    workorders: list[PastWorkorder] = []
    created_by: str
    approved_by: str | None = None
    approved_at: str | None = None
    overdue_at: str | None = None
    created_at: str
    updated_at: str

    @property
    def open_blockers(self) -> list[BlockerRef]:
        """The unresolved blockers."""
        return [blocker for blocker in self.blockers if not blocker.resolved]

    @property
    def executable(self) -> bool:
        """Whether it is TODO without open blockers (D41)."""
        return self.status == Status.TODO and not self.open_blockers


class ReadinessEvent(_Artifact, frozen=True, kw_only=True):
    """The event that an objective became executable."""

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
    """An earlier artifact, identified by the digest of its document."""

    id: str
    digest: str


class ContextSnapshot(_Artifact, frozen=True, kw_only=True):
    """The complete input of a workorder at its creation (D43); immutable."""

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
    """One attempt at an objective by one handler, within a budget."""

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
    """The reason why a workorder produced no output."""

    code: str
    message: str


class OutputBundle(_Artifact, frozen=True, kw_only=True):
    """The output of a workorder's handler; immutable."""

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
    """The verdict of one gate."""

    gate: str
    result: str
    reason: str


class RunRecord(_Artifact, frozen=True, kw_only=True):
    """The verdict on a workorder; one for each."""

    run_record_id: str
    work_order_id: str
    objective_id: str
    bundle_id: str
    gate_result: str
    reason: str
    gates: list[GateReport] = []
    created_at: str


class NextAction(_Artifact, frozen=True, kw_only=True):
    """A next action; 1 comes first."""

    priority: int
    action: str


class PauseState(_Artifact, frozen=True, kw_only=True):
    """A pause of the pipeline: its place, its reason and one to three next actions. Terminal ones end a workorder, one for each."""

    pause_state_id: str
    objective_id: str
    work_order_id: str | None = None
    reason: str
    terminal: bool
    actions: list[NextAction]
    created_at: str


class ClaimRecord(_Artifact, frozen=True, kw_only=True):
    """The claim on a task, in the terms of the polling protocol (D40)."""

    resource_type: str
    resource_id: str
    owner_id: str
    lease_expires_at: str
    heartbeat_at: str
    claim_version: int
    task_id: str


A = TypeVar("A", bound=_Artifact)


def artifact_of(kind: type[A], document: dict[str, Json]) -> A:
    """Decode the artifact of a stored document; raise `InvalidArtifact` if it does not fit."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidArtifact(f"A stored {kind.__name__} cannot be read: {error}. Another program wrote it.") from None


# --- ids derived from the preceding artifact ---


def event_id_of(objective_id: str, status_version: int) -> str:
    """Return the id of the one readiness event for that status of the objective (D41)."""
    return derived_id(objective_id, f"ready/{status_version}")


def schedule_task_id(event_id: str) -> str:
    """Return the id of the task whose claim is the claim of the event."""
    return derived_id(event_id, "schedule")


def snapshot_id_of(event_id: str) -> str:
    return derived_id(event_id, "snapshot")


def work_order_id_of(event_id: str) -> str:
    return derived_id(event_id, "workorder")


def run_task_id(work_order_id: str) -> str:
    """Return the id of the task whose claim is the claim of a CREATED workorder."""
    return derived_id(work_order_id, "run")


def gate_task_id(work_order_id: str) -> str:
    """Return the id of the task whose claim is the claim of an EXECUTED workorder."""
    return derived_id(work_order_id, "gate")


def bundle_id_of(work_order_id: str) -> str:
    return derived_id(work_order_id, "bundle")


def run_record_id_of(work_order_id: str) -> str:
    return derived_id(work_order_id, "run_record")


def pause_state_id_of(work_order_id: str) -> str:
    return derived_id(work_order_id, "pause_state")


def overdue_pause_id_of(objective_id: str) -> str:
    """Return the id of the pause state that flags the objective, once."""
    return derived_id(objective_id, "overdue")
