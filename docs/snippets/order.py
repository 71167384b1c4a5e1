from treadle import Engine

engine = Engine()


@engine.handler("orders.Pack", retry=2)
def pack(payload):
    return {"box": f"[{payload['item']}]"}


@engine.handler("orders.Send")
async def send(payload):
    return {"parcel": "+".join(payload["boxes"])}
