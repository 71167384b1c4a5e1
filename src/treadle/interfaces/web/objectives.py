"""Objectives: the board by status, and one with its history."""

from __future__ import annotations

from starlette.responses import Response

from treadle.api.objectives import STATUSES
from treadle.interfaces.web.site import Visit, act, detail, page


@page("/objectives")
async def board(visit: Visit) -> Response:
    objectives = await visit.api.objectives.board(limit=25)
    columns = [(status, getattr(objectives, status)) for status in STATUSES]
    return await visit.render("objectives.html", columns=columns)


act("/objectives", "objectives.add", "{title} is {status}: it needs approval.", to="/objectives/{objective_id}")
detail("/objectives/{objective_id}", "objectives.get", "objective")

_IS_NOW = "{title} is now {status}."
act("/objectives/{objective_id}/approve", "objectives.approve", _IS_NOW)
act("/objectives/{objective_id}/block", "objectives.block", _IS_NOW)
act("/objectives/{objective_id}/unblock", "objectives.unblock", _IS_NOW)
