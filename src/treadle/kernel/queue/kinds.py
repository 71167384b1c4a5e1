"""Task kinds of extensions, and the properties by which the kernel treats them; an extension registers its kinds when imported."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from treadle.model.names import ADVANCE, CANCEL, FUNCTION, HANDLER, LOCK, RUN_DEADLINE, SCRIPT, UPKEEP, handles
from treadle.model.tasks import Server, Task

EXTENSION_KINDS: dict[str, ExtensionKind] = {}
"""The registered kinds, by name."""
_WORK = frozenset({HANDLER, FUNCTION, SCRIPT})
_REPEATED = frozenset({ADVANCE, CANCEL, RUN_DEADLINE, LOCK}) | UPKEEP


class ExtensionKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task that an extension settles; the workers that play its role are found by the names in their server rows."""

    name: str
    start_with: str
    """The remedy if no live worker plays the role, for people."""
    is_work: bool = False
    """Whether it runs a user's handler, named as the task; a worker of the role needs that handler, and throughput counts it."""
    is_repeated: bool = False
    """Whether it never becomes a dead letter, since nothing else would do its work."""
    has_roles: bool = False
    """Whether its tasks are named ROLE/..., and workers play one role of it each."""

    def serves(self, server: Server, task_name: str) -> bool:
        """Whether the server plays the role for tasks of this kind and name."""
        role = f"{self.name}/{task_name.partition('/')[0]}" if self.has_roles else self.name
        return role in server.handlers and (not self.is_work or handles(server.handlers, task_name))

    def is_role(self, name: str) -> bool:
        """Whether the name in a server's row is a role of this kind."""
        return name == self.name or (self.has_roles and name.startswith(f"{self.name}/"))

    def missing_text(self, task: Task) -> str:
        """The reason of a task without a live worker, for people."""
        handler = f" with the handler {task.name}" if self.is_work else ""
        return f"no live worker plays the role {task.name if self.has_roles else self.name}{handler}"


def register_kinds(kinds: Iterable[ExtensionKind]) -> frozenset[str]:
    """Make the kinds known to the kernel; returns their names."""
    registered = {kind.name: kind for kind in kinds}
    EXTENSION_KINDS.update(registered)
    return frozenset(registered)


def is_work(kind: str) -> bool:
    """Whether tasks of this kind are user work; the engine's own tasks are not."""
    return kind in _WORK or (kind in EXTENSION_KINDS and EXTENSION_KINDS[kind].is_work)


def is_repeated(kind: str) -> bool:
    """Whether tasks of this kind never become dead letters, since nothing else would do their work."""
    return kind in _REPEATED or (kind in EXTENSION_KINDS and EXTENSION_KINDS[kind].is_repeated)
