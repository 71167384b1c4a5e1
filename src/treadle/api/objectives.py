"""Objectives: goals set by people, their progress, and the artifacts that follow from them.

The artifacts are stored as the JSON documents that are shown here; each has a schema in `treadle.goals.schemas`. An approved
objective becomes executable, which emits a readiness event; the event becomes a workorder with a context snapshot; its handler
produces an output bundle; gates judge the bundle in a run record, and a pause state lists the next actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc, Page
from treadle.api.tasks import TransitionRecord
from treadle.api.view import Column, View
from treadle.api.wire import Instant, to_builtins
from treadle.model.access import Scope
from treadle.model.values import Json

ObjectiveId = Annotated[str, Doc("The objective's id", "01935b8e-7c3a-7000-8000-000000000000")]
StatusWord = Literal["NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE"]
STATUSES: tuple[StatusWord, ...] = ("NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE")


class Artifact(ApiRecord, frozen=True):
    """Base of the records that are stored as documents."""

    def as_json(self) -> dict[str, Json]:
        """The document, as its schema describes it."""
        document: dict[str, Any] = to_builtins(self)
        for part in (document, *document.get("blockers", ()), *document.get("objective", {}).get("blockers", ())):
            part.pop("objective_status", None)  # it is not stored
        return document


class Blocker(Artifact, frozen=True, kw_only=True):
    """A condition that keeps an objective from being worked on."""

    blocker_id: str
    kind: str
    """`OBJECTIVE` (until that objective is DONE) or `TEXT` (until a person resolves it)."""
    objective_id: str | None = None
    text: str | None = None
    resolved: bool = False
    resolved_at: Instant | None = None
    resolved_by: str | None = None
    objective_status: str | None = None
    """The current status of the objective of an open blocker. If it is `BLOCKED`, somebody has to unblock it first."""


class PastWorkorder(Artifact, frozen=True, kw_only=True):
    """A judged workorder: its result and the digests of its artifacts."""

    work_order_id: str
    gate_result: str
    """`PASS` or `FAIL`."""
    run_record_digest: str
    output_bundle_digest: str


class Objective(Artifact, frozen=True, kw_only=True):
    """A goal and its progress."""

    objective_id: str
    title: str
    acceptance_criteria: list[str] = msgspec.field(default_factory=list)
    type: str = "TICKET"
    """`TICKET`, `STANDING`, or another type that a topology declares."""
    status: str = "NEW"
    """`NEW`, `TODO`, `IN_PROGRESS`, `BLOCKED` or `DONE`."""
    importance: int = 2
    """From 0 to 4, 4 is the highest."""
    urgency: int = 2
    """From 0 to 4, 4 is the highest."""
    blockers: list[Blocker] = msgspec.field(default_factory=list)
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)
    prompt: str | None = None
    """The prompt for its handler, instead of the topology's."""
    key: str | None = None
    status_version: int = 0
    """Increases with every change of status; each version emits at most one readiness event (D41)."""
    emitted_version: int | None = None
    """The last status version for which a readiness event was emitted."""
    work_order_id: str | None = None
    """The workorder in progress."""
    failed_workorders: int = 0
    """Failed workorders since the objective was approved or unblocked."""
    workorders: list[PastWorkorder] = msgspec.field(default_factory=list)
    """The last 20."""
    created_by: str
    approved_by: str | None = None
    approved_at: Instant | None = None
    overdue_at: Instant | None = None
    created_at: Instant
    updated_at: Instant

    @property
    def open_blockers(self) -> list[Blocker]:
        """Blockers that are not resolved."""
        return [blocker for blocker in self.blockers if not blocker.resolved]

    @property
    def executable(self) -> bool:
        """Whether it is TODO without an open blocker (D41)."""
        return self.status == "TODO" and not self.open_blockers


class ReadinessEvent(Artifact, frozen=True, kw_only=True):
    """The event that an objective became executable."""

    event_id: str
    event_type: str = "OBJECTIVE_READY"
    resource_type: str = "OBJECTIVE"
    resource_id: str
    status_version: int
    processed: bool = False
    processed_reason: str | None = None
    """`SCHEDULED`, `STALE` or `NO_TYPE_IN_TOPOLOGY`."""
    processed_at: Instant | None = None
    created_at: Instant


