"""Approvals: the list of questions for people, and the page of one."""

from __future__ import annotations

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import Fields, parse_object, text
from treadle.interfaces.web.site import Site
from treadle.model.errors import InvalidInput

STATES = ("pending", "approved", "denied", "expired", "canceled")


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/approvals")
    async def inbox(request: Request, service: Operations) -> Response:
        asked = request.query_params
        state = asked.get("state", "pending")
        page = await service.approvals.list(
            state=() if state == "all" else [state],
            every=state == "all",
            run_id=text(asked, "run_id"),
            before=text(asked, "before"),
        )
        counts = await service.approvals.counts()
        return await site.render(request, "approvals.html", service=service, page=page, counts=counts, state=state, states=STATES)

    @site.action("/approvals")
    async def decide_many(request: Request, service: Operations) -> Response:
        form = await request.form()
        ids, decision = [str(each) for each in form.getlist("id")], _decision(form)
        if not ids:
            raise InvalidInput("Select at least one approval.")
        answers = (await service.approvals.decide_many(ids, decision, reason=text(form, "reason"))).answers
        wrong = [each.text for each in answers if each.error is not None]
        done = f"{len(answers) - len(wrong)} decided."
        return site.back(request, " ".join([done, *wrong]), to="/approvals", bad=bool(wrong))

    @site.page("/approvals/{approval_id}")
    async def approval(request: Request, service: Operations) -> Response:
        found = await service.approvals.get(request.path_params["approval_id"])
        return await site.render(request, "approval.html", service=service, approval=found)

    @site.action("/approvals/{approval_id}")
    async def decide(request: Request, service: Operations) -> Response:
        approval_id, form = request.path_params["approval_id"], await request.form()
        reason = text(form, "reason")
        match _decision(form):
            case "approve":
                found = await service.approvals.get(approval_id)
                edits = parse_object(form, "edits") or {}
                missing = object()
                changed = {name: value for name, value in edits.items() if found.context.get(name, missing) != value}
                done = await service.approvals.approve(approval_id, reason=reason, edits=changed or None)
            case "deny":
                done = await service.approvals.deny(approval_id, reason=reason)
        back = text(form, "back") or ""
        where = back if back.startswith("/runs/") else f"/approvals/{approval_id}"
        return site.back(request, f"{done.standing}.", to=where)


def _decision(form: Fields) -> Literal["approve", "deny"]:
    match form.get("decision"):
        case "approve":
            return "approve"
        case "deny":
            return "deny"
        case _:
            raise InvalidInput("The decision must be approve or deny.")
