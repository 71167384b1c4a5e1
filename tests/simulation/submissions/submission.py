"""One submission: what a user wants, how he asks for it until he is answered, and what it must have come to in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from treadle import Engine


@dataclass(slots=True)
class Submission:
    """One submission. `send` may be called again and again, and names the same thing each time."""

    key: str
    kind: str
    """`task`, `run`, `schedule`, `objective`, `watch` or `request`."""
    send: Callable[[Engine], Awaitable[str]]
    expected: Any = None
    """The result, for what has just one."""
    may: tuple[str, ...] = ("completed",)
    """The states in which it may end."""
    effects: tuple[str, ...] = ()
    """The effects that it makes, by their names in the world."""
    jobs: tuple[str, ...] = ()
    id: str | None = None
    """Once it was acknowledged."""
    options: dict[str, Any] = field(default_factory=dict)
    retried: bool = False
    """An operator let it be done again."""
    needs: str = ""
    """The actor that it needs: `remote_workers`, `agents` or `service`."""


def enqueued(key: str, name: str, payload: dict[str, Any], expected: Any, **options: Any) -> Submission:
    """A task of that name."""

    async def send(engine: Engine) -> str:
        return (await engine.enqueue(name, payload, idempotency_key=key, **options)).id

    return Submission(key, "task", send, expected)
