"""The tool for handler registrations: the function and module that handle the tasks of a facet."""

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
    """The result of the action."""

    success: bool
    error: str | None
    handler: Handler | None
    """With `get`, `register` and `delete` (before deletion)."""
    handlers: list[Handler]
    """With `list`, ordered by name."""
    next_after: str | None
    """Pass it as `after` for the next page; null on the last page."""


async def listed(context: RequestContext, limit: int, after: str | None) -> tuple[list[Handler], str | None]:
    """A page of registrations by name, and the cursor of the next page."""
    found = [each for each in (await context.api.handlers.list()).handlers if after is None or each.facet_name > after]
    page = found[: page_size(limit)]
    return page, page[-1].facet_name if len(found) > len(page) else None


@tool(changes=True, ends=True, repeatable=True)
async def afl_manage_handlers(
    context: RequestContext,
    action: Annotated[Literal["list", "get", "register", "delete"], Doc("The action", "list")],
    facet_name: Annotated[str | None, Doc("Qualified name of the event facet; not for `list`", "billing.ProcessPayment")] = None,
    module_uri: Annotated[
        str | None, Doc("For `register`: `package.module`, or `file:///path/to/module.py`, as runners find it", "handlers.billing")
    ] = None,
    entrypoint: Annotated[str, Doc("For `register`: the function in the module")] = "handle",
    version: Annotated[str, Doc("For `register`: a version for people")] = "1.0.0",
    checksum: Annotated[str, Doc("For `register`: a change makes runners reload the module")] = "",
    timeout_ms: Annotated[int, Doc("For `register`: longest time for one attempt in milliseconds")] = 30_000,
    requirements: Annotated[Sequence[str], Doc("For `register`: requirements in pip syntax", ["requests>=2.31"])] = (),
    metadata: Annotated[
        dict[str, Json] | None, Doc("For `register`: data passed to the function in addition to the payload")
    ] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> HandlersDone:
    """List, get, register or delete handlers that runners load themselves (`treadle runner`).

    `register` and `delete` need the scope `register`, because they control which code is loaded. `register` replaces a handler.
    """
    handlers = context.api.handlers
    if action == "list":
        page, next_after = await listed(context, limit, after)
        return HandlersDone(True, None, None, page, next_after)
    if facet_name is None:
        raise InvalidInput(f"Give `facet_name`: it is needed to {action}.")
    match action:
        case "get":
            handler = await handlers.get(facet_name)
        case "register":
            if module_uri is None:
                raise InvalidInput("Give `module_uri`: it is needed to register.")
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
