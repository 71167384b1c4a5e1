"""What a tool answers: one text item with JSON and the same as structured content; an error has its code beside the message."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import mcp_types as wire
from pydantic import ValidationError

from treadle.api.wire import to_builtins
from treadle.mcp.request_context import RequestContext
from treadle.mcp.tool import Tool
from treadle.model.errors import TreadleError
from treadle.model.values import Json

_LOG = logging.getLogger("treadle.mcp")


async def answer(tool: Tool, desk: RequestContext, given: Mapping[str, Any]) -> wire.CallToolResult:
    """What the tool comes to; errors are answers too, so that a model sees them."""
    try:
        record = await tool.call(desk, given)
    except TreadleError as error:
        return failed(error)
    except ValidationError as error:
        return _misfit(tool, error)
    except Exception as error:  # a loop's edge: the server goes on with other calls
        _LOG.error("tool %s failed", tool.name, exc_info=error)
        return _error("internal_error", "This is a bug in Treadle; the server's log says more.")
    return _result(to_builtins(record))


def failed(error: TreadleError) -> wire.CallToolResult:
    """An error of the engine, or of a server that was asked."""
    return _error(error.code, str(error), **details(error))


def details(error: TreadleError) -> dict[str, Json]:
    """What an error says beside its code and message: diagnostics of AFL, and the scope that is missing."""
    told: Mapping[str, Any] = getattr(error, "problem", {})
    found: Sequence[Any] = (
        told.get("diagnostics")
        or [to_builtins(each) for each in getattr(error, "findings", ())]
        or [each.as_json() for each in getattr(error, "diagnostics", ()) if hasattr(each, "as_json")]
    )
    scope = told.get("scope") or getattr(error, "scope", None)
    return ({"diagnostics": list(found)} if found else {}) | ({"scope": str(scope)} if scope else {})


def text_of(value: Json) -> str:
    """JSON for people and models: short, and with letters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _misfit(tool: Tool, error: ValidationError) -> wire.CallToolResult:
    problems: list[Json] = [{"at": [str(part) for part in each["loc"]], "message": each["msg"]} for each in error.errors()]
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _error("invalid_request", f"The arguments of {tool.name} do not fit: {where}: {first['msg']}.", problems=problems)


def _error(code: str, message: str, **more: Json) -> wire.CallToolResult:
    return _result({"success": False, "code": code, "error": message, **more}, is_error=True)


def _result(value: Json, *, is_error: bool = False) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(text=text_of(value))], structured_content=value, is_error=is_error)