class ArtifactDigest(Artifact, frozen=True, kw_only=True):
    """The digest of an artifact's document at that time."""

    id: str
    digest: str


class ContextSnapshot(Artifact, frozen=True, kw_only=True):
    """All input of a workorder (D43); never changed."""

    snapshot_id: str
    event_id: str
    objective_id: str
    objective: Objective
    blockers: list[Blocker]
    run_records: list[ArtifactDigest]
    output_bundles: list[ArtifactDigest]
    topology_name: str
    topology_digest: str
    prompt: str
    created_at: Instant


class Workorder(Artifact, frozen=True, kw_only=True):
    """One attempt at an objective by one handler, within a budget."""

    work_order_id: str
    objective_id: str
    event_id: str
    diazotroph_type: str
    """The handler's name."""
    snapshot_id: str
    budget_ms: int
    status: str = "CREATED"
    """`CREATED` or `EXECUTED`."""
    created_at: Instant
    executed_at: Instant | None = None


class BundleError(Artifact, frozen=True, kw_only=True):
    """The reason that a workorder produced nothing."""

    code: str
    message: str


class OutputBundle(Artifact, frozen=True, kw_only=True):
    """The output of a workorder's handler; never changed."""

    bundle_id: str
    work_order_id: str
    objective_id: str
    title: str
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)
    content: Json = None
    notes: list[str] = msgspec.field(default_factory=list)
    error: BundleError | None = None
    created_at: Instant


class GateReport(Artifact, frozen=True, kw_only=True):
    """The verdict of one gate."""

    gate: str
    result: str
    """`PASS` or `FAIL`."""
    reason: str


class RunRecord(Artifact, frozen=True, kw_only=True):
    """The judgement of a workorder; one for each."""

    run_record_id: str
    work_order_id: str
    objective_id: str
    bundle_id: str
    gate_result: str
    """`PASS` or `FAIL`."""
    reason: str
    gates: list[GateReport] = msgspec.field(default_factory=list)
    created_at: Instant


class NextAction(Artifact, frozen=True, kw_only=True):
    """A suggested action; priority 1 comes first."""

    priority: int
    action: str


class PauseState(Artifact, frozen=True, kw_only=True):
    """A pause of the pipeline, its reason, and one to three next actions."""

    pause_state_id: str
    objective_id: str
    work_order_id: str | None = None
    reason: str
    """`RUN_COMPLETE`, `GATE_FAILED`, `BUDGET_EXHAUSTED` or `DEADLINE_PASSED`."""
    terminal: bool
    """Whether it ends a workorder."""
    actions: list[NextAction]
    created_at: Instant


class ClaimHeld(Artifact, frozen=True, kw_only=True):
    """The claim on a task, in the terms of the polling protocol (D40)."""

    resource_type: str
    """`EVENT`, `WORKORDER` or `TASK`."""
    resource_id: str
    owner_id: str
    lease_expires_at: Instant
    heartbeat_at: Instant
    claim_version: int
    task_id: str


class WorkorderTrail(ApiRecord, frozen=True):
    """A workorder and its artifacts; null for those that do not exist yet or were deleted."""

    workorder: Workorder
    context_snapshot: ContextSnapshot | None
    output_bundle: OutputBundle | None
    run_record: RunRecord | None
    pause_state: PauseState | None


class ObjectiveDetail(Objective, frozen=True, kw_only=True):
    """An objective and everything that followed from it."""

    why: str
    """The reason for its status, in one line."""
    events: list[ReadinessEvent]
    workorder_trails: list[WorkorderTrail]
    overdue: PauseState | None
    """The deadline monitor's report, if the deadline has passed."""
    transitions: list[TransitionRecord]


class ObjectivePage(Page, frozen=True):
    """Objectives, newest first."""

    objectives: list[Objective]


class BoardColumn(ApiRecord, frozen=True):
    """The objectives of one status."""

    count: int
    """Number of objectives with this status."""
    objectives: list[Objective]
    """The newest of them, most important first."""


class ObjectiveBoard(ApiRecord, frozen=True):
    """All objectives, by status."""

    NEW: BoardColumn
    TODO: BoardColumn
    IN_PROGRESS: BoardColumn
    BLOCKED: BoardColumn
    DONE: BoardColumn


