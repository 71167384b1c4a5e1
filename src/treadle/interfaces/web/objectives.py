"""Objectives: the board by status, and one with its history."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.objectives import STATUSES
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import text, whole
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/objectives")
    async def board(request: Request, service: Operations) -> Response:
        found = await service.objectives.board(limit=25)
        columns = [(status, getattr(found, status)) for status in STATUSES]
        return await site.render(request, "objectives.html", service=service, columns=columns)

    @site.action("/objectives")
    async def new(request: Request, service: Operations) -> Response:
        form = await request.form()
        levels: dict[str, Any] = {name: level for name in ("importance", "urgency") if (level := whole(form, name)) is not None}
        criteria = [line.strip() for line in (text(form, "criteria") or "").splitlines() if line.strip()]
        made = await service.objectives.add(
            text(form, "title") or "", acceptance_criteria=criteria, prompt=text(form, "prompt"), **levels
        )
        return site.back(request, f"{made.title} is {made.status}: it needs approval.", to=f"/objectives/{made.objective_id}")

    @site.page("/objectives/{objective_id}")
    async def objective(request: Request, service: Operations) -> Response:
        found = await service.objectives.get(request.path_params["objective_id"])
        return await site.render(request, "objective.html", service=service, objective=found)

    @site.action("/objectives/{objective_id}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        objective_id, form = request.path_params["objective_id"], await request.form()
        match request.path_params["act"]:
            case "approve":
                done = await service.objectives.approve(objective_id)
            case "block":
                done = await service.objectives.block(objective_id, reason=text(form, "reason"), on=text(form, "on"))
            case "unblock":
                done = await service.objectives.unblock(objective_id)
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
        return site.back(request, f"{done.title} is now {done.status}.")
