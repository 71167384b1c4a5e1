"""Example handlers: replace them with yours, or set TREADLE_APP to your own folder."""

from treadle import Engine

engine = Engine()


@engine.handler("greet", retry=3)
async def greet(name: str) -> dict[str, str]:
    return {"text": f"Hello, {name}!"}
