"""Admission of tasks with several limit keys: all of the keys or none. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple


class Waiting(NamedTuple):
    """A task that waits to be admitted."""

    queue_id: int
    id: str
    namespace: str
    key: str
    """The key that it waits for."""
    joined: str | None
    """All its keys, one per line, if it has several."""
    priority: int = 0
    due_at: int = 0

    @property
    def keys(self) -> list[str]:
        """All its keys."""
        return [self.key] if self.joined is None else self.joined.split("\n")


def admission(waiting: Iterable[Waiting], rooms: dict[tuple[str, str], float]) -> tuple[list[Waiting], list[tuple[str, str]]]:
    """Return the tasks to admit, and the others that must wait for another key than now (id, key); takes their rooms.

    A task waits for a key without room, so that the tasks of a full key do not stand before those of others.
    """
    admitted: list[Waiting] = []
    parked: list[tuple[str, str]] = []
    for task in sorted(waiting, key=attrgetter("priority", "due_at", "id")):
        full = [key for key in task.keys if rooms[task.namespace, key] < 1]
        if not full:
            admitted.append(task)
            for key in task.keys:
                rooms[task.namespace, key] -= 1
        elif task.key not in full:
            parked.append((task.id, full[0]))
    return admitted, parked
