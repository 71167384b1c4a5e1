"""Changes of an objective's status and blockers, which the roles and the operators' calls share. Pure."""

from __future__ import annotations

import dataclasses

from treadle.api.objectives import Blocker, Objective
from treadle.api.wire import Instant
from treadle.goals.records import Status

BLOCKERS_KEPT = 20
"""Resolved blockers that an objective keeps."""

LONGEST_REASON = 2000


def approved(objective: Objective, actor: str, now: Instant) -> Objective:
    """Return the objective as approved by a person (or the topology's reviewer)."""
    version = objective.status_version + 1
    return dataclasses.replace(objective, status=Status.TODO, status_version=version, approved_by=actor, approved_at=now)


def unblocked(objective: Objective) -> Objective:
    """Return the objective without its blockers; its count of failed workorders restarts."""
    return dataclasses.replace(objective, status=Status.TODO, status_version=objective.status_version + 1, failed_workorders=0)


def resolve_blocker(blocker: Blocker, now: Instant, actor: str) -> Blocker:
    """Return the blocker as resolved by that actor."""
    return dataclasses.replace(blocker, resolved=True, resolved_at=now, resolved_by=actor)


def resolved_by(objective: Objective, actor: str, now: Instant) -> Objective:
    """Return the objective with all its blockers resolved."""
    return dataclasses.replace(
        objective, blockers=[each if each.resolved else resolve_blocker(each, now, actor) for each in objective.blockers]
    )


def blocked(objective: Objective, blocker: Blocker) -> Objective:
    """Return the objective, BLOCKED by the given blocker."""
    resolved = [each for each in objective.blockers if each.resolved][-BLOCKERS_KEPT:]
    kept = [each for each in objective.blockers if not each.resolved or each in resolved]
    return dataclasses.replace(
        objective, status=Status.BLOCKED, status_version=objective.status_version + 1, blockers=[*kept, blocker]
    )


def text_blocker(objective: Objective, text: str) -> Blocker:
    """Return a blocker that only a person resolves."""
    return Blocker(blocker_id=next_blocker_id(objective), kind="TEXT", text=text[:LONGEST_REASON])


def next_blocker_id(objective: Objective) -> str:
    """Return a blocker id that is unused in the objective."""
    return f"b{max((int(each.blocker_id[1:]) for each in objective.blockers), default=0) + 1}"
