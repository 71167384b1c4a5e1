"""The interfaces through which clients and operators reach a history: Python, HTTP, and the tools of MCP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
from mcp import Client as McpClient
from tests.mcp.transports import in_request_context

from treadle import Engine
from treadle.client import Client
from treadle.client.client import error_of
from treadle.engine.operations import Operations
from treadle.interfaces.http.app import make_app
from treadle.model.access import Access, Scope

RUNNERS = ("pause", "resume", "cancel", "reopen")
TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    **{f"runs.{action}": ("afl_manage_runner", {"action": action}) for action in RUNNERS},
    **{f"tasks.{action}": (f"task_{action}", {}) for action in ("enqueue", "list", "cancel", "retry", "pause", "resume")},
    **{f"lists.{action}": ("list_manage", {"action": action}) for action in ("pause", "resume")},
    **{f"runs.{name}": (f"run_{name}", {}) for name in ("list", "retry", "rerun", "fork")},
    "tasks.get": ("task_show", {}),
    "steps.list": ("run_steps", {}),
    "functions.start": ("function_start", {}),
    "dead_letters.retry": ("dead_letter_retry", {}),
}
"""Tools of operations, and the arguments that choose the operation."""


class Tools:
    """Operations called as tools of MCP; those without one are called in Python."""

    def __init__(self, client: McpClient, operations: Operations, group: str = "") -> None:
        self._client, self._operations, self._group = client, operations, group

    def __getattr__(self, name: str) -> Any:
        if not self._group:
            return Tools(self._client, getattr(self._operations, name), name)
        operation = getattr(self._operations, name)
        if (entry := TOOLS.get(f"{self._group}.{name}")) is None:
            return operation
        tool, chosen = entry
        subject = {"lists": "task_list", "functions": "name", "tasks": "name" if name == "enqueue" else "task_id"}
        names = (subject.get(self._group, "run_id"), "step" if name == "fork" else "payload")

        async def call(*arguments: Any, **options: Any) -> Any:
            given = dict(zip(names, arguments, strict=False)) | chosen | options
            answer = await self._client.call_tool(tool, {key: value for key, value in given.items() if value is not None})
            content = answer.structured_content
            if answer.is_error:
                raise error_of(409, json.dumps({"detail": "", **(content or {})}).encode())
            return json.loads(json.dumps(content), object_hook=_record)

        return call


def _record(fields: dict[str, Any]) -> SimpleNamespace:
    """A record with its id as `id`; some tools name it `run_id`."""
    return SimpleNamespace(**({"id": fields.get("run_id")} | fields))


@asynccontextmanager
async def operations(engine: Engine, interface: str, actor: str = "ada") -> AsyncIterator[Any]:
    """The operations of an administrator, through an interface."""
    access = Access(actor, frozenset({Scope.ADMIN}))
    if interface == "MCP":
        async with in_request_context(engine, actor=actor) as client:
            yield Tools(client, Operations(engine, access))
    elif interface == "HTTP":
        token = (await engine.kernel.tokens.create(actor, [Scope.ADMIN])).secret
        async with Client("http://127.0.0.1", token, transport=httpx.ASGITransport(make_app(engine))) as client:
            yield client
    else:
        yield Operations(engine, access)
