"""Send at most six messages a minute, and at most one alarm in ten minutes."""

import asyncio

from treadle import Engine

engine = Engine(program="messages")  # the store in TREADLE_STORE, else sqlite:///treadle.db
engine.declare.limit("messages", rate="6/min", burst=1)


# more than six a minute wait for their turn
@engine.handler("message.Send", limit_key="messages")
async def send(payload):
    print("message:", payload["text"])


@engine.handler("alarm.Send")
async def alarm(payload):
    print("alarm:", payload["about"])


async def raise_alarm(about):
    """Send the alarm, at most once in ten minutes; return whether it is sent."""
    sent = await engine.enqueue(
        "alarm.Send", {"about": about}, idempotency_key=f"alarm-{about}", idempotency_for=600
    )
    return sent.created


async def main():
    async with engine, engine.worker():
        print([await raise_alarm("disk full") for _ in range(3)])  # [True, False, False]
        task = await engine.enqueue("message.Send", {"text": "hello"})
        await engine.result(task)


if __name__ == "__main__":
    asyncio.run(main())