class ClaimsHeld(ApiRecord, frozen=True):
    """The current claims, at most 1000."""

    claims: list[ClaimHeld]


Level = Annotated[int, Doc("From 0 to 4, 4 is the highest", 2)]
OptionalLevel = Annotated[int | None, Doc("From 0 to 4, 4 is the highest", 3)]
Criteria = Doc("Criteria for DONE; each up to 4000 characters", ["the tests pass"])
Metadata = Annotated[dict[str, Json] | None, Doc("Data for its handler and its gates")]
Prompt = Annotated[str | None, Doc("The prompt for its handler, instead of the topology's")]


def describe_blocker(blocker: Blocker) -> str:
    """The blocker's text, marked if the blocking objective is BLOCKED itself and must be unblocked first."""
    return f"{blocker.text} (BLOCKED)" if blocker.objective_status == "BLOCKED" else str(blocker.text)


def describe_state(objective: Objective) -> str:
    """The reasons for which no work on the objective starts, in a few words."""
    notes = [describe_blocker(blocker) for blocker in objective.open_blockers]
    if objective.status == "NEW":
        notes.insert(0, "not approved")
    if objective.overdue_at is not None and objective.status != "DONE":
        notes.insert(0, "overdue")
    return "; ".join(notes)


def _blocked_by(objective: Objective) -> list[str]:
    return [blocker.objective_id or blocker.text or "" for blocker in objective.open_blockers]


_BRIEF = (
    "objective_id",
    "title",
    "status",
    "type",
    "importance",
    "urgency",
    Column("blocked_by", _blocked_by),
    "created_by",
    "created_at",
    "updated_at",
)
View(
    Objective,
    columns=(
        Column("id", "objective_id"),
        Column("status", kind="state"),
        "type",
        Column("imp", "importance"),
        Column("urg", "urgency"),
        Column("title", limit=60),
        Column("note", describe_state, limit=80),
    ),
    brief=_BRIEF,
    empty="No objectives.",
    changed="{objective_id} {status} {title}",
)


def _blockers(objective: Objective) -> list[str]:
    return [
        f"{describe_blocker(blocker)} ({f'resolved by {blocker.resolved_by}' if blocker.resolved_by else 'open'})"
        for blocker in objective.blockers
    ]


def _gates(trail: WorkorderTrail) -> list[str]:
    reports = trail.run_record.gates if trail.run_record is not None else []
    return [f"{report.gate} {report.result}: {report.reason}" for report in reports]


def _next_actions(trail: WorkorderTrail) -> list[str]:
    actions = trail.pause_state.actions if trail.pause_state is not None else []
    return [f"{action.priority} {action.action}" for action in actions]


def _brief_actions(trail: WorkorderTrail) -> list[str]:
    return [] if trail.pause_state is None else [action.action for action in trail.pause_state.actions]


TRAIL = View(
    WorkorderTrail,
    title="Workorder {workorder.work_order_id}",
    facts=(
        Column("status", "workorder.status"),
        Column("handler", "workorder.diazotroph_type"),
        Column("budget", lambda trail: f"{trail.workorder.budget_ms} ms"),
        Column("brought", "output_bundle.content", limit=200),
        Column("notes", "output_bundle.notes"),
        Column(
            "judged", lambda trail: trail.run_record and f"{trail.run_record.gate_result}: {trail.run_record.reason}", limit=200
        ),
        Column("gates", _gates),
        Column("paused", "pause_state.reason"),
        Column("next", _next_actions),
    ),
    brief=(
        Column("work_order_id", "workorder.work_order_id"),
        Column("handler", "workorder.diazotroph_type"),
        Column("status", "workorder.status"),
        Column("gate_result", "run_record.gate_result"),
        Column("reason", "run_record.reason"),
        Column("content", "output_bundle.content", "json"),
        Column("next_actions", _brief_actions),
    ),
)
View(
    ObjectiveDetail,
    title="{objective_id} {status} {title}",
    facts=(
        Column("status", kind="state"),
        Column("why", limit=300),
        "type",
        "importance",
        "urgency",
        Column("approved", lambda objective: f"by {objective.approved_by}" if objective.approved_by else "not yet"),
        "approved_at",
        "overdue_at",
        Column("done when", "acceptance_criteria"),
        Column("blockers", _blockers),
        Column("workorders", "workorder_trails", rows=TRAIL),
    ),
    brief=(
        *_BRIEF,
        "why",
        "acceptance_criteria",
        Column("metadata", kind="json"),
        Column("tries", "workorder_trails", rows=TRAIL, limit=5),
    ),
)
View(
    ClaimHeld,
    columns=(
        Column("resource", "resource_type"),
        Column("id", "resource_id"),
        Column("owner", "owner_id"),
        Column("version", "claim_version"),
        Column("heartbeat", "heartbeat_at", "time"),
        Column("lease until", "lease_expires_at", "time"),
    ),
    empty="Nothing is claimed.",
)


