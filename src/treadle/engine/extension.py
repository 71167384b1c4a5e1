"""Extensions: applications on the engine that have task kinds of their own. The goal pipeline is one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from treadle.api.tasks import Why
    from treadle.engine.kernel import Kernel
    from treadle.kernel.store.units import Answer, Finish, Park, Row
    from treadle.model.records import Record
    from treadle.model.tasks import Claim, NewTask, Task
    from treadle.workers.call import Executor
    from treadle.workers.handlers import Handler


EXTENSIONS = {"goals": ("treadle.goals.extension", "Goals")}
"""The extensions of every engine by the attribute of the engine that each is, with their modules and classes."""


def make_extensions() -> dict[str, Extension]:
    """Return new extensions for an engine, by the name of its attribute."""
    return {name: getattr(import_module(module), kind)() for name, (module, kind) in EXTENSIONS.items()}


class Extension(Protocol):
    """Settles the tasks of its kinds, and gives workers the handlers for them."""

    @property
    def kinds(self) -> frozenset[str]:
        """The task kinds of this extension; no other part of the engine settles them."""

    @property
    def lease_for(self) -> int | None:
        """The lease in milliseconds of workers that were started without one; None: the one of the settings."""

    @property
    def poll_every(self) -> float | None:
        """Seconds between two polls of a worker; None: the worker's default."""

    def attach(self, kernel: Kernel) -> None:
        """Use that kernel from now on. The engine calls this when it is created and when it moves to another store."""

    async def explain(self, record: Record) -> Why | None:
        """Return the reason for the state of a record of this extension; None for any other record."""

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the tasks and rows to store in the unit with which an operator ends the task."""

    async def settle(self, task: Task, claim: Claim, decided: Finish | Park) -> Answer:
        """Commit the end of an attempt under its claim, with everything that follows from it."""

    def serve(self, executor: Executor) -> WorkerPart | None:
        """Return the extension's part of one worker; None if this process serves none of the kinds."""


class WorkerPart(Protocol):
    """The part of an extension in one worker."""

    @property
    def names(self) -> Sequence[str]:
        """The names that the worker's row in `servers` lists."""

    def check(self) -> None:
        """Raise if this process lacks something that the part needs. Called before the worker starts."""

    def find(self, kind: str, name: str) -> Handler | None:
        """Return the handler for tasks of that kind and name, if this process serves them."""

    def start_tasks(self) -> Sequence[NewTask]:
        """Return the tasks to store when the worker starts; a repeated start stores none twice."""
