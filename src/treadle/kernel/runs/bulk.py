"""Bulk operations on runs: by filter, page by page, newest first; refusals are reported and the rest continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.kernel.runs.reads import RunReads
from treadle.kernel.runs.service import Runs
from treadle.kernel.search.query import Query
from treadle.kernel.search.service import Search, one_of
from treadle.kernel.store.lookups import check_limit
from treadle.model.errors import Contended, IllegalMove, InvalidInput, NotFound, Refused, TreadleError
from treadle.model.runs import Run
from treadle.model.states import RUN, RunState

ACTIONS = ("pause", "resume", "cancel", "retry")


@dataclass(frozen=True, slots=True)
class BulkPage:
    """The result of one page; `next_before` is the cursor of the next one, None at the end."""

    matched: int
    """Number of matching runs before the operation, including this page."""
    done: list[str]
    refused: list[tuple[str, TreadleError]]
    next_before: str | None


class BulkRuns:
    """Bulk operations on the runs of one namespace."""

    def __init__(self, runs: Runs, reads: RunReads, search: Callable[[], Search]) -> None:
        self._runs = runs
        self._reads = reads
        self._search = search

    async def act(
        self,
        action: str,
        *,
        actor: str,
        states: Sequence[str] = (),
        before_id: str | None = None,
        limit: int = 100,
        dry_run: bool = False,
        reason: str | None = None,
        query: tuple[str, list[Query]] | None = None,
        **which: Any,
    ) -> BulkPage:
        """Apply the action to the next `limit` matching runs whose state allows it; filters as for `RunReads.runs_like`.

        With `query` (its text, and the other filters as its conditions) `matched` counts up to 10,000 runs.

        With `dry_run` nothing changes, and `matched` is the number of affected runs.
        """
        if action not in ACTIONS:
            raise InvalidInput(f"Unknown action {action!r}; there are {', '.join(ACTIONS)}.")
        check_limit(limit)
        self._reads.runs_like(states=states)
        possible = [state.value for state in RunState if (RUN.target(state, action) or "") not in ("", state)]
        chosen = [state for state in possible if not states or state in states]
        if not chosen:
            return BulkPage(0, [], [], None)
        page: list[Run] = []
        if query is not None:
            where, more = query[0], [*query[1], *one_of("state", chosen)]
            matched = len(await self._search().find_runs(where, more))
            if not dry_run:
                found = await self._search().list_runs(where, more=more, before_id=before_id, limit=limit)
                page, cursor = found.records, found.cursor
        else:
            matched = sum((await self._reads.count_runs(states=chosen, before_id=before_id, **which)).values())
            if not dry_run:
                page = await self._reads.list_runs(states=chosen, before_id=before_id, limit=limit, **which)
                cursor = page[-1].id if len(page) == limit else None
        if dry_run:
            return BulkPage(matched, [], [], None)
        done: list[str] = []
        refused: list[tuple[str, TreadleError]] = []
        for run in page:
            try:
                await self._act(action, run.id, actor, reason)
                done.append(run.id)
            except (Contended, IllegalMove, NotFound, Refused) as error:
                refused.append((run.id, error))
        return BulkPage(matched, done, refused, cursor)

    async def _act(self, action: str, run_id: str, actor: str, reason: str | None) -> None:
        match action:
            case "pause":
                await self._runs.pause(run_id, actor=actor)
            case "resume":
                await self._runs.resume(run_id, actor=actor)
            case "retry":
                await self._runs.retry(run_id, actor=actor)
            case _:
                await self._runs.cancel(run_id, actor=actor, reason=reason)
