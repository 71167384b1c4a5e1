"""Dead letters: what failed for good, grouped by what it failed of; retried and discarded by id, by filter, or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypedDict, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import Task, TaskDetail, TaskId
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

BATCH = 500
"""Letters that one call changes at most."""


class LetterFilter(TypedDict, total=False):
    """Conditions that a dead letter must meet."""

    name: Annotated[str | None, Doc("Only this handler", "billing.Charge")]
    task_list: Annotated[str | None, Doc("Only this task list", "default")]
    error_code: Annotated[str | None, Doc("Only this error code", "handler_error")]
    fingerprint: Annotated[str | None, Doc("Only this fingerprint, as shown by groups")]
    older_than: Annotated[float | None, Doc("Only tasks that failed more than this many seconds ago", 7200, unit="seconds")]
    newer_than: Annotated[float | None, Doc("Only tasks that failed within the last seconds", 900, unit="seconds")]


Ids = Annotated[Sequence[str], Doc("These tasks, up to 500, instead of a filter")]
Everything = Annotated[bool, Doc("Yes, all dead letters, instead of a filter")]
DryRun = Annotated[bool, Doc("Only say how many; change nothing")]
AtMost = Annotated[int, Doc("Change so many with this call, up to 500", 500)]
After = Annotated[str | None, Doc("The `next_after` of the call before, with the same filter")]


@dataclass(frozen=True, slots=True)
class Letter(Task):
    """A dead letter."""

    seq: int | None
    """When it failed, among all moves of the store."""
    fingerprint: str | None
    """What it failed of: the same for errors of one cause."""


@dataclass(frozen=True, slots=True)
class LetterPage(ApiRecord):
    """Dead letters, the last to fail first."""

    letters: list[Letter]
    next_before: int | None
    """Pass it as `before` for the next page; null on the last one."""


@dataclass(frozen=True, slots=True)
class LetterDetail(TaskDetail):
    """Everything about one dead letter."""

    seq: int | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class LetterGroup(ApiRecord):
    """Dead letters with one fingerprint, error code and name."""

    fingerprint: str | None
    error_code: str | None
    name: str
    count: int
    of_runs: int
    """How many of them belong to runs, and are retried there."""
    first_at: Instant
    last_at: Instant
    last_id: str
    """The one that failed last."""
    error: Json
    """Its error."""


@dataclass(frozen=True, slots=True)
class LetterGroups(ApiRecord):
    """Groups, the biggest first."""

    groups: list[LetterGroup]


@dataclass(frozen=True, slots=True)
class LettersChanged(ApiRecord):
    """What this call came to; on a dry run, what all calls together would."""

    matched: int
    """Letters that there were when the work began."""
    done: int
    of_runs: int
    """Left alone, as they belong to runs, which are retried themselves."""
    passed_over: int
    """Changed by somebody else meanwhile."""
    dry_run: bool
    next_after: str | None
    """Not all could be done in one call: pass it as `after`, with the same filter; null: that was all."""


class DeadLettersApi(Protocol):
    """Dead letters: tasks that failed for good."""

    @contract.get("/dead-letters", lists=True)
    async def list(
        self,
        *,
        limit: Annotated[int, Doc("At most so many, up to 1000", 50)] = 50,
        before: Annotated[int | None, Doc("The `next_before` of the page before")] = None,
        **which: Unpack[LetterFilter],
    ) -> LetterPage:
        """Dead letters, the last to fail first."""

    @contract.get("/dead-letters/groups", lists=True)
    async def groups(
        self,
        *,
        limit: Annotated[int, Doc("At most so many groups, up to 1000", 50)] = 50,
        **which: Unpack[LetterFilter],
    ) -> LetterGroups:
        """Dead letters grouped by what they failed of, the biggest group first, with the last error of each."""

    @contract.get("/dead-letters/{task_id}", lists=True)
    async def get(self, task_id: TaskId) -> LetterDetail:
        """Everything about one dead letter; a task that is none is not found."""

    @contract.post("/dead-letters/retry", Scope.OPERATE, lists=True)
    async def retry(
        self,
        *,
        ids: Ids = (),
        everything: Everything = False,
        payload: Annotated[dict[str, Json] | None, Doc("A new payload for all of them; null: as it was")] = None,
        dry_run: DryRun = False,
        limit: AtMost = BATCH,
        after: After = None,
        **which: Unpack[LetterFilter],
    ) -> LettersChanged:
        """Make dead letters live again: those of the ids, those that fit the filter, or all.

        By filter, one call changes at most `limit` of the letters that there were when the first call was made; call again
        with `after` until `next_after` is null. Those of runs are left alone: their runs are retried instead.
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
        **which: Unpack[LetterFilter],
    ) -> LettersChanged:
        """Take letters out of the dead letters: they end as canceled, and keep what they failed of. Calls as for `retry`."""
