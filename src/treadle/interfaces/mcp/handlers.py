"""Tools for handler registrations: the function and module that handle the tasks of a facet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from treadle.api.contract import ApiRecord, Doc, record
from treadle.api.handlers import Handler
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.interfaces.mcp.truncate import PAGE, After, Limit, page_size
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput
from treadle.model.values import Json


@record
class HandlerLines(ApiRecord):
    """Registered handlers, ordered by name."""

    handlers: list[Handler]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last page."""


@record
class HandlersDone(ApiRecord):
    """The result of the action."""

    success: bool
    error: str | None
    handler: Handler
    """With `delete`: before deletion."""


async def listed(context: RequestContext, limit: int, after: str | None) -> tuple[list[Handler], str | None]:
    """A page of registrations by name, and the cursor of the next page."""
    found = [each for each in (await context.api.handlers.list()).handlers if after is None or each.facet_name > after]
    page = found[: page_size(limit)]
    return page, page[-1].facet_name if len(found) > len(page) else None


@tool()
async def handler_list(
    context: RequestContext,
    facet_name: Annotated[str | None, Doc("Only this one", "billing.ProcessPayment")] = None,
    limit: Limit = PAGE,
    after: After = None,
) -> HandlerLines:
    """Handlers that are registered in the store for runners to load, by name. `worker_abilities` has those of live workers."""
    if facet_name is not None:
        return HandlerLines([await context.api.handlers.get(facet_name)], None)
    return HandlerLines(*await listed(context, limit, after))


@tool(Scope.REGISTER, ends=True, repeatable=True)
async def afl_manage_handlers(
    context: RequestContext,
    action: Annotated[Literal["register", "delete"], Doc("The action; `register` replaces a handler of the same name")],
    facet_name: Annotated[str, Doc("Qualified name of the event facet", "billing.ProcessPayment")],
    module_uri: Annotated[
        str | None, Doc("For `register`: `package.module`, or `file:///path/to/module.py`, as runners find it", "handlers.billing")
    ] = None,
    entrypoint: Annotated[str, Doc("The function in the module")] = "handle",
    version: Annotated[str, Doc("A version for people")] = "1.0.0",
    checksum: Annotated[str, Doc("A change makes runners reload the module")] = "",
    timeout_ms: Annotated[int, Doc("Longest time for one attempt")] = 30_000,
    requirements: Annotated[Sequence[str], Doc("Requirements in pip syntax", ["requests>=2.31"])] = (),
    metadata: Annotated[dict[str, Json] | None, Doc("Data passed to the function in addition to the payload")] = None,
) -> HandlersDone:
    """Register or delete a handler that runners load themselves. `handler_list` lists them."""
    handlers = context.api.handlers
    if action == "delete":
        handler = await handlers.get(facet_name)
        await handlers.remove(facet_name)
        return HandlersDone(True, None, handler)
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
    return HandlersDone(True, None, handler)


TOOLS = (handler_list, afl_manage_handlers)
