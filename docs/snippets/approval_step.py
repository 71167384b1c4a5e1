import asyncio

from treadle import Engine

FLOW = """
namespace shop {
    event facet Refund(customer: String, amount: Double) => (receipt: String)

    workflow Return(customer: String, amount: Double) => (receipt: String, by: String) andThen {
        ok = sys.approval(
            question = "Refund " ++ $.amount ++ " to " ++ $.customer ++ "?",
            context = #{amount: $.amount}, deciders = ["ada", "support-leads"],
            edits = true, expires = 86400,
        )
        refund = Refund(customer = $.customer, amount = ok.context.amount)
        yield Return(receipt = refund.receipt, by = ok.by)
    } catch when {
        case $.error_type == "approval_denied" => {
            yield Return(receipt = "none: " ++ $.error, by = "")
        }
        case _ => { sys.assert(false) }
    }
}
"""
engine = Engine("memory://")


@engine.handler("shop.Refund")
async def refund(payload):
    return {"receipt": f"{payload['amount']} to {payload['customer']}"}


async def main():
    async with engine, engine.worker():
        run = await engine.start(
            [("shop.afl", FLOW)], {"customer": "Grace", "amount": 120.0}, workflow="shop.Return"
        )
        while not (pending := (await engine.approvals.list()).approvals):
            await asyncio.sleep(0.01)
        print(await engine.why(run))
        await engine.approvals.decide(
            pending[0].id, "approve", actor="ada", reason="half of it", edits={"amount": 60}
        )
        assert await run.result() == {"receipt": "60 to Grace", "by": "ada"}


asyncio.run(main())
