"""Operations on objectives, as the API declares them. Artifacts have the same names here as in their schemas."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from treadle.api.objectives import (
    BoardColumn,
    ClaimsHeld,
    Objective,
    ObjectiveBoard,
    ObjectiveDetail,
    ObjectivePage,
    ObjectivesApi,
    WorkorderTrail,
)
from treadle.api.wire import record_of
from treadle.goals import reads as kernel
from treadle.goals.service import Objectives
from treadle.kernel.reads.records import transition_record
from treadle.model.access import OPEN, Access, Scope
from treadle.model.errors import Forbidden
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.engine import Engine


class ObjectiveOperations(ObjectivesApi):
    """The objectives of one namespace."""

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives

    async def list(self, *, status: Sequence[str] = (), limit: int = 50, before: str | None = None) -> ObjectivePage:
        objectives = await self._objectives.list(statuses=status, before_id=before, limit=limit)
        return ObjectivePage(
            await self._all_shaped(objectives), next_before=objectives[-1].objective_id if len(objectives) == limit else None
        )

    async def add(self, title: str, *, actor: str = "operator", **options: Any) -> Objective:
        return await self._objectives.add(title, actor=actor, **options)

    async def board(self, *, limit: int = 20) -> ObjectiveBoard:
        columns = await self._objectives.board(limit)
        return ObjectiveBoard(
            **{status: BoardColumn(count, await self._all_shaped(objectives)) for status, (count, objectives) in columns.items()}
        )

    async def claims(self) -> ClaimsHeld:
        return ClaimsHeld(await self._objectives.claims())

    async def get(self, objective_id: str) -> ObjectiveDetail:
        trail = await self._objectives.show(objective_id)
        (objective,) = await self._all_shaped([trail.objective])
        return ObjectiveDetail(
            **asdict(objective),
            why=trail.why,
            events=list(trail.events),
            workorder_trails=[_trail(workorder) for workorder in trail.workorders],
            overdue=trail.overdue,
            transitions=[transition_record(transition) for transition in trail.transitions],
        )

    async def _all_shaped(self, objectives: Sequence[Objective]) -> builtins.list[Objective]:
        """The objectives, with the current status of the objectives that block them."""
        statuses = await self._objectives.blocking_statuses(objectives)
        return [_with_statuses(objective, statuses) for objective in objectives]

    async def approve(self, objective_id: str, *, actor: str = "operator", access: Access = OPEN) -> Objective:
        if access.for_model:
            objective = await self._objectives.get(objective_id)
            access.check_own(objective.created_by, f"the objective {objective.objective_id}")
        return await self._objectives.approve(objective_id, actor=actor)

    async def block(
        self, objective_id: str, *, reason: str | None = None, on: str | None = None, actor: str = "operator"
    ) -> Objective:
        return await self._objectives.block(objective_id, actor=actor, reason=reason, on=on)

    async def unblock(self, objective_id: str, *, actor: str = "operator") -> Objective:
        return await self._objectives.unblock(objective_id, actor=actor)

    async def edit(
        self,
        objective_id: str,
        *,
        title: str | None = None,
        acceptance_criteria: Sequence[str] | None = None,
        importance: int | None = None,
        urgency: int | None = None,
        metadata: dict[str, Json] | None = None,
        prompt: str | None = None,
        actor: str = "operator",
        access: Access = OPEN,
    ) -> Objective:
        if not access.may(Scope.APPROVE) and any(change is not None for change in (title, acceptance_criteria, metadata, prompt)):
            objective = await self._objectives.get(objective_id)
            if objective.approved_by is not None:  # the approval was for the old text
                raise Forbidden(Scope.APPROVE)
        return await self._objectives.edit(
            objective_id,
            actor=actor,
            title=title,
            acceptance_criteria=acceptance_criteria,
            importance=importance,
            urgency=urgency,
            metadata=metadata,
            prompt=prompt,
        )


def _with_statuses(objective: Objective, statuses: dict[str, str]) -> Objective:
    blockers = [
        blocker if blocker.resolved else replace(blocker, objective_status=statuses.get(blocker.objective_id or ""))
        for blocker in objective.blockers
    ]
    return replace(objective, blockers=blockers)


def _trail(trail: kernel.WorkorderTrail) -> WorkorderTrail:
    return record_of(WorkorderTrail, trail, context_snapshot=trail.snapshot, output_bundle=trail.bundle)


def make_operations(engine: Engine) -> ObjectiveOperations:
    """The operations on the objectives of an engine."""
    return ObjectiveOperations(engine.goals.objectives)
