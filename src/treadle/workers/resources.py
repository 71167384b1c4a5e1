"""The options of a worker, and the resources and services that it is built from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from treadle.kernel.approvals.service import ProcessDue
from treadle.kernel.core import Around
from treadle.kernel.external.service import ExternalJobs
from treadle.kernel.queue.decide import TAKEOVER_LIMIT, TaskDecision
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Unit, UnitAnswer
from treadle.kernel.telemetry.events import Emit
from treadle.kernel.telemetry.observer import EventEmitter
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput
from treadle.model.ids import Ids
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE
from treadle.model.tasks import Claim, LogLine, Task
from treadle.model.values import PAYLOAD_LIMIT
from treadle.workers.call import Executor
from treadle.workers.context import Isolation
from treadle.workers.effects import EffectKernel
from treadle.workers.functions.runner import FunctionRunner

MAX_CONCURRENCY = 2_000
"""Tasks in progress that a worker without a given concurrency allows at most, unless its settings say otherwise."""

POLL_EVERY = 5.0
"""Seconds after which a worker polls the store even if no signal arrived."""

Settle = Callable[[Task, Claim, TaskDecision], Awaitable[UnitAnswer]]
"""Commits a decided settlement together with its consequences."""

PlainUnit = Callable[[Task, Claim, TaskDecision], Unit | None]
"""Returns the unit of a settlement that has no consequences, or None if `Settle` must handle it."""


class WorkerOptions(msgspec.Struct):
    """Limits and timings of a worker."""

    concurrency: int | None = None
    """Maximum number of tasks in progress in this process; None adapts it to the handlers (`Slots`)."""
    most_concurrency: int = MAX_CONCURRENCY
    """Upper bound of an adapted concurrency."""
    threads: int = 16
    """Maximum number of these in sync handlers."""
    processes: int = 4
    """Maximum number of these in handlers with isolation='process'."""
    task_lists: tuple[str, ...] = (DEFAULT_LIST,)
    lease_for: int = 60_000
    poll_every: float = POLL_EVERY
    takeover_limit: int = TAKEOVER_LIMIT
    result_limit: int = PAYLOAD_LIMIT
    grace: float = 30.0
    """Seconds that running work gets to finish when the worker stops; after that the worker releases it for others."""

    def __post_init__(self) -> None:
        limits = () if self.concurrency is None else (self.concurrency,)
        if min(self.threads, self.processes, *limits) < 1:
            raise InvalidInput("concurrency, threads and processes must be 1 or more.")
        if not self.task_lists:
            raise InvalidInput("A worker serves at least one task list.")


class Resources(msgspec.Struct):
    """The store and the process resources that all parts of a worker use."""

    store: Store
    committer: Committer
    executor: Executor
    clock: Clock
    ids: Ids
    emit: Emit
    telemetry: EventEmitter
    """Receives measurements and spans."""
    owner_id: str
    """Identifies the worker in claims."""
    namespace: str = DEFAULT_NAMESPACE


class Services(msgspec.Struct):
    """The kernel services that an attempt calls; a worker without one of them does not offer its feature."""

    settle: Settle | None = None
    """None commits the settlement alone."""
    plain_unit: PlainUnit | None = None
    open_payload: Callable[[str], Awaitable[str]] | None = None
    """Reads a payload that is stored outside the task's row."""
    functions: FunctionRunner | None = None
    effects: EffectKernel | None = None
    process_due: ProcessDue | None = None
    external_jobs: ExternalJobs | None = None
    on_line: Callable[[LogLine], None] = lambda _: None
    """Receives the log lines of handlers."""
    unpack_baggage: Callable[[str], None] = lambda _: None
    """Sets the context variables that a task has the values of."""
    around: Around = msgspec.field(default_factory=dict)
    """The interceptors of the engine."""


@dataclass(slots=True, eq=False)
class QueueGroup:
    """Queues that share a concurrency limit. Groups of the same isolation also share a pool of threads or processes."""

    limit: int | None
    """None: only the worker's own limit."""
    isolation: Isolation | Literal["batch"]
    running: int = 0
    asked: int = 0
    """Tasks that a claim on its way may bring."""
    queue_ids: list[int] = field(default_factory=list)
    handlers: set[str] = field(default_factory=set)
    scopes: tuple[str, ...] | None = None
    """The scopes of the tasks to claim, of specialists; None: all."""
