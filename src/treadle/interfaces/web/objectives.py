"""Objectives: the board by status, and one with its history."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.api.objectives import STATUSES
from treadle.interfaces.web.forms import text, whole
from treadle.interfaces.web.site import Visit, act, action, detail, page


@page("/objectives")
async def board(visit: Visit) -> Response:
    objectives = await visit.api.objectives.board(limit=25)
    columns = [(status, getattr(objectives, status)) for status in STATUSES]
    return await visit.render("objectives.html", columns=columns)


@action("/objectives")
async def new(visit: Visit) -> Response:
    form = await visit.form()
    levels: dict[str, Any] = {name: level for name in ("importance", "urgency") if (level := whole(form, name)) is not None}
    criteria = [line.strip() for line in (text(form, "criteria") or "").splitlines() if line.strip()]
    objective = await visit.api.objectives.add(
        text(form, "title") or "", acceptance_criteria=criteria, prompt=text(form, "prompt"), **levels
    )
    return visit.back(f"{objective.title} is {objective.status}: it needs approval.", to=f"/objectives/{objective.objective_id}")


detail("/objectives/{objective_id}", "objectives.get", "objective")

_IS_NOW = "{title} is now {status}."
act("/objectives/{objective_id}/approve", "objectives.approve", _IS_NOW)
act("/objectives/{objective_id}/block", "objectives.block", _IS_NOW, takes="reason on")
act("/objectives/{objective_id}/unblock", "objectives.unblock", _IS_NOW)
