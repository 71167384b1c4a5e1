"""Calls about objectives, on an engine. Artifacts have the same names here as in their schemas."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from treadle.api.objectives import (
    BoardColumn,
    ClaimHeld,
    ClaimsHeld,
    ContextSnapshot,
    Objective,
    ObjectiveBoard,
    ObjectiveDetail,
    ObjectivePage,
    ObjectivesApi,
    OutputBundle,
    PauseState,
    ReadinessEvent,
    RunRecord,
    Workorder,
    WorkorderTrail,
)
from treadle.api.wire import from_builtins
from treadle.goals import reads as kernel
from treadle.goals import records as model
from treadle.model.values import Json
from treadle.service.group import Group
from treadle.service.task_records import move_record

S = TypeVar("S")


class Objectives(Group, ObjectivesApi):
    """See `ObjectivesApi`."""

    async def list(self, *, status: Sequence[str] = (), limit: int = 50, before: str | None = None) -> ObjectivePage:
        found = await self.engine.objectives.list(statuses=status, before_id=before, limit=limit)
        return ObjectivePage(await self._all_shaped(found), found[-1].objective_id if len(found) == limit else None)

    async def add(self, title: str, **options: Any) -> Objective:
        return _shaped(await self.engine.objectives.add(title, actor=self.actor, **options))

    async def board(self, *, limit: int = 20) -> ObjectiveBoard:
        found = await self.engine.objectives.board(limit)
        return ObjectiveBoard(
            **{status: BoardColumn(count, await self._all_shaped(objectives)) for status, (count, objectives) in found.items()}
        )

    async def claims(self) -> ClaimsHeld:
        return ClaimsHeld([from_builtins(each.as_json(), ClaimHeld) for each in await self.engine.objectives.claims()])

    async def get(self, objective_id: str) -> ObjectiveDetail:
        trail = await self.engine.objectives.show(objective_id)
        (objective,) = await self._all_shaped([trail.objective])
        return ObjectiveDetail(
            **{each.name: getattr(objective, each.name) for each in fields(objective)},
            why=trail.why,
            events=[from_builtins(each.as_json(), ReadinessEvent) for each in trail.events],
            workorder_trails=[_trail(each) for each in trail.workorders],
            overdue=_artifact(trail.overdue, PauseState),
            moves=[move_record(move) for move in trail.moves],
        )

    async def _all_shaped(self, objectives: Sequence[model.Objective]) -> builtins.list[Objective]:
        """The objectives, each with the status of those that it waits for."""
        statuses = await self.engine.objectives.blocking_statuses(objectives)
        return [_with_statuses(_shaped(each), statuses) for each in objectives]

    async def approve(self, objective_id: str) -> Objective:
        return _shaped(await self.engine.objectives.approve(objective_id, actor=self.actor))

    async def block(self, objective_id: str, *, reason: str | None = None, on: str | None = None) -> Objective:
        return _shaped(await self.engine.objectives.block(objective_id, actor=self.actor, reason=reason, on=on))

    async def unblock(self, objective_id: str) -> Objective:
        return _shaped(await self.engine.objectives.unblock(objective_id, actor=self.actor))

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
    ) -> Objective:
        edited = await self.engine.objectives.edit(
            objective_id,
            actor=self.actor,
            title=title,
            acceptance_criteria=acceptance_criteria,
            importance=importance,
            urgency=urgency,
            metadata=metadata,
            prompt=prompt,
        )
        return _shaped(edited)


def _shaped(objective: model.Objective) -> Objective:
    shaped: Objective = from_builtins(objective.as_json(), Objective)
    return shaped


def _with_statuses(objective: Objective, statuses: dict[str, str]) -> Objective:
    blockers = [
        each if each.resolved else replace(each, objective_status=statuses.get(each.objective_id or ""))
        for each in objective.blockers
    ]
    return replace(objective, blockers=blockers)


def _artifact(artifact: Any, kind: type[S]) -> S | None:
    return None if artifact is None else from_builtins(artifact.as_json(), kind)


def _trail(trail: kernel.WorkorderTrail) -> WorkorderTrail:
    return WorkorderTrail(
        workorder=from_builtins(trail.workorder.as_json(), Workorder),
        context_snapshot=_artifact(trail.snapshot, ContextSnapshot),
        output_bundle=_artifact(trail.bundle, OutputBundle),
        run_record=_artifact(trail.run_record, RunRecord),
        pause_state=_artifact(trail.pause_state, PauseState),
    )
