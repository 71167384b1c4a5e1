"""The store: description, health, verification of the log, and retention."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import TaskCounts
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.clock import span
from treadle.model.values import Json


class QueueDepths(TaskCounts, frozen=True):
    """Number of tasks of one kind and name in a task list."""

    namespace: str
    kind: str
    task_list: str
    name: str


class StoreTable(ApiRecord, frozen=True):
    """A table: size in bytes with its indexes, approximate live and dead rows, and the last vacuum."""

    name: str
    bytes: int
    rows: int | None
    dead_rows: int | None
    vacuumed_at: Instant | None


class StoreFinding(ApiRecord, frozen=True):
    """One health check."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    do: str = ""
    """The recommended action."""


class StoreHealth(ApiRecord, frozen=True):
    """Health of a store; null for values that the store does not have. Durations are milliseconds."""

    tables: list[StoreTable]
    """Largest first; empty if measuring would be slow."""
    overdue_for: int
    versions: dict[str, str]
    settings: dict[str, str]
    bytes: int
    free_bytes: int | None
    wal_bytes: int | None
    oldest_snapshot_for: int | None
    snapshot_by: str | None
    findings: list[StoreFinding]


class StoreInfo(ApiRecord, frozen=True):
    """Description, content and health of a store."""

    store: str
    """Its URL, without a password."""
    described: dict[str, Json]
    """Kind, versions and sizes; the keys depend on the kind."""
    finished: dict[str, int]
    """Finished tasks by state, in all namespaces."""
    finished_exact: bool
    """False: the numbers are estimates, because there are more than a million finished tasks."""
    queues: list[QueueDepths]
    health: StoreHealth


class VerifyPage(ApiRecord, frozen=True):
    """Histories checked against the state tables, external jobs' records against their events, and stored documents."""

    holds: bool
    """Whether they are all consistent."""
    checked: int
    problems: list[str]
    next_after: str | None
    """Pass it as `after` to check the next page; null: finished."""


class RetentionRule(ApiRecord, frozen=True):
    """Retention of finished work in a list, in milliseconds."""

    task_list: str
    keep_completed_for: int
    """Completed, canceled and ignored work."""
    keep_failed_for: int


class RetentionRules(ApiRecord, frozen=True):
    """Retention of finished work, in milliseconds: the default, and the rules of individual lists."""

    keep_completed_for: int
    keep_failed_for: int
    lists: list[RetentionRule]


class PruneStep(ApiRecord, frozen=True):
    """The removed rows; for a dry run, those that would be removed. `freed` is the number of bytes returned to the file system."""

    trees: int
    tasks: int
    runs: int
    steps: int
    transitions: int
    lines: int
    blobs: int
    records: int
    outcomes: int
    chunks: int
    """Of streams."""
    dedupe_keys: int
    servers: int
    freed: int
    dry_run: bool
    next_after: str | None
    """Pass it as `after` with the same options to continue; null: nothing is left."""


class StoreCallTimes(ApiRecord, frozen=True):
    """Calls of one store operation; durations are milliseconds."""

    operation: str
    """`claim`, `commit`, `renew` or `wake`."""
    calls: int
    failed: int
    slow: int
    """Calls that took 100 ms or longer."""
    mean_for: float
    longest_for: float
    longest_at: Instant | None


class StoreCallReport(ApiRecord, frozen=True):
    """Duration of store calls in the responding process, the operation with the longest call first."""

    since_at: Instant
    """Start of the measurement: the first request for it."""
    operations: list[StoreCallTimes]


View(
    RetentionRule,
    changed=lambda rule: (
        f"{rule.task_list}: completed work is kept for {span(rule.keep_completed_for)}, "
        f"failed work for {span(rule.keep_failed_for)}"
    ),
)


QUEUE = View(
    QueueDepths,
    columns=("name", Column("list", "task_list"), "ready", "running", "waiting", "blocked", Column("oldest due", "oldest_due_at")),
)
TABLE = View(
    StoreTable,
    columns=(
        Column("table", "name"),
        Column("KiB", lambda table: table.bytes // 1024),
        Column("rows, about", "rows"),
        Column("dead rows, about", "dead_rows"),
        Column("vacuumed", lambda table: None if table.rows is None else table.vacuumed_at, "instant"),
    ),
)
FINDING = View(StoreFinding, columns=(Column("verdict", kind="state"), Column("check", "name"), "found", Column("remedy", "do")))


class StoreApi(Protocol):
    """The store, its retention and its verification."""

    @contract.get("/store", Scope.OPERATE)
    async def info(self) -> StoreInfo:
        """Description, content, health and risks of the store. Can take seconds for a large store."""

    @contract.get("/store/calls", Scope.OPERATE)
    async def calls(self) -> StoreCallReport:
        """Duration of store calls in the responding process; other processes have their own measurements."""

    @contract.post("/store/verify", Scope.ADMIN)
    async def verify(
        self,
        *,
        after: Annotated[str | None, Doc("`next_after` of the previous call")] = None,
        limit: Annotated[int, Doc("Histories per call, up to 1000", 1000)] = 1000,
    ) -> VerifyPage:
        """Check that the log explains the rows, and that every stored document can be read, one page per call."""

    @contract.get("/store/keep")
    async def keeps(self) -> RetentionRules:
        """Retention of finished work."""

    @contract.put("/store/keep/{task_list}", Scope.ADMIN)
    async def keep(
        self,
        task_list: Annotated[str, Doc("The task list's name", "default")],
        *,
        completed: Annotated[
            float | None,
            Doc("Retention of completed, canceled and ignored work in seconds; null: the default", 604_800, unit="seconds"),
        ] = None,
        failed: Annotated[
            float | None, Doc("Retention of failed work in seconds; null: the default", 7_776_000, unit="seconds")
        ] = None,
    ) -> RetentionRule:
        """Set the retention of a list."""

    @contract.post("/store/prune", Scope.ADMIN)
    async def prune(
        self,
        *,
        older_than: Annotated[
            float | None, Doc("Age in seconds instead of the default rules; rules of lists take precedence", 604_800)
        ] = None,
        dry_run: Annotated[bool, Doc("Return only the counts; change nothing")] = False,
        after: Annotated[str | None, Doc("`next_after` of the previous call with the same options")] = None,
    ) -> PruneStep:
        """Remove finished trees past their retention, one bounded step per call; active trees are never touched."""

    @contract.post("/store/prune/{member_id}", Scope.ADMIN)
    async def prune_tree(self, member_id: Annotated[str, Doc("Id of a task or run of the tree")]) -> PruneStep:
        """Remove the whole tree of a task or run, regardless of its age; refused while any part of it is live."""
