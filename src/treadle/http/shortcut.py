"""Finds the route of a request without trying all of them: there are hundreds, and trying them took longer than what they do.

It stands before the same routes in the application, and leaves to them whatever it does not find: other methods, wrong paths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

_Key = tuple[str, int, str, str]


class Shortcut(BaseRoute):
    """The routes by method, number of parts, first part after the version, and last part (empty: whatever is there)."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._places: dict[_Key, list[tuple[int, Route]]] = defaultdict(list)
        for number, route in enumerate(routes):
            if isinstance(route, Route):
                parts = route.path.split("/")
                for method in route.methods or ():
                    self._places[(method, len(parts), _fixed(parts[2]), _fixed(parts[-1]))].append((number, route))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope.get("root_path"):
            return Match.NONE, {}
        parts = scope["path"].split("/")
        if len(parts) < 3:
            return Match.NONE, {}
        key = (scope["method"], len(parts), parts[2])
        for _, route in sorted(
            [*self._places.get((*key, parts[-1]), ()), *self._places.get((*key, ""), ())], key=lambda each: each[0]
        ):
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                return match, {**child_scope, "route": route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["route"].handle(scope, receive, send)


def _fixed(part: str) -> str:
    return "" if part.startswith("{") else part
