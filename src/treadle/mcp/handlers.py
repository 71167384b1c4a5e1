"""The tool for handler registrations: which function of which module handles the tasks of a facet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc
from treadle.api.handlers import Handler
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import tool
from treadle.mcp.truncate import PAGE, After, Limit, page_size
from treadle.model.errors import InvalidInput
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class HandlersDone(ApiRecord):
    """What there is, or what became of one."""

    success: bool
    error: str | None
    handler: Handler | None
    """Of `get`, `register` and `delete` (as it was)."""
    handlers: list[Handler]
    """Of `list`, by name."""
    next_after: str | None
    """Pass it as `after` for the next page; null on the last one."""


async def listed(desk: RequestContext, limit: int, after: str | None) -> tuple[list[Handler], str | None]:
    """A page of registrations by name, and where the next one begins."""
    found = [each for each in (await desk.api.handlers.list()).handlers if after is None or each.facet_name > after]
    page = found[: page_size(limit)]
    return page, page[-1].facet_name if len(found) > len(page) else None


@tool(changes=True, ends=True, repeatable=True)
async def afl_manage_handlers(
    desk: RequestContext,
    action: Annotated[Literal["list", "get", "register", "delete"], Doc("What to do", "list")],
    facet_name: Annotated[str | None, Doc("The event facet's qualified name; not for `list`", "billing.ProcessPayment")] = None,
    module_uri: Annotated[
        str | None, Doc("To register: `package.module`, or `file:///path/to/module.py`, where runners find it", "handlers.billing")
    ] = None,
    entrypoint: Annotated[str, Doc("To register: the function in it")] = "handle",
    version: Annotated[str, Doc("To register: for people")] = "1.0.0",
    checksum: Annotated[str, Doc("To register: changing it makes runners load the module anew")] = "",
    timeout_ms: Annotated[int, Doc("To register: longest time for one attempt in milliseconds")] = 30_000,
    requirements: Annotated[Sequence[str], Doc("To register: as pip has them", ["requests>=2.31"])] = (),
    metadata: Annotated[dict[str, Json] | None, Doc("To register: what the function is given beside the payload")] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> HandlersDone:
    """List, look at, register or delete handlers that runners load by themselves (`treadle runner`).

    To register or delete needs the scope `admin`, as it decides what code is loaded. A facet's registration is replaced.
    """
    handlers = desk.api.handlers
    if action == "list":
        page, next_after = await listed(desk, limit, after)
        return HandlersDone(True, None, None, page, next_after)
    if facet_name is None:
        raise InvalidInput(f"Say whose handler: `facet_name` is needed to {action}.")
    match action:
        case "get":
            handler = await handlers.get(facet_name)
        case "register":
            if module_uri is None:
                raise InvalidInput("Say where the handler is: `module_uri` is needed to register.")
            handler = await handlers.register(
                facet_name,
                module_uri,
                entrypoint=entrypoint,
                version=version,
                checksum=checksum,
                timeout=timeout_ms / 1000,
                requirements=requirements,
                metadata=metadata,
            )
        case "delete":
            handler = await handlers.get(facet_name)
            await handlers.remove(facet_name)
    return HandlersDone(True, None, handler, [], None)


TOOLS = (afl_manage_handlers,)
