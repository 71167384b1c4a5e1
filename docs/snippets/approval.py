import asyncio

from treadle import ApprovalRequest, AwaitingApproval, Engine

engine = Engine("memory://")


@engine.handler("shop.Refund")
async def refund(payload, ctx):
    if ctx.approval_decision is None:
        return AwaitingApproval(
            ApprovalRequest.of(
                f"Refund {payload['amount']} to {payload['customer']}?",
                context=payload,
                deciders=["ada", "support-leads"],
                edits=True,
                expires=86_400,
                remind_every=3_600,
            )
        )
    approved = ctx.approval_decision["context"]  # including edits
    return {"refunded": approved["amount"], "approved_by": ctx.approval_decision["by"]}


async def main():
    async with engine, engine.worker():
        task = await engine.enqueue("shop.Refund", {"customer": "Grace", "amount": 120})
        while not (pending := (await engine.approvals.list()).approvals):
            await asyncio.sleep(0.01)
        print(await engine.why(task))
        await engine.approvals.decide(
            pending[0].id, "approve", actor="ada", reason="half of it", edits={"amount": 60}
        )
        assert await engine.result(task) == {"refunded": 60, "approved_by": "ada"}


asyncio.run(main())