class ObjectivesApi(Protocol):
    """Objectives. The actor of every change is the name of the caller's token."""

    @contract.get("/objectives")
    async def list(
        self,
        *,
        status: Annotated[Sequence[StatusWord], Doc("Only these statuses; may be repeated", ["TODO"])] = (),
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("`next_before` of the previous page")] = None,
    ) -> ObjectivePage:
        """Objectives, newest first."""

    @contract.post("/objectives", Scope.OPERATE, status=201, creates=True)
    async def add(
        self,
        title: Annotated[str, Doc("The goal in one line of up to 500 characters", "greet must name the person")],
        *,
        acceptance_criteria: Annotated[Sequence[str], Criteria] = (),
        type: Annotated[  # noqa: A002 - the word of the artifact
            str, Doc("The type, whose rules a topology declares", "TICKET")
        ] = "TICKET",
        importance: Level = 2,
        urgency: Level = 2,
        blocked_by: Annotated[Sequence[str], Doc("Ids of objectives that must be DONE first, or textual reasons")] = (),
        metadata: Metadata = None,
        prompt: Prompt = None,
        key: Annotated[
            str | None, Doc("If an objective with this key is not DONE yet, return it instead of adding another")
        ] = None,
    ) -> Objective:
        """Add an objective with status NEW; it has to be approved before work starts."""

    @contract.get("/objectives/board")
    async def board(self, *, limit: Annotated[int, Doc("Maximum per status, up to 1000", 20)] = 20) -> ObjectiveBoard:
        """All objectives, by status."""

    @contract.get("/objectives/claims")
    async def claims(self) -> ClaimsHeld:
        """The current claims on events, workorders and all other tasks."""

    @contract.get("/objectives/{objective_id}")
    async def get(self, objective_id: ObjectiveId) -> ObjectiveDetail:
        """One objective: its status with the reason, its workorders, their outputs and judgements."""

    @contract.post("/objectives/{objective_id}/approve", Scope.APPROVE)
    async def approve(self, objective_id: ObjectiveId) -> Objective:
        """Approve a NEW objective for work; approving an approved one changes nothing."""

    @contract.post("/objectives/{objective_id}/block", Scope.OPERATE)
    async def block(
        self,
        objective_id: ObjectiveId,
        *,
        reason: Annotated[str | None, Doc("Reason; it stays blocked until somebody unblocks it")] = None,
        on: Annotated[str | None, Doc("Id of the objective that it waits for; it stays blocked until that is DONE")] = None,
    ) -> Objective:
        """Block a TODO objective with either a reason or another objective."""

    @contract.post("/objectives/{objective_id}/unblock", Scope.OPERATE)
    async def unblock(self, objective_id: ObjectiveId) -> Objective:
        """Resolve all blockers of an objective and reset its count of failed workorders."""

    @contract.post("/objectives/{objective_id}/edit", Scope.OPERATE)
    async def edit(
        self,
        objective_id: ObjectiveId,
        *,
        title: Annotated[str | None, Doc("The goal in one line")] = None,
        acceptance_criteria: Annotated[Sequence[str] | None, Criteria] = None,
        importance: OptionalLevel = None,
        urgency: OptionalLevel = None,
        metadata: Metadata = None,
        prompt: Prompt = None,
    ) -> Objective:
        """Edit an objective that is not DONE; omitted or null fields stay. A workorder in progress keeps its snapshot."""
