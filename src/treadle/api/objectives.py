"""Objectives: what people want, how far it is, and all that followed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import MoveMade
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

ObjectiveId = Annotated[str, Doc("The objective's id", "01935b8e-7c3a-7000-8000-000000000000")]
StatusWord = Literal["NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE"]
STATUSES: tuple[StatusWord, ...] = ("NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE")


@dataclass(frozen=True, slots=True)
class Blocker(ApiRecord):
    """What keeps an objective from being worked on."""

    blocker_id: str
    kind: str
    """`OBJECTIVE` (until that is DONE) or `TEXT` (until a person resolves it)."""
    objective_id: str | None
    text: str | None
    resolved: bool
    resolved_at: Instant | None
    resolved_by: str | None
    objective_status: str | None = None
    """Of an open one: the status of that objective now. While it is `BLOCKED`, somebody has to unblock it first."""


@dataclass(frozen=True, slots=True)
class PastWorkorder(ApiRecord):
    """A workorder that was judged: what it came to, and digests of what it left."""

    work_order_id: str
    gate_result: str
    """`PASS` or `FAIL`."""
    run_record_digest: str
    output_bundle_digest: str


@dataclass(frozen=True, slots=True)
class Objective(ApiRecord):
    """Something that people want, and how far it is."""

    objective_id: str
    title: str
    acceptance_criteria: list[str]
    type: str
    """`TICKET` or `STANDING`."""
    status: str
    """`NEW`, `TODO`, `IN_PROGRESS`, `BLOCKED` or `DONE`."""
    importance: int
    """From 0 to 4, 4 is the highest."""
    urgency: int
    """From 0 to 4, 4 is the highest."""
    blockers: list[Blocker]
    metadata: dict[str, Json]
    prompt: str | None
    """The text for its handler, instead of that of the topology."""
    key: str | None
    status_version: int
    """Rises with every change of status."""
    emitted_version: int | None
    """The last status version that a readiness event was emitted for."""
    work_order_id: str | None
    """The workorder that it is in progress by."""
    failed_workorders: int
    """Since it was approved or unblocked."""
    workorders: list[PastWorkorder]
    """The last 20."""
    created_by: str
    approved_by: str | None
    approved_at: Instant | None
    overdue_at: Instant | None
    created_at: Instant
    updated_at: Instant

    @property
    def open_blockers(self) -> list[Blocker]:
        """Those that are not resolved."""
        return [blocker for blocker in self.blockers if not blocker.resolved]


@dataclass(frozen=True, slots=True)
class ReadinessEvent(ApiRecord):
    """An objective became executable."""

    event_id: str
    event_type: str
    resource_type: str
    resource_id: str
    status_version: int
    processed: bool
    processed_reason: str | None
    """`SCHEDULED`, `STALE` or `NO_TYPE_IN_TOPOLOGY`."""
    processed_at: Instant | None
    created_at: Instant


@dataclass(frozen=True, slots=True)
class ArtifactDigest(ApiRecord):
    """An artifact as it was, known by the digest of its document."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True)
class ContextSnapshot(ApiRecord):
    """All that was known when a workorder was made."""

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


@dataclass(frozen=True, slots=True)
class Workorder(ApiRecord):
    """One try at an objective by one handler, within a budget."""

    work_order_id: str
    objective_id: str
    event_id: str
    diazotroph_type: str
    """The handler's name."""
    snapshot_id: str
    budget_ms: int
    status: str
    """`CREATED` or `EXECUTED`."""
    created_at: Instant
    executed_at: Instant | None


