"""A purchase that waits for a person, for a timer and for a signal."""

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///treadle.db")


@engine.function("purchase")
async def purchase(item: str, price: int, ctx: FunctionContext) -> dict[str, str]:
    decision = await ctx.approval(
        f"Buy {item} for {price}?", context={"item": item, "price": price}
    )
    await ctx.sleep(30)  # time to change your mind; could be a month
    delivery = await ctx.wait_for("delivered")
    return {"item": item, "approved_by": decision["by"], "received_by": delivery["by"]}
