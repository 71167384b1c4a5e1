"""The deadline monitor: flags approved objectives that are not DONE within the time for their urgency, each once."""

from __future__ import annotations

from treadle.api.objectives import Objective
from treadle.api.wire import Instant
from treadle.goals.artifacts import Artifacts
from treadle.goals.decide import Seen, decide_overdue
from treadle.goals.records import Status
from treadle.goals.topology import Topology
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import TaskStore
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, GOAL_DEADLINE, Lane
from treadle.model.tasks import Claim, NewTask

PAGE = 200
_WATCHED = (Status.TODO, Status.IN_PROGRESS, Status.BLOCKED)


class Monitor:
    """Scans the objectives of one namespace."""

    def __init__(self, store: TaskStore, committer: Committer, artifacts: Artifacts, *, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._store = store
        self._committer = committer
        self._artifacts = artifacts
        self._namespace = namespace

    async def scan(self, claim: Claim, topology: Topology) -> int:
        """Scan once under the claim of the monitor's task; return the number of newly overdue objectives.

        An objective that changes meanwhile is left for the next scan; when the claim is lost, another worker has taken over.
        """
        found = 0
        before_id: str | None = None
        while page := await self._artifacts.list_objectives(_WATCHED, before_id, PAGE, live=True):
            now = await self._store.now()
            for seen in page:
                if is_overdue(seen.objective, topology, now):
                    verdict = await self._flag(claim, seen, Instant.of(now))
                    if verdict is Verdict.CLAIM_LOST:
                        return found
                    found += verdict is Verdict.DONE
            before_id = page[-1].objective.objective_id
        return found

    async def _flag(self, claim: Claim, seen: Seen, now: Instant) -> Verdict:
        decision = decide_overdue(seen, now)
        return (await self._committer.submit(Unit(claim, rows=self._artifacts.rows(decision)))).verdict

    def task(self, task_id: str) -> NewTask:
        """Return the monitor's task; storing it again has no effect while one is live."""
        lane = Lane(self._namespace, GOAL_DEADLINE, ENGINE_LIST, GOAL_DEADLINE)
        return NewTask(id=task_id, lane=lane, unique_key=GOAL_DEADLINE)


def is_overdue(objective: Objective, topology: Topology, now: int) -> bool:
    """Whether the deadline has passed and the objective is not flagged yet."""
    allowed_for = topology.deadlines.get(objective.urgency)
    if allowed_for is None or objective.approved_at is None or objective.overdue_at is not None:
        return False
    approved_at = objective.approved_at.ms
    return approved_at + allowed_for <= now
