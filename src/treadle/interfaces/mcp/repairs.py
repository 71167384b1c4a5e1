"""Tools that repeat runs, and maintain the store."""

from __future__ import annotations

from typing import Annotated

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.external_jobs import ExternalJobsRebuilt
from treadle.api.runs import RunId, RunStarted, StepName
from treadle.api.store import PruneStep, RetentionRule, VerifyPage
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import After
from treadle.model.access import Scope
from treadle.model.values import Json

Overriding = Annotated[dict[str, Json] | None, Doc("Override inputs of the old run")]


@record
class NewRun(ApiRecord):
    """A new run."""

    run_id: str
    workflow: str
    state: str
    missing_handlers: list[str]
    """Needed handlers that no live worker of its task list has: the run will wait for them."""


def new_run(run: RunStarted) -> NewRun:
    """The summary of a new run."""
    return NewRun(run.id, run.workflow, run.state, run.missing_handlers)


@tool(Scope.OPERATE)
async def run_rerun(context: RequestContext, run_id: RunId, inputs: Overriding = None) -> NewRun:
    """Start the same workflow of the same flow as a new run."""
    return new_run(await context.api.runs.rerun(run_id, inputs=inputs))


@tool(Scope.OPERATE)
async def run_fork(context: RequestContext, run_id: RunId, step: StepName, inputs: Overriding = None) -> NewRun:
    """Start a new run that repeats a step and everything after it, and keeps the results that do not depend on it."""
    return new_run(await context.api.runs.fork(run_id, step, inputs=inputs))


@tool(Scope.ADMIN, repeatable=True)
async def external_job_rebuild(
    context: RequestContext, before: Annotated[str | None, Doc("`next_before` of the previous call")] = None
) -> ExternalJobsRebuilt:
    """Rebuild records of external jobs from their events, one page per call."""
    return await context.api.external_jobs.rebuild(before=before)


@tool(Scope.ADMIN, changes=False)
async def store_verify(context: RequestContext, after: After = None) -> VerifyPage:
    """Check that the log explains the rows, and that every stored body can be read, one page per call."""
    return await context.api.store.verify(after=after)


@tool(Scope.ADMIN, ends=True, repeatable=True)
async def store_keep(
    context: RequestContext,
    task_list: Annotated[str, Doc("The task list's name")],
    completed: Annotated[float | None, Doc("Seconds for completed, canceled and ignored work; null: the default")] = None,
    failed: Annotated[float | None, Doc("Seconds for failed work; null: the default")] = None,
) -> RetentionRule:
    """Set how long finished work of a list is kept."""
    return await context.api.store.keep(task_list, completed=completed, failed=failed)


@tool(Scope.ADMIN, ends=True)
async def store_prune(
    context: RequestContext,
    older_than: Annotated[float | None, Doc("Age in seconds instead of the default rules")] = None,
    dry_run: Annotated[bool, Doc("Return only the counts; change nothing")] = True,
    after: After = None,
) -> PruneStep:
    """Remove finished work past its retention, one step per call; only counts it, unless `dry_run` is false."""
    return await context.api.store.prune(older_than=older_than, dry_run=dry_run, after=after)


TOOLS = (run_rerun, run_fork, external_job_rebuild, store_verify, store_keep, store_prune)
