"""The handler of the hello workflow."""

from treadle import Engine

engine = Engine()


@engine.handler("hello.Greet")
async def greet(payload):
    """Gets the facet's parameters, returns its returns."""
    return {"text": f"Hello, {payload['name']}"}
