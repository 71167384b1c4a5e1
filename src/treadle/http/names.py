"""Names with a slash in paths: `%2F` stays as it is until the route is found, so that it parts nothing.

Names of handlers, task lists and flows may have slashes. Servers hand on paths that are decoded already, in which nobody can tell
such a slash from those between the parts; the path as it was sent can be asked for, and is read with more care here.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

_WHOLE = "treadle.whole_names"


class WholeNames:
    """A layer below which slashes in names, and percent signs with them, are still encoded in the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and b"%2f" in raw.lower():
            sent = raw.partition(b"?")[0].decode("ascii", "replace")
            for coded in ("%25", "%2F", "%2f"):
                sent = sent.replace(coded, coded.replace("%", "%25"))
            scope = {**scope, "path": unquote(sent), _WHOLE: True}
        await self._app(scope, receive, send)


def named(request: Request, value: Any) -> Any:
    """What stands in a path, with its slashes."""
    return unquote(value) if isinstance(value, str) and request.scope.get(_WHOLE) else value
