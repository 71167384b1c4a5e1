"""What can be read under `afl://`: runs (runners), steps, logs, flows and their sources, servers, tasks, handlers, the language."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.api.contract import ApiRecord
from treadle.api.handlers import Handler
from treadle.api.servers import ServerList
from treadle.api.steps import Step
from treadle.api.system import Status
from treadle.mcp.brief import BRIEF
from treadle.mcp.flows import flow_list, flow_show
from treadle.mcp.handlers import listed
from treadle.mcp.request_context import RequestContext
from treadle.mcp.resource import MARKDOWN, TEXT, resource
from treadle.mcp.runs import run_list, run_logs, run_show
from treadle.mcp.tasks import task_list, task_show
from treadle.mcp.truncate import PAGE_LIMIT, page_size, shown
from treadle.model.errors import InvalidInput
from treadle.model.values import Json

_PAGE = 50


@dataclass(frozen=True, slots=True)
class StepRecord(ApiRecord):
    """A step as agents know it."""

    id: str
    workflow_id: str
    """The run's id."""
    object_type: str
    state: str
    """As the language names it."""
    statement_id: str
    container_id: str | None
    """What it stands below."""
    block_id: str | None
    """The same, of a step: the block that it is a statement of."""
    facet_name: str | None
    params: Json
    returns: Json
    path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class HandlerPage(ApiRecord):
    """Handler registrations."""

    handlers: list[Handler]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class StepRecords(ApiRecord):
    """Steps of a run, in the order of the program."""

    steps: list[StepRecord]
    next_after: str | None


def _number(text: str | None, default: int | None = None) -> int | None:
    if text is None:
        return default
    if not text.isdigit():
        raise InvalidInput(f"{text!r} is no number.")
    return int(text)


def _limit(text: str | None) -> int:
    return page_size(_number(text, _PAGE) or 0)


def _record(run_id: str, step: Step) -> StepRecord:
    return StepRecord(
        step.id,
        run_id,
        step.kind,
        step.language_state,
        step.statement_id,
        step.parent_id,
        step.parent_id if step.is_step else None,
        step.facet,
        shown(step.params),
        shown(step.returns),
        step.path,
        None if step.error is None else step.error.message,
    )


@resource("afl://runners{?state,before,limit}", "runners")
async def runners(desk: RequestContext, state: str | None = None, before: str | None = None, limit: str | None = None) -> ApiRecord:
    """Runs, newest first; `next_before` of a page is the `before` of the next."""
    found = await run_list.body(desk, [state] if state else (), limit=_limit(limit), before=before)
    return found


@resource("afl://runners/{runner_id}", "runner")
async def runner(desk: RequestContext, runner_id: str) -> ApiRecord:
    """One run: inputs, outputs, error, and what it waits for."""
    found = await run_show.body(desk, runner_id)
    return found


@resource("afl://runners/{runner_id}/steps{?state,after,limit}", "runner steps")
async def runner_steps(
    desk: RequestContext, runner_id: str, state: str | None = None, after: str | None = None, limit: str | None = None
) -> ApiRecord:
    """Steps and blocks of a run with their values; `next_after` of a page is the `after` of the next."""
    page = await desk.api.steps.list(runner_id, state=[state] if state else (), after=after, limit=_limit(limit))
    return StepRecords([_record(page.run_id, step) for step in page.steps], page.next_after)


@resource("afl://runners/{runner_id}/logs{?before,after,limit}", "runner logs")
async def runner_logs(
    desk: RequestContext, runner_id: str, before: str | None = None, after: str | None = None, limit: str | None = None
) -> ApiRecord:
    """The last lines about a run, or those before or after a number."""
    found = await run_logs.body(desk, runner_id, limit=_limit(limit), before=_number(before), after=_number(after))
    return found


@resource("afl://steps/{step_id}", "step")
async def step(desk: RequestContext, step_id: str) -> ApiRecord:
    """One step."""
    found = await desk.api.steps.find(step_id)
    return _record(found.run_id, await desk.api.steps.get(found.run_id, found.step_id))


@resource("afl://flows{?after,limit}", "flows")
async def flows(desk: RequestContext, after: str | None = None, limit: str | None = None) -> ApiRecord:
    """The newest version of each published flow."""
    found = await flow_list.body(desk, limit=_limit(limit), after=after)
    return found


@resource("afl://flows/{flow_id}{?version}", "flow")
async def flow(desk: RequestContext, flow_id: str, version: str | None = None) -> ApiRecord:
    """A flow by name or digest: its workflows with what they take and return, and the handlers that it needs."""
    found = await flow_show.body(desk, flow_id, _number(version), with_sources=False)
    return found


@resource("afl://flows/{flow_id}/source{?version}", "flow source", TEXT)
async def flow_source(desk: RequestContext, flow_id: str, version: str | None = None) -> str:
    """The AFL of a flow; several sources one after another, each after a line with its name."""
    sources = (await desk.api.flows.get(flow_id, version=_number(version))).sources
    if len(sources) == 1:
        return sources[0].text
    return "\n".join(f"// --- {each.name} ---\n{each.text}" for each in sources)


@resource("afl://servers", "servers")
async def servers(desk: RequestContext) -> ApiRecord:
    """The processes that host workers, newest first, at most 100."""
    return ServerList((await desk.api.servers.list()).servers[:PAGE_LIMIT])


@resource("afl://tasks{?state,before,limit}", "tasks")
async def tasks(desk: RequestContext, state: str | None = None, before: str | None = None, limit: str | None = None) -> ApiRecord:
    """Tasks, newest first; `next_before` of a page is the `before` of the next."""
    found = await task_list.body(desk, [state] if state else (), limit=_limit(limit), before=before)
    return found


@resource("afl://tasks/{task_id}", "task")
async def task(desk: RequestContext, task_id: str) -> ApiRecord:
    """One task: payload, result, error, what happened to it, and why it is where it is."""
    found = await task_show.body(desk, task_id)
    return found


@resource("afl://handlers{?after,limit}", "handlers")
async def handlers(desk: RequestContext, after: str | None = None, limit: str | None = None) -> ApiRecord:
    """Handler registrations by name; `next_after` of a page is the `after` of the next."""
    page, next_after = await listed(desk, _limit(limit), after)
    return HandlerPage(page, next_after)


@resource("afl://handlers/{facet_name}", "handler")
async def handler(desk: RequestContext, facet_name: str) -> ApiRecord:
    """The handler registration of a facet, by its qualified name."""
    return await desk.api.handlers.get(facet_name)


@resource("afl://status", "status")
async def status(desk: RequestContext) -> ApiRecord:
    """How the system is: whether something is wrong, and what there is to do."""
    found: Status = await desk.api.system.status()
    return found


@resource("afl://language", "language", MARKDOWN)
async def language(desk: RequestContext) -> str:
    """AFL in brief, with examples."""
    return BRIEF


RESOURCES = (
    runners,
    runner,
    runner_steps,
    runner_logs,
    step,
    flows,
    flow,
    flow_source,
    servers,
    tasks,
    task,
    handlers,
    handler,
    status,
    language,
)
