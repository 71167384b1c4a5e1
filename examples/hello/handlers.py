"""The handler of the hello workflow."""

from treadle import Engine

engine = Engine()


@engine.handler("hello.Greet")
async def greet(payload):
    """Take the facet's parameters and return its returns."""
    return {"text": f"Hello, {payload['name']}"}
