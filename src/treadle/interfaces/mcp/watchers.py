"""Tools for watchers: work started by changes of files or URLs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Unpack

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.options import WatcherChanges, WatcherOptions
from treadle.api.watchers import SeenPage, Watcher, WatcherName
from treadle.api.wire import Instant, record_of
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, After, Before, Limit, error_line, page_size
from treadle.model.access import Scope


@record
class WatcherLine(ApiRecord):
    """Summary of a watcher."""

    name: str
    state: Literal["active", "paused", "removed", "unreadable"]
    source: str
    """The kind and the path or URL."""
    target: str
    """The kind and the name of the work that it starts."""
    items: int
    """Number of items in the last scan."""
    fired: int
    error: str | None
    """Why it cannot scan all or part of the source, or start the work; it is retried."""
    error_at: Instant | None


@record
class WatcherLines(ApiRecord):
    """Watchers, newest first."""

    watchers: list[WatcherLine]
    next_before: str | None
    """Pass it as `before` for the next page; null on the last page."""


def watcher_line(each: Watcher) -> WatcherLine:
    """The summary of a watcher."""
    return record_of(
        WatcherLine,
        each,
        source=f"{each.source.kind} {each.source.place}",
        target=f"{each.target.kind} {each.target.name}",
        error=error_line(each.error),
    )


@tool()
async def watcher_list(
    context: RequestContext,
    every: Annotated[bool, Doc("Include ended ones")] = False,
    limit: Limit = PAGE,
    before: Before = None,
) -> WatcherLines:
    """Watchers, newest first."""
    page = await context.api.watchers.list(every=every, limit=page_size(limit), before=before)
    return WatcherLines([watcher_line(each) for each in page.watchers], page.next_before)


@tool()
async def watcher_show(context: RequestContext, name: WatcherName) -> Watcher:
    """One watcher: its source, target, last changes, and its error, if any."""
    return await context.api.watchers.get(name)


@tool()
async def watcher_seen(context: RequestContext, name: WatcherName, limit: Limit = PAGE, after: After = None) -> SeenPage:
    """Known items of a watcher, ordered by name."""
    return await context.api.watchers.seen(name, after=after, limit=page_size(limit))


@tool(Scope.OPERATE)
async def watcher_create(
    context: RequestContext,
    name: Annotated[str, Doc("The name", "incoming")],
    paused: Annotated[bool, Doc("Create it paused")] = False,
    **options: Unpack[WatcherOptions],
) -> WatcherLine:
    """Create a watcher of one of `directory`, `file` and `url` that starts one of `task`, `workflow` and `function`.

    Without the scope `admin`, only sources that the server allows can be watched.
    """
    return watcher_line(await context.api.watchers.create(name, paused=paused, **options))


@tool(Scope.OPERATE, repeatable=True)
async def watcher_edit(
    context: RequestContext,
    name: WatcherName,
    clear: Annotated[Sequence[Literal["version", "retry"]], Doc("Options to remove")] = (),
    **options: Unpack[WatcherChanges],
) -> WatcherLine:
    """Edit a watcher, effective immediately; omitted options stay. To change the source, delete it and create another."""
    return watcher_line(await context.api.watchers.edit(name, clear=clear, **options))


@tool(Scope.OPERATE, repeatable=True)
async def watcher_manage(
    context: RequestContext, name: WatcherName, action: Annotated[Literal["pause", "resume", "look"], Doc("The action")]
) -> WatcherLine:
    """Pause or resume a watcher, or scan now (`look`), once the cause of an error is gone."""
    watchers = context.api.watchers
    match action:
        case "pause":
            return watcher_line(await watchers.pause(name))
        case "resume":
            return watcher_line(await watchers.resume(name))
        case "look":
            return watcher_line(await watchers.look(name))


@tool(Scope.OPERATE, ends=True)
async def watcher_delete(context: RequestContext, name: WatcherName) -> WatcherLine:
    """Delete a watcher permanently; started work continues, and the name becomes free."""
    return watcher_line(await context.api.watchers.remove(name))


TOOLS = (watcher_list, watcher_show, watcher_seen, watcher_create, watcher_edit, watcher_manage, watcher_delete)
