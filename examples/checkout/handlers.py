"""A shop with an in-memory shelf and bank, whose handlers succeed, wait and fail."""

from treadle import Engine, NonRetryable, RetryPolicy

engine = Engine()
SHELF = {"pen": 100, "book": 3}


@engine.handler("shop.Reserve")
async def reserve(payload, ctx):
    """Out of stock is final: no retry can help."""
    for line in payload["lines"]:
        if line["qty"] > SHELF.get(line["sku"], 0):
            raise NonRetryable(f"out of {line['sku']}", "out_of_stock")
    return {"reservation": f"res-{ctx.task_id[-6:]}", "total": sum(line["qty"] * line["price"] for line in payload["lines"])}


@engine.handler("shop.Charge", retry=RetryPolicy.of(3, first=0.2))
async def charge(payload, ctx):
    """A busy bank is worth another attempt, a declined card is not. The task's id is the same in each attempt."""
    if payload["card"].startswith("bad"):
        raise NonRetryable("card declined", "declined")
    if payload["card"].startswith("slow") and ctx.attempt == 1:
        raise ConnectionError("the bank is busy")
    return {"receipt": f"{payload['amount']:.2f} EUR on {payload['card']}, key {ctx.task_id[:8]}"}


@engine.handler("shop.Ship")
def ship(payload):
    """A sync handler: it runs in a thread."""
    return {"parcel": f"{payload['reservation']} to {payload['address']}"}


@engine.handler("shop.Release")
def release(payload):
    """Put the goods back."""
    return {"released": payload["reservation"].startswith("res-")}
