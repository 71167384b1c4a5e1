"""Handlers that ask people."""

from __future__ import annotations

from typing import Any

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine

GROUPS = {"ada": ("weavers",), "bob": ("weavers",), "cyd": ("masters",), "eve": ()}
"""People and their groups; eve may decide everything that is open to anyone."""


def add_questions(engine: Engine) -> None:
    """One asks anybody, the other a group."""

    @engine.handler("ask")
    async def ask(payload: Any, ctx: Context) -> Any:
        if ctx.approval_decision is None:
            request = ApprovalRequest.of(
                "May I?", context=payload, expires=payload["expires"], remind_after=1, on_expiry="ask_again"
            )
            return AwaitingApproval(request)
        return {"by": ctx.approval_decision["by"]}

    @engine.handler("vote")
    async def vote(payload: Any, ctx: Context) -> Any:
        if (decision := ctx.approval_decision) is not None:
            return {"by": [each["actor"] for each in decision["votes"] if each["decision"] == "approve"]}
        more: dict[str, Any] = {"escalate_after": 2, "escalate_to": ("masters",)} if payload["escalates"] else {}
        request = ApprovalRequest.of(
            "May we?", deciders=("weavers",), quorum=2, expires=payload["expires"], on_expiry="ask_again", **more
        )
        return AwaitingApproval(request)
