"""Tools for flows: publish, list, show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from treadle.api.contract import ApiRecord, Doc
from treadle.api.flows import FlowDetail, FlowName, FlowVersion
from treadle.mcp.language import Source, Sources, check, texts
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, After, Limit, page_size
from treadle.model.access import Scope

_VERSIONS = 10


@dataclass(frozen=True, slots=True)
class FlowVersions(ApiRecord):
    """Published flows."""

    flows: list[FlowVersion]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last one."""


@tool()
async def flow_list(
    desk: RequestContext,
    name: Annotated[str | None, Doc("All versions of this flow; null: the newest of each", "shop")] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> FlowVersions:
    """What is published: flows by name, or the versions of one."""
    found = (await desk.api.flows.list(name=name)).flows
    place = [each.name if name is None else str(each.version) for each in found]
    begin = place.index(after) + 1 if after in place else 0
    page = found[begin : begin + page_size(limit)]
    end = begin + len(page)
    return FlowVersions(page, place[end - 1] if page and end < len(found) else None)


@tool()
async def flow_show(
    desk: RequestContext,
    name: FlowName,
    version: Annotated[int | None, Doc("A version of it; null: the newest", 1)] = None,
    with_sources: Annotated[bool, Doc("With the AFL itself")] = True,
) -> FlowDetail:
    """A flow: its workflows with what they take and return, the handlers that it needs, and its sources."""
    found = await desk.api.flows.get(name, version=version)
    return replace(found, versions=found.versions[:_VERSIONS], sources=found.sources if with_sources else [])


@tool(Scope.OPERATE, repeatable=True)
async def flow_publish(
    desk: RequestContext,
    name: Annotated[str, Doc("The name to publish under", "shop")],
    source: Source = None,
    sources: Sources = None,
) -> FlowVersion:
    """Store AFL as the next version of a name, to be started with `run_start`. The same flow twice is one version.

    Runs in flight keep the version that they were started with.
    """
    given = texts(source, sources)
    await check(desk, given)
    return await desk.api.flows.publish(name, given)


TOOLS = (flow_list, flow_show, flow_publish)
