"""The store: what it is, how it is doing, whether its log holds, and how long what has ended is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class LaneDepths(ApiRecord):
    """How much is in a lane."""

    namespace: str
    kind: str
    task_list: str
    name: str
    ready: int
    running: int
    waiting: int
    held: int
    oldest_due_at: Instant | None


@dataclass(frozen=True, slots=True)
class StoreTable(ApiRecord):
    """A table: bytes with its indexes, about how many rows and dead rows it has, and when it was last vacuumed."""

    name: str
    bytes: int
    rows: int | None
    dead_rows: int | None
    vacuumed_at: Instant | None


@dataclass(frozen=True, slots=True)
class StoreFinding(ApiRecord):
    """One thing that was looked at."""

    name: str
    verdict: str
    """`ok`, `warn` or `fail`."""
    found: str
    do: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class StoreHealth(ApiRecord):
    """How a store is doing; null where it has no such thing. Durations are milliseconds."""

    tables: list[StoreTable]
    """The biggest first; none where measuring would take long."""
    overdue_for: int
    versions: dict[str, str]
    settings: dict[str, str]
    bytes: int
    free_bytes: int | None
    wal_bytes: int | None
    oldest_snapshot_for: int | None
    snapshot_by: str | None
    findings: list[StoreFinding]


@dataclass(frozen=True, slots=True)
class StoreInfo(ApiRecord):
    """What a store is, what is in it, and how it is doing."""

    store: str
    """Its URL, without a password."""
    described: dict[str, Json]
    """Its kind, versions and sizes; which there are depends on the kind."""
    finished: dict[str, int]
    """Finished tasks by state, of all namespaces."""
    lanes: list[LaneDepths]
    health: StoreHealth


@dataclass(frozen=True, slots=True)
class VerifyPage(ApiRecord):
    """Histories that were checked against the state tables, and outside jobs' records against their events."""

    holds: bool
    """Whether nothing is wrong with these."""
    checked: int
    problems: list[str]
    next_after: str | None
    """Pass it as `after` to check the next ones; null: that was all."""


@dataclass(frozen=True, slots=True)
class KeepRule(ApiRecord):
    """How long what ends in a list is kept, in milliseconds."""

    task_list: str
    keep_completed_for: int
    """Completed, canceled and ignored ends."""
    keep_failed_for: int


@dataclass(frozen=True, slots=True)
class KeepRules(ApiRecord):
    """How long what has ended is kept, in milliseconds: by default, and where a list has rules of its own."""

    keep_completed_for: int
    keep_failed_for: int
    lists: list[KeepRule]


@dataclass(frozen=True, slots=True)
class PruneStep(ApiRecord):
    """What this call removed; on a dry run, what it would. `freed` are bytes given back to the file system."""

    trees: int
    tasks: int
    runs: int
    steps: int
    moves: int
    lines: int
    blobs: int
    records: int
    outcomes: int
    dedupe_keys: int
    servers: int
    freed: int
    dry_run: bool
    next_after: str | None
    """Not all could be done in one call: pass it as `after`, with the same options; null: that was all."""


@dataclass(frozen=True, slots=True)
class StoreCallTimes(ApiRecord):
    """Calls of one operation of the store; durations are milliseconds."""

    operation: str
    """`claim`, `commit`, `renew` or `wake`."""
    calls: int
    failed: int
    slow: int
    """Those that took 100 ms or longer."""
    mean_for: float
    longest_for: float
    longest_at: Instant | None


@dataclass(frozen=True, slots=True)
class StoreCallsTimed(ApiRecord):
    """How long calls of the store took in the process that answers, the operation with the longest call first."""

    since_at: Instant
    """When it began to measure: with the first question for it."""
    operations: list[StoreCallTimes]


class StoreApi(Protocol):
    """The store, and what keeps it small and safe."""

    @contract.get("/store", Scope.OPERATE)
    async def info(self) -> StoreInfo:
        """What the store is, what is in it, how it is doing, and what is risky about it. May take seconds on a big one."""

    @contract.get("/store/calls", Scope.OPERATE)
    async def calls(self) -> StoreCallsTimed:
        """How long calls of the store take in the process that answers; other processes have numbers of their own."""

    @contract.post("/store/verify", Scope.ADMIN)
    async def verify(
        self,
        *,
        after: Annotated[str | None, Doc("The `next_after` of the call before")] = None,
        limit: Annotated[int, Doc("So many histories, up to 1000", 1000)] = 1000,
    ) -> VerifyPage:
        """Check that the log explains the rows, a page of histories with each call."""

    @contract.get("/store/keep")
    async def keeps(self) -> KeepRules:
        """How long what has ended is kept."""

    @contract.put("/store/keep/{task_list}", Scope.ADMIN)
    async def keep(
        self,
        task_list: Annotated[str, Doc("The task list's name", "default")],
        *,
        completed: Annotated[
            float | None, Doc("Seconds that completed, canceled and ignored ends are kept; null: as by default", 604_800)
        ] = None,
        failed: Annotated[float | None, Doc("Seconds that failed ends are kept; null: as by default", 7_776_000)] = None,
    ) -> KeepRule:
        """Say how long what ends in a list is kept."""

    @contract.post("/store/prune", Scope.ADMIN)
    async def prune(
        self,
        *,
        older_than: Annotated[
            float | None, Doc("By this age in seconds instead of the default rules; lists' own rules still win", 604_800)
        ] = None,
        dry_run: Annotated[bool, Doc("Only say how much; change nothing")] = False,
        after: Annotated[str | None, Doc("The `next_after` of the call before, with the same options")] = None,
    ) -> PruneStep:
        """Remove finished trees that are past their time, a bounded step with each call; nothing of an active tree ever goes."""

    @contract.post("/store/prune/{member_id}", Scope.ADMIN)
    async def prune_tree(self, member_id: Annotated[str, Doc("The id of a task or run of the tree")]) -> PruneStep:
        """Remove the whole tree of a task or run, however young; refused while anything in it is live."""
