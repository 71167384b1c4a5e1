"""Dead letters: permanently failed tasks, grouped by cause; retry or discard them by id, by filter, or all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol, TypedDict, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import TASK_BRIEF, Task, TaskDetail, TaskId
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

BATCH = 500
"""Maximum number of dead letters that one call changes."""


class DeadLetterConditions(TypedDict, total=False):
    """Conditions that a dead letter must meet."""

    name: Annotated[str | None, Doc("Only this handler", "billing.Charge")]
    task_list: Annotated[str | None, Doc("Only this task list", "default")]
    error_code: Annotated[str | None, Doc("Only this error code", "handler_error")]
    fingerprint: Annotated[str | None, Doc("Only this fingerprint, as shown by groups")]
    older_than: Annotated[float | None, Doc("Only tasks that failed more than this many seconds ago", 7200, unit="seconds")]
    newer_than: Annotated[float | None, Doc("Only tasks that failed within the last seconds", 900, unit="seconds")]


Ids = Annotated[Sequence[str], Doc("Ids of tasks, up to 500, instead of a filter")]
Everything = Annotated[bool, Doc("All dead letters, instead of a filter")]
DryRun = Annotated[bool, Doc("Return only the counts; change nothing")]
AtMost = Annotated[int, Doc("Maximum number to change in this call, up to 500", 500)]
After = Annotated[str | None, Doc("`next_after` of the previous call with the same filter")]


class DeadLetter(Task, frozen=True, kw_only=True):
    """A dead letter."""

    seq: int | None
    """Position of the failure among all state changes in the store."""
    fingerprint: str | None
    """Identifies the cause: equal for errors with the same cause."""


class DeadLetterPage(ApiRecord, frozen=True):
    """Dead letters, latest failure first."""

    letters: list[DeadLetter]
    next_before: int | None
    """Pass it as `before` for the next page; null on the last page."""


class DeadLetterDetail(TaskDetail, frozen=True, kw_only=True):
    """Everything about one dead letter."""

    seq: int | None
    fingerprint: str | None


class DeadLetterGroup(ApiRecord, frozen=True):
    """Dead letters with one fingerprint, error code and name."""

    fingerprint: str | None
    error_code: str | None
    name: str
    count: int
    of_runs: int
    """Number that belong to runs, which are retried as a whole."""
    first_at: Instant
    last_at: Instant
    last_id: str
    """The latest failure."""
    since_release: str | None
    """The release of the application that the first of them ran, as far as its worker is known."""
    error: Json
    """Its error."""


class DeadLetterGroups(ApiRecord, frozen=True):
    """Groups, largest first."""

    groups: list[DeadLetterGroup]


class DeadLettersChanged(ApiRecord, frozen=True):
    """The result of this call; for a dry run, of all calls together."""

    matched: int
    """Dead letters when the first call was made."""
    done: int
    of_runs: int
    """Of those done, the number that belong to runs, which were retried as a whole."""
    passed_over: int
    """Skipped: changed by another caller meanwhile, or their run cannot be retried, or not with another payload."""
    dry_run: bool
    next_after: str | None
    """Pass it as `after` with the same filter to continue; null: nothing is left."""


_MESSAGE = Column("error", "error.message", limit=60)
LETTER = View(
    DeadLetter,
    columns=(
        "id",
        Column("name", link="/tasks/{id}"),
        Column("about", spare=True, limit=40),
        Column("code", "error_code"),
        "?fingerprint",
        "?attempt",
        Column("failed", "finished_at", spare=True),
        _MESSAGE,
    ),
    brief=TASK_BRIEF,
    empty="No dead letters.",
)
GROUP = View(
    DeadLetterGroup,
    title="{name}",
    columns=(
        "fingerprint",
        "name",
        Column("code", "error_code", spare=True),
        "count",
        Column("first", "first_at", spare=True),
        "last_at",
        Column("since", "since_release", spare=True),
        Column("last error", "error.message", limit=60),
    ),
    facts=(
        "fingerprint",
        Column("code", "error_code"),
        Column("count", lambda group: f"{group.count}" + (f", {group.of_runs} of them of runs" if group.of_runs else "")),
        "first_at",
        "last_at",
        Column("last task", "last_id"),
        "since_release",
        "error",
        Column("traceback", "error.traceback"),
    ),
    brief=("fingerprint", "error_code", "name", "count", "of_runs", "first_at", "last_at", "last_id", "since_release", "error"),
    empty="No dead letters.",
)


class DeadLettersApi(Protocol):
    """Dead letters: permanently failed tasks."""

    @contract.get("/dead-letters", lists=True)
    async def list(
        self,
        *,
        limit: Annotated[int, Doc("Page size, up to 1000", 50)] = 50,
        before: Annotated[int | None, Doc("`next_before` of the previous page")] = None,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLetterPage:
        """Dead letters, latest failure first."""

    @contract.get("/dead-letters/groups", lists=True)
    async def groups(
        self,
        *,
        limit: Annotated[int, Doc("Maximum number of groups, up to 1000", 50)] = 50,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLetterGroups:
        """Dead letters grouped by cause, largest group first, with the latest error of each."""

    @contract.get("/dead-letters/{task_id}", lists=True)
    async def get(self, task_id: TaskId) -> DeadLetterDetail:
        """One dead letter; a task that is not a dead letter is not found."""

    @contract.post("/dead-letters/retry", Scope.OPERATE, lists=True)
    async def retry(
        self,
        *,
        ids: Ids = (),
        everything: Everything = False,
        payload: Annotated[dict[str, Json] | None, Doc("A new payload for all of them; null: keep theirs")] = None,
        dry_run: DryRun = False,
        limit: AtMost = BATCH,
        after: After = None,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLettersChanged:
        """Requeue dead letters by id, by filter, or all.

        With a filter, one call changes at most `limit` of the dead letters that existed when the first call was made; repeat with
        `after` until `next_after` is null. For dead letters that belong to runs, everything that failed in the run is retried.
        """

    @contract.post("/dead-letters/discard", Scope.OPERATE, lists=True)
    async def discard(
        self,
        *,
        ids: Ids = (),
        everything: Everything = False,
        dry_run: DryRun = False,
        limit: AtMost = BATCH,
        after: After = None,
        **which: Unpack[DeadLetterConditions],
    ) -> DeadLettersChanged:
        """Discard dead letters: they become canceled and keep their error. Parameters as for `retry`."""
