"""Tools for dead letters: permanently failed tasks, by cause; retry or discard them in bulk."""

from __future__ import annotations

from typing import Annotated, Unpack

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.dead_letters import BATCH, AtMost, DeadLetterConditions, DeadLettersChanged, DryRun, Everything, Ids
from treadle.api.dead_letters import After as AfterBatch
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tasks import TaskLine, task_line
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, Limit, error_line, page_size
from treadle.model.access import Scope
from treadle.model.values import Json


@record
class Cause(ApiRecord):
    """Dead letters with one cause."""

    fingerprint: str | None
    error_code: str | None
    name: str
    count: int
    of_runs: int
    """Number that belong to runs, which are retried as a whole."""
    first_at: Instant
    last_at: Instant
    last_id: str
    """Id of the task that failed last."""
    error: str | None


@record
class Causes(ApiRecord):
    """Causes of dead letters, the most frequent first."""

    groups: list[Cause]


@record
class DeadLetters(ApiRecord):
    """Dead letters, latest failure first."""

    letters: list[TaskLine]
    next_before: int | None
    """Pass it as `before` for the next page; null on the last page."""


@tool()
async def dead_letter_groups(context: RequestContext, limit: Limit = PAGE, **which: Unpack[DeadLetterConditions]) -> Causes:
    """Permanently failed tasks grouped by cause, with the latest error of each."""
    found = (await context.api.dead_letters.groups(limit=page_size(limit), **which)).groups
    return Causes([record_of(Cause, each, error=error_line(each.error)) for each in found])


@tool()
async def dead_letter_list(
    context: RequestContext,
    limit: Limit = PAGE,
    before: Annotated[int | None, Doc("`next_before` of the previous page")] = None,
    **which: Unpack[DeadLetterConditions],
) -> DeadLetters:
    """Permanently failed tasks, latest failure first. `task_show` shows the payload and the error of one."""
    page = await context.api.dead_letters.list(limit=page_size(limit), before=before, **which)
    return DeadLetters([task_line(each) for each in page.letters], page.next_before)


@tool(Scope.OPERATE)
async def dead_letter_retry(
    context: RequestContext,
    ids: Ids = (),
    everything: Everything = False,
    payload: Annotated[dict[str, Json] | None, Doc("A new payload for all of them; null: keep theirs")] = None,
    dry_run: DryRun = False,
    limit: AtMost = BATCH,
    after: AfterBatch = None,
    **which: Unpack[DeadLetterConditions],
) -> DeadLettersChanged:
    """Requeue dead letters by `ids`, by conditions, or all; those of runs are retried with their run.

    Repeat with `after` until `next_after` is null.
    """
    return await context.api.dead_letters.retry(
        ids=ids, everything=everything, payload=payload, dry_run=dry_run, limit=limit, after=after, **which
    )


@tool(Scope.OPERATE, ends=True, repeatable=True)
async def dead_letter_discard(
    context: RequestContext,
    ids: Ids = (),
    everything: Everything = False,
    dry_run: Annotated[bool, Doc("Return only the counts; change nothing")] = True,
    limit: AtMost = BATCH,
    after: AfterBatch = None,
    **which: Unpack[DeadLetterConditions],
) -> DeadLettersChanged:
    """Discard dead letters: they become canceled and keep their error. Only counts them, unless `dry_run` is false."""
    return await context.api.dead_letters.discard(
        ids=ids, everything=everything, dry_run=dry_run, limit=limit, after=after, **which
    )


TOOLS = (dead_letter_groups, dead_letter_list, dead_letter_retry, dead_letter_discard)
