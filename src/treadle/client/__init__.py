"""A typed async client for a Treadle server: the contract of `treadle.api`, sent over HTTP.

    async with Client("http://127.0.0.1:8787", token="tdl_...") as client:
        made = await client.tasks.enqueue("greet", {"name": "Ada"})
        print(await client.handle(made.id).result(timeout=30))

Errors are those of `treadle.model.errors`, found by their code.
"""

from treadle.client.client import Client

__all__ = ["Client"]
