"""Approvals: the list of questions for people, and the page of one."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from treadle.interfaces.web.forms import Fields, parse_object, text
from treadle.interfaces.web.site import Visit, action, detail, page
from treadle.model.errors import InvalidInput

STATES = ("pending", "approved", "denied", "expired", "canceled")


@page("/approvals")
async def inbox(visit: Visit) -> Response:
    query = visit.query
    state = query.get("state", "pending")
    page = await visit.api.approvals.list(
        state=() if state == "all" else [state],
        every=state == "all",
        run_id=text(query, "run_id"),
        before=text(query, "before"),
    )
    counts = await visit.api.approvals.counts()
    return await visit.render("approvals.html", page=page, counts=counts, state=state, states=STATES)


@action("/approvals")
async def decide_many(visit: Visit) -> Response:
    form = await visit.form()
    ids, decision = [str(approval_id) for approval_id in form.getlist("id")], _decision(form)
    if not ids:
        raise InvalidInput("Select at least one approval.")
    answers = (await visit.api.approvals.decide_many(ids, decision, reason=text(form, "reason"))).answers
    wrong = [answer.text for answer in answers if answer.error is not None]
    done = f"{len(answers) - len(wrong)} decided."
    return visit.back(" ".join([done, *wrong]), to="/approvals", bad=bool(wrong))


detail("/approvals/{approval_id}", "approvals.get", "approval")


@action("/approvals/{approval_id}")
async def decide(visit: Visit) -> Response:
    approval_id, form = visit.path["approval_id"], await visit.form()
    reason = text(form, "reason")
    match _decision(form):
        case "approve":
            approval = await visit.api.approvals.get(approval_id)
            edits = parse_object(form, "edits") or {}
            missing = object()
            changed = {name: value for name, value in edits.items() if approval.context.get(name, missing) != value}
            done = await visit.api.approvals.approve(approval_id, reason=reason, edits=changed or None)
        case "deny":
            done = await visit.api.approvals.deny(approval_id, reason=reason)
    back = text(form, "back") or ""
    where = back if back.startswith("/runs/") else f"/approvals/{approval_id}"
    return visit.back(f"{done.standing}.", to=where)


def _decision(form: Fields) -> Literal["approve", "deny"]:
    match form.get("decision"):
        case "approve":
            return "approve"
        case "deny":
            return "deny"
        case _:
            raise InvalidInput("The decision must be approve or deny.")
