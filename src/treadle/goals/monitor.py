"""The deadline monitor: flags approved objectives that are not DONE within the time for their urgency, each once."""

from __future__ import annotations

from treadle.api.objectives import Objective
from treadle.api.wire import Instant
from treadle.goals.additional import role_tasks
from treadle.goals.artifacts import Artifacts
from treadle.goals.decide import Seen, decide_overdue, role_lane
from treadle.goals.records import Status
from treadle.goals.topology import Topology
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.names import DEFAULT_NAMESPACE, GOAL_DEADLINE
from treadle.model.tasks import Claim, NewTask

PAGE = 200
_WATCHED = (Status.TODO, Status.IN_PROGRESS, Status.BLOCKED)


class Monitor:
    """Scans the objectives of one namespace, each type with the deadlines of a topology that has it."""

    def __init__(self, store: Store, committer: Committer, artifacts: Artifacts, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._committer = committer
        self._artifacts = artifacts
        self._namespace = namespace

    async def scan(self, claim: Claim, topology: Topology, objective_type: str) -> int:
        """Scan objectives of a type under the claim of the monitor's task; return the number of newly overdue ones.

        An objective that changes meanwhile is left for the next scan; when the claim is lost, another worker has taken over.
        """
        found = 0
        before_id: str | None = None
        while page := await self._artifacts.list_objectives(_WATCHED, before_id, PAGE, live=True):
            now = await self._store.now()
            for seen in page:
                if seen.objective.type == objective_type and is_overdue(seen.objective, topology, now):
                    verdict = await self._flag(claim, seen, topology, Instant.of(now))
                    if verdict is Verdict.CLAIM_LOST:
                        return found
                    found += verdict is Verdict.DONE
            before_id = page[-1].objective.objective_id
        return found

    async def _flag(self, claim: Claim, seen: Seen, topology: Topology, now: Instant) -> Verdict:
        decision = decide_overdue(seen, now)
        tasks = tuple(role_tasks(self._namespace, topology, decision))
        return (await self._committer.submit(Unit(claim, tasks=tasks, rows=self._artifacts.rows(decision)))).verdict

    def task(self, task_id: str, objective_type: str) -> NewTask:
        """Return the monitor's task for a type; storing it again has no effect while one is live."""
        lane = role_lane(self._namespace, GOAL_DEADLINE, objective_type)
        return NewTask(id=task_id, lane=lane, unique_key=f"{GOAL_DEADLINE}/{objective_type}")


def is_overdue(objective: Objective, topology: Topology, now: int) -> bool:
    """Whether the deadline has passed and the objective is not flagged yet."""
    allowed_for = topology.deadlines.get(objective.urgency)
    if allowed_for is None or objective.approved_at is None or objective.overdue_at is not None:
        return False
    approved_at = objective.approved_at.ms
    return approved_at + allowed_for <= now