@dataclass(frozen=True, slots=True)
class BundleError(ApiRecord):
    """Why a workorder brought nothing."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class OutputBundle(ApiRecord):
    """What the handler of a workorder brought."""

    bundle_id: str
    work_order_id: str
    objective_id: str
    title: str
    metadata: dict[str, Json]
    content: Json
    notes: list[str]
    error: BundleError | None
    created_at: Instant


@dataclass(frozen=True, slots=True)
class GateReport(ApiRecord):
    """What one gate said."""

    gate: str
    result: str
    """`PASS` or `FAIL`."""
    reason: str


@dataclass(frozen=True, slots=True)
class RunRecord(ApiRecord):
    """How a workorder was judged."""

    run_record_id: str
    work_order_id: str
    objective_id: str
    bundle_id: str
    gate_result: str
    """`PASS` or `FAIL`."""
    reason: str
    gates: list[GateReport]
    created_at: Instant


@dataclass(frozen=True, slots=True)
class NextAction(ApiRecord):
    """Something to do next; 1 comes first."""

    priority: int
    action: str


@dataclass(frozen=True, slots=True)
class PauseState(ApiRecord):
    """Where the pipeline paused, why, and one to three things to do next."""

    pause_state_id: str
    objective_id: str
    work_order_id: str | None
    reason: str
    """`RUN_COMPLETE`, `GATE_FAILED`, `BUDGET_EXHAUSTED` or `DEADLINE_PASSED`."""
    terminal: bool
    """Whether it ends a workorder."""
    actions: list[NextAction]
    created_at: Instant


@dataclass(frozen=True, slots=True)
class WorkorderTrail(ApiRecord):
    """A workorder with what it was given, what it brought and how it was judged; null for what is not there (yet, or any more)."""

    workorder: Workorder
    context_snapshot: ContextSnapshot | None
    output_bundle: OutputBundle | None
    run_record: RunRecord | None
    pause_state: PauseState | None


@dataclass(frozen=True, slots=True)
class ObjectiveDetail(Objective):
    """An objective and all that followed from it."""

    why: str
    """Why it is where it is, in one line."""
    events: list[ReadinessEvent]
    workorder_trails: list[WorkorderTrail]
    overdue: PauseState | None
    """What the deadline monitor said, if its time has passed."""
    moves: list[MoveMade]


@dataclass(frozen=True, slots=True)
class ObjectivePage(ApiRecord):
    """Objectives, newest first."""

    objectives: list[Objective]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class BoardColumn(ApiRecord):
    """The objectives of one status."""

    count: int
    """How many there are."""
    objectives: list[Objective]
    """The newest of them, the most important first."""


@dataclass(frozen=True, slots=True)
class ObjectiveBoard(ApiRecord):
    """All objectives side by side, by status."""

    NEW: BoardColumn
    TODO: BoardColumn
    IN_PROGRESS: BoardColumn
    BLOCKED: BoardColumn
    DONE: BoardColumn


@dataclass(frozen=True, slots=True)
class ClaimHeld(ApiRecord):
    """A claim that is held now."""

    resource_type: str
    """`EVENT`, `WORKORDER` or `TASK`."""
    resource_id: str
    owner_id: str
    lease_expires_at: Instant
    heartbeat_at: Instant
    claim_version: int
    task_id: str


@dataclass(frozen=True, slots=True)
class ClaimsHeld(ApiRecord):
    """The claims that are held now, at most 1000."""

    claims: list[ClaimHeld]


Level = Annotated[int, Doc("From 0 to 4, 4 is the highest", 2)]
OptionalLevel = Annotated[int | None, Doc("From 0 to 4, 4 is the highest", 3)]
Criteria = Doc("What must hold for it to be DONE; each up to 4000 characters", ["the tests pass"])
Metadata = Annotated[dict[str, Json] | None, Doc("For its handler and its gates")]
Prompt = Annotated[str | None, Doc("The text for its handler, instead of that of the topology")]


class ObjectivesApi(Protocol):
    """Objectives: what people want. Who adds, approves and changes them is the name of the token that is shown."""

    @contract.get("/objectives")
    async def list(
        self,
        *,
        status: Annotated[Sequence[StatusWord], Doc("Only with these; may be repeated", ["TODO"])] = (),
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[str | None, Doc("The `next_before` of the page before")] = None,
    ) -> ObjectivePage:
        """Objectives, newest first."""

    @contract.post("/objectives", Scope.OPERATE, status=201, creates=True)
    async def add(
        self,
        title: Annotated[str, Doc("What is wanted, in one line of up to 500 characters", "greet must name the person")],
        *,
        acceptance_criteria: Annotated[Sequence[str], Criteria] = (),
        type: Annotated[  # noqa: A002 - the word of the artifact
            Literal["TICKET", "STANDING"], Doc("Which rules of the topology it follows")
        ] = "TICKET",
        importance: Level = 2,
        urgency: Level = 2,
        blocked_by: Annotated[Sequence[str], Doc("Ids of objectives that must be DONE first, or reasons")] = (),
        metadata: Metadata = None,
        prompt: Prompt = None,
        key: Annotated[str | None, Doc("While an objective with it is not DONE, that one is meant")] = None,
    ) -> Objective:
        """Add an objective; it is NEW until somebody approves it."""

    @contract.get("/objectives/board")
    async def board(self, *, limit: Annotated[int, Doc("At most so many of each status, up to 1000", 20)] = 20) -> ObjectiveBoard:
        """All objectives side by side, by status."""

    @contract.get("/objectives/claims")
    async def claims(self) -> ClaimsHeld:
        """The claims that are held now: of events, of workorders, and of all other tasks."""

    @contract.get("/objectives/{objective_id}")
    async def get(self, objective_id: ObjectiveId) -> ObjectiveDetail:
        """Everything about one objective: where it stands and why, its workorders, what they brought and how they were judged."""

    @contract.post("/objectives/{objective_id}/approve", Scope.OPERATE)
    async def approve(self, objective_id: ObjectiveId) -> Objective:
        """Let a NEW objective be worked on; one that is approved stays as it is."""

    @contract.post("/objectives/{objective_id}/block", Scope.OPERATE)
    async def block(
        self,
        objective_id: ObjectiveId,
        *,
        reason: Annotated[str | None, Doc("Why; until somebody unblocks it")] = None,
        on: Annotated[str | None, Doc("The id of the objective that it waits for; until that is DONE")] = None,
    ) -> Objective:
        """Keep a TODO objective from being worked on: say either a reason, or what it waits for."""

    @contract.post("/objectives/{objective_id}/unblock", Scope.OPERATE)
    async def unblock(self, objective_id: ObjectiveId) -> Objective:
        """Resolve all that blocks an objective; its tries start anew."""

    @contract.post("/objectives/{objective_id}/edit", Scope.OPERATE)
    async def edit(
        self,
        objective_id: ObjectiveId,
        *,
        title: Annotated[str | None, Doc("What is wanted, in one line")] = None,
        acceptance_criteria: Annotated[Sequence[str] | None, Criteria] = None,
        importance: OptionalLevel = None,
        urgency: OptionalLevel = None,
        metadata: Metadata = None,
        prompt: Prompt = None,
    ) -> Objective:
        """Change an objective that is not DONE; what is not given, or null, stays. A workorder under way keeps its snapshot."""
