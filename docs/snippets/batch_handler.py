import asyncio
from dataclasses import dataclass

from treadle import Engine

engine = Engine("memory://")
calls = []


@dataclass
class Text:
    text: str
    model: str = "small"


@dataclass
class Vector:
    numbers: list[float]


@engine.handler("embed", batch=100, within=0.2, key="model", retry=3)
async def embed(texts: list[Text]) -> list[Vector | ValueError]:
    calls.append(len(texts))
    return [
        Vector([float(len(text.text))]) if text.text else ValueError("an empty text")
        for text in texts
    ]


async def main():
    async with engine:
        handles = [await engine.enqueue(embed, Text("x" * n)) for n in range(1, 11)]
        async with engine.worker():
            vectors = [await handle.result(timeout=60) for handle in handles]
    assert vectors[2] == Vector([3.0])
    assert calls == [10]


asyncio.run(main())
