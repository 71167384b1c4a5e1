"""What functions need of the process that executes them, in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import Clock
from treadle.model.ids import Ids
from treadle.workers.call import Executor


@dataclass(slots=True)
class Runtime:
    """The parts of a worker that functions use."""

    store: Store
    committer: Committer
    value_store: ValueStore
    clock: Clock
    ids: Ids
    executor: Executor
    resolve: Callable[[str, int | None], Awaitable[int]]
    """The version of a function that a new run of it takes; raises `FunctionNotFound`."""
    on_finished: Callable[[str], None]
    """Told the id of each run that ended here."""
    namespace: str
    payload_limit: int


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a function's task with this claim, for telemetry."""

    move: str
    error: str | None = None
