"""Additional roles that a topology declares: tasks for the events that they receive, and the effect of their results. Pure."""

from __future__ import annotations

from dataclasses import replace

from treadle.api.objectives import Objective
from treadle.api.wire import Instant
from treadle.goals.decide import Changed, Decision, Seen, readiness_task, role_lane
from treadle.goals.records import Status
from treadle.goals.topology import Topology
from treadle.goals.transitions import blocked, resolved_by, text_blocker, unblocked
from treadle.model.ids import derived_id
from treadle.model.names import GOAL_READINESS, GOAL_ROLE
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode, encode


def role_tasks(namespace: str, topology: Topology, decision: Decision, task: Task | None = None) -> list[NewTask]:
    """Return the additional roles' tasks for the moves of a decision, and for the operator's move that `task` checks."""
    moves = [
        (each.document.objective_id, each.document.type, each.move, f"version/{each.record.version}")
        for each in decision.changed
        if isinstance(each.document, Objective) and each.move is not None
    ]
    if task is not None and task.kind == GOAL_READINESS and (move := decode(task.payload).get("move")) is not None:
        moves.append((decode(task.payload)["objective_id"], task.name, move, task.id))
    return [
        NewTask(
            id=derived_id(objective_id, f"role/{name}/{move}/{occasion}"),
            lane=role_lane(namespace, GOAL_ROLE, f"{name}/{of_type}"),
            payload=encode({"role": name, "event": f"objective.{move}", "objective_id": objective_id}),
            root_id=objective_id,
        )
        for objective_id, of_type, move, occasion in moves
        for name, role in topology.additional.items()
        if f"objective.{move}" in role.events and of_type in topology.types
    ]


def decide_role(seen: Seen, role: str, result: dict[str, Json], now: Instant, namespace: str) -> Decision | None:
    """Block a TODO objective for the reason in `block`, or unblock a BLOCKED one with `unblock: true`; None for anything else."""
    objective, reason = seen.objective, result.get("block")
    actor = f"role:{role}"
    if isinstance(reason, str) and reason.strip() and objective.status == Status.TODO:
        after, move = blocked(objective, text_blocker(objective, reason)), "block"
    elif result.get("unblock") is True and objective.status == Status.BLOCKED:
        after, move = unblocked(resolved_by(objective, actor, now)), "unblock"
    else:
        return None
    after = replace(after, updated_at=now)
    changed = Changed(seen.record, after, move, actor, {"reason": reason} if move == "block" else None)
    tasks = [] if move == "block" else [readiness_task(namespace, after, f"status/{after.status_version}")]
    return Decision({**result, "move": move}, changed=[changed], tasks=tasks)
