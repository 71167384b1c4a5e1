"""The inbox of approvals, and the page of one."""

from __future__ import annotations

from tests.web.conftest import Visit

from treadle.model.approvals import ApprovalRequest
from treadle.model.outcomes import AwaitingApproval


async def asked(visit: Visit, count: int = 1, **options: object) -> list[str]:
    """Tasks that wait for a person; the approvals' ids, oldest first."""

    @visit.engine.handler("pay.Out")
    async def pay(payload: dict[str, int], ctx: object) -> object:
        decision = ctx.approval_decision  # type: ignore[attr-defined]
        if decision is None:
            return AwaitingApproval(ApprovalRequest.of(f"Pay {payload['n']}?", context={"amount": payload["n"]}, **options))  # type: ignore[arg-type]
        return {"paid": decision["context"]["amount"]}

    async with visit.engine.worker():
        for n in range(count):
            await visit.engine.enqueue("pay.Out", {"n": n})
        while len(found := (await visit.engine.approvals.list()).approvals) < count:
            await visit.engine.kernel.clock.sleep(0.01)
    return [each.id for each in found][::-1]


async def test_pending_approvals_are_listed_and_decided(visit: Visit):
    (approval_id,) = await asked(visit)
    assert f"/approvals/{approval_id}" in await visit.page("/approvals")
    assert "is approved now" in await visit.do(f"/approvals/{approval_id}", decision="approve", reason="fine")
    assert f"/approvals/{approval_id}" not in await visit.page("/approvals")
    page = await visit.page(f"/approvals/{approval_id}")
    assert "fine" in page
    assert "local" in page


async def test_several_approvals_are_decided_together(visit: Visit):
    ids = await asked(visit, 3)
    answer = await visit.browser.post("/approvals", data={"id": ids[:2], "decision": "deny"}, follow_redirects=True)
    assert "2 decided." in answer.text
    assert [(await visit.engine.approvals.get(each)).state for each in ids] == ["denied", "denied", "pending"]
    assert "Select at least one" in await visit.do("/approvals", decision="deny")


async def test_the_context_is_edited_only_where_that_is_allowed(visit: Visit):
    (approval_id,) = await asked(visit, edits=True)
    assert 'name="edits"' in await visit.page(f"/approvals/{approval_id}")
    await visit.do(f"/approvals/{approval_id}", decision="approve", edits='{"amount": 7}')
    assert (await visit.engine.approvals.get(approval_id)).context == {"amount": 7}


async def test_an_approval_is_decided_on_the_run_page_by_its_deciders(visit: Visit):
    @visit.engine.function("refund")
    async def refund(payload: dict[str, int], ctx: object) -> object:
        options = {"deciders": ["ann", "finance"], "context": {"amount": 5}, "edits": True}
        return (await ctx.approval("Refund it?", **options))["context"]  # type: ignore[attr-defined]

    run = await visit.engine.start_function("refund", {})
    async with visit.engine.worker():
        while not (found := (await visit.engine.approvals.list()).approvals):
            await visit.engine.kernel.clock.sleep(0.01)
        page = f"/runs/{run.id}"
        shown = await visit.page(page)
        assert "May be decided by ann, finance. You (local) may not." in shown
        assert f'action="/approvals/{found[0].id}"' not in shown
        ann = await visit.engine.kernel.tokens.create("ann", ["approve", "read"])
        async with visit.anew() as other:
            other.browser.headers["Authorization"] = f"Bearer {ann.secret}"
            assert f'action="/approvals/{found[0].id}"' in await other.page(page)
            done = await other.do(f"/approvals/{found[0].id}", decision="approve", back=page, edits='{"amount": 4}')
            assert "is approved now" in done
            assert "refund" in done.partition("<h1")[2][:40]  # back on the page of the run
        assert await visit.engine.run_result(run.id) == {"amount": 4}
