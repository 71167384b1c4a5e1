from treadle import BlockingFunctionContext, Engine

engine = Engine("memory://")


def charge(order_id: int) -> str:
    return f"r-{order_id}"


def pack(sku: str) -> str:
    return f"packed {sku}"


@engine.function
def order(number: int, skus: list[str], ctx: BlockingFunctionContext) -> dict[str, object]:
    receipt = ctx.step(charge, number, retry=3)
    packed = ctx.gather(*(lambda sku=sku: ctx.step(pack, sku) for sku in skus))
    ctx.sleep(0.1)  # or a month: no worker and no thread is occupied
    winner = ctx.first(
        paid=lambda: ctx.wait_for("paid"),
        late=lambda: ctx.sleep(86_400),
    )
    return {"receipt": receipt, "packed": packed, "paid": winner.name == "paid"}


with engine.blocking() as app:
    app.start_worker()
    run = app.start(order, 7, ["tea", "cup"])
    run.signal("paid")
    print(run.result())  # {'receipt': 'r-7', 'packed': [...], 'paid': True}
