"""Reads of the goal pipeline: an objective with everything that followed from it, and the claims held now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treadle.api.objectives import (
    Blocker,
    ClaimHeld,
    ContextSnapshot,
    Objective,
    OutputBundle,
    PauseState,
    ReadinessEvent,
    RunRecord,
    Workorder,
)
from treadle.api.wire import Instant
from treadle.engine.kernel import Kernel
from treadle.goals.artifacts import Artifacts, D
from treadle.goals.kinds import GOAL_GATE, GOAL_RUN, GOAL_SCHEDULE
from treadle.goals.records import (
    ObjectiveNotFound,
    Status,
    event_id_of,
    follow_up_id,
)
from treadle.goals.schemas import check_document
from treadle.kernel.core import Service
from treadle.kernel.store.lookups import find_id
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import UnreadableValue
from treadle.model.records import UNREADABLE
from treadle.model.states import OBJECTIVE
from treadle.model.tasks import Task, Transition
from treadle.model.values import decode

CLAIMS_SHOWN = 1000
_RESOURCES = {
    GOAL_SCHEDULE: ("EVENT", "event_id"),
    GOAL_RUN: ("WORKORDER", "work_order_id"),
    GOAL_GATE: ("WORKORDER", "work_order_id"),
}


@dataclass(frozen=True, slots=True)
class WorkorderTrail:
    """A workorder with its input, output and verdict; None for artifacts that do not exist yet or were pruned."""

    workorder: Workorder
    snapshot: ContextSnapshot | None
    bundle: OutputBundle | None
    run_record: RunRecord | None
    pause_state: PauseState | None


@dataclass(frozen=True, slots=True)
class ObjectiveTrail:
    """An objective, its readiness events and workorders in order, its transitions, and the reason for its state."""

    objective: Objective
    events: list[ReadinessEvent]
    workorders: list[WorkorderTrail]
    overdue: PauseState | None
    transitions: list[Transition]
    why: str


class GoalReads(Service):
    """Reads of the objectives of one namespace."""

    def __init__(self, kernel: Kernel, artifacts: Artifacts) -> None:
        super().__init__(kernel.core)
        self._reads = kernel.reads
        self._artifacts = artifacts

    async def show(self, objective_id: str) -> ObjectiveTrail:
        """Return the objective, everything that followed from it, and the reason for its state."""
        objective_id = await find_id(self._store, self._namespace, OBJECTIVE.entity, objective_id)
        seen = await self._artifacts.find_any_objective(objective_id)
        if seen is None:
            raise ObjectiveNotFound(objective_id)
        objective = seen.objective
        events: list[ReadinessEvent] = []
        trails: list[WorkorderTrail] = []
        problems: list[str] = []
        for version in range(1, objective.status_version + 1):
            event_id = event_id_of(objective.objective_id, version)
            event = await self._find_readable(ReadinessEvent, event_id, problems)
            if event is None:
                continue
            events.append(event)
            trail = await self.find_trail(follow_up_id(event_id, "workorder"), problems)
            trails += [] if trail is None else [trail]
        return ObjectiveTrail(
            objective,
            events,
            trails,
            await self._find_readable(PauseState, follow_up_id(objective.objective_id, "overdue"), problems),
            await self._store.log.list_transitions(objective.objective_id),
            " ".join([await self.why(objective), *problems]),
        )

    async def find_trail(self, work_order_id: str, problems: list[str]) -> WorkorderTrail | None:
        """Return the workorder and its artifacts; those that cannot be read are added to the problems."""
        workorder = await self._find_readable(Workorder, work_order_id, problems)
        if workorder is None:
            return None
        return WorkorderTrail(
            workorder,
            await self._find_readable(ContextSnapshot, follow_up_id(workorder.event_id, "snapshot"), problems),
            await self._find_readable(OutputBundle, follow_up_id(work_order_id, "bundle"), problems),
            await self._find_readable(RunRecord, follow_up_id(work_order_id, "run_record"), problems),
            await self._find_readable(PauseState, follow_up_id(work_order_id, "pause_state"), problems),
        )

    async def _find_readable(self, kind: type[D], record_id: str, problems: list[str]) -> D | None:
        """Return the artifact; None also if it cannot be read, which is added to the problems."""
        try:
            return await self._artifacts.find(kind, record_id)
        except UnreadableValue as error:
            problems.append(str(error))
            return None

    async def why(self, objective: Objective) -> str:
        """Explain the objective's state in one line."""
        if objective.created_by == UNREADABLE:
            return f"{objective.title} A new title (`treadle objectives edit`) repairs it."
        if objective.status == Status.DONE:
            return "done"
        if objective.status == Status.NEW:
            return f"waits for approval: `treadle objectives approve {objective.objective_id}`"
        if waits := objective.open_blockers:
            return f"blocked: {'; '.join([await self._describe(blocker) for blocker in waits])}"
        for task_id, what in self._tasks_of(objective):
            task = await self._store.tasks.find(task_id)
            if task is not None and not task.finished:
                return f"{what}: {(await self._reads.why(task_id)).text}"
        return (
            "no role is processing it; check that a worker is running with `--topology FILE`, and that the file declares the type "
            f"{objective.type}"
        )

    async def _describe(self, blocker: Blocker) -> str:
        """Describe the blockers, with the status of blocking objectives: one that is BLOCKED itself waits for a person."""
        if blocker.objective_id is None:
            return str(blocker.text)
        text = f"objective {blocker.objective_id} ({blocker.text})"
        seen = await self._artifacts.find_any_objective(blocker.objective_id)
        if seen is None:
            return text
        other = seen.objective
        reasons = "; ".join(str(open_blocker.text) for open_blocker in other.open_blockers)
        return f"{text}, which is {other.status}{f': {reasons}' if other.status == Status.BLOCKED and reasons else ''}"

    async def blocking_statuses(self, objectives: Sequence[Objective]) -> dict[str, str]:
        """Return the statuses of the objectives that these wait for, by id."""
        wanted = {
            blocker.objective_id
            for objective in objectives
            for blocker in objective.open_blockers
            if blocker.objective_id is not None
        }
        blocking = [await self._artifacts.find_any_objective(objective_id) for objective_id in sorted(wanted)]
        return {seen.objective.objective_id: seen.objective.status for seen in blocking if seen is not None}

    @staticmethod
    def _tasks_of(objective: Objective) -> Iterator[tuple[str, str]]:
        if objective.work_order_id is not None:
            yield follow_up_id(objective.work_order_id, "run"), "in progress"
            yield follow_up_id(objective.work_order_id, "gate"), "being judged"
        else:
            yield follow_up_id(event_id_of(objective.objective_id, objective.status_version), "schedule"), "to be scheduled"

    async def claims(self, kind: str | None = None) -> list[ClaimHeld]:
        """Return the claims held now, each a valid `claim_record`: of events, of workorders, and of all other tasks (D40)."""
        which = TaskFilter(namespace=self._namespace, kind=kind, held=True)
        claims = []
        for task in await self._store.tasks.list_matching(which, CLAIMS_SHOWN):
            earlier = None
            if task.kind == GOAL_GATE:  # the runner claimed the same workorder before
                earlier = await self._store.tasks.find(follow_up_id(decode(task.payload)["work_order_id"], "run"))
            claims.append(claim_of(task, 0 if earlier is None else earlier.claim_version))
        for claim in claims:
            check_document("claim_record", claim.as_json())
        return claims


def claim_of(task: Task, earlier: int = 0) -> ClaimHeld:
    """Return the claim of a held task; `earlier` is the last version of the claims of another role on the same resource."""
    resource_type, name = _RESOURCES.get(task.kind, ("TASK", ""))
    return ClaimHeld(
        resource_type=resource_type,
        resource_id=decode(task.payload)[name] if name else task.id,
        owner_id=task.owner_id or "",
        lease_expires_at=Instant.of(task.wake_at or 0),
        heartbeat_at=Instant.of(task.heartbeat_at or 0),
        claim_version=earlier + task.claim_version,
        task_id=task.id,
    )
