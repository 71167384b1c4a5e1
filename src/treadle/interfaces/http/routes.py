"""Routes, their lookup by path, and the routes of the contract, each made from the description of its call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from treadle.api.contract import KEY, PREFIX, Call
from treadle.api.facade import all_calls
from treadle.api.wire import to_json
from treadle.engine.operations import Operations
from treadle.interfaces.http.app_state import AppState, state_of
from treadle.interfaces.http.openapi import KEY_HEADER, KEY_LENGTH, Operation, Returns, operation_of
from treadle.interfaces.http.parameters import Body, InvalidRequest, Query, problem_at
from treadle.kernel.access.requests import Answer, Requests

WAIT = "wait_for"
"""The parameter that makes a call wait for something to happen."""

REPLAYED = "Idempotency-Replayed"

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, such as `/v1/tasks/{task_id}`, and their handler."""

    method: str
    path: str
    handler: Handler
    operation: Operation | None = None
    """Its description in the OpenAPI document; None: it is not in there."""

    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters in the path."""
        return tuple(part[1:-1].partition(":")[0] for part in self.path.split("/") if part.startswith("{"))


class Routes(list[Route]):
    """The documented routes of a module: `@ROUTES.add(...)` registers a handler, whose docstring is its description."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def add(
        self, method: str, path: str, operation_id: str, summary: str, returns: Mapping[int, Returns], **options: Any
    ) -> Callable[[Handler], Handler]:
        """Register the decorated handler; `options` are those of its `Operation`."""

        def register(handler: Handler) -> Handler:
            operation = Operation(operation_id, self._tag, summary, inspect.getdoc(handler) or "", returns, **options)
            self.append(Route(method, path, handler, operation))
            return handler

        return register


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    named: _Node | None = None
    """Below any one segment."""
    routes: dict[str, Route] = field(default_factory=dict)
    """By method, for paths that end here."""
    rest: dict[str, Route] = field(default_factory=dict)
    """By method, for paths with any segments from here on."""


class RouteTable(BaseRoute):
    """Finds the route of a request in a tree of path segments; fixed segments take precedence over parameters.

    Names of handlers, task lists and flows may contain slashes, encoded as `%2F`. Servers pass on decoded paths, so a path with
    an encoded slash is split as it was sent.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        self._fixed: dict[str, dict[str, Route]] = {}
        """The routes of paths without parameters, by path and method."""
        self._parameters = {(route.method, route.path): route.parameters() for route in self.routes}
        for route in self.routes:
            node = self._root
            if "{" not in route.path:
                self._fixed.setdefault(route.path, {})[route.method] = route
            for part in route.path.split("/"):
                if part.endswith(":path}"):
                    node.rest[route.method] = route
                    break
                if part.startswith("{"):
                    node.named = node = node.named or _Node()
                else:
                    node = node.fixed.setdefault(part, _Node())
            else:
                node.routes[route.method] = route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        if (fixed := self._fixed.get(scope["path"], {}).get(scope["method"])) is not None and _is_plain(scope):
            return Match.FULL, {"route": fixed, "path_params": {}}
        parts = _segments(scope)
        allowed: dict[str, None] = {}
        for routes, values in _matches(self._root, parts, 0):
            if (route := routes.get(scope["method"])) is not None:
                names = self._parameters[route.method, route.path]
                return Match.FULL, {"route": route, "path_params": dict(zip(names, values, strict=True))}
            allowed.update(dict.fromkeys(routes))
        return (Match.PARTIAL, {"treadle.allow": ", ".join(allowed)}) if allowed else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = scope["route"]
        if not isinstance(route, Route):
            raise HTTPException(405, headers={"Allow": scope["treadle.allow"]})
        response = await route.handler(Request(scope, receive, send))
        await response(scope, receive, send)

    def find(self, scope: Scope) -> Route | None:
        """Return the route of a request and prepare its scope; None if no route here has its path and method."""
        match, found = self.matches(scope)
        if match is not Match.FULL:
            return None
        scope.update(found)
        route: Route = found["route"]
        return route


def _is_plain(scope: Scope) -> bool:
    """Whether the path was sent without encoded slashes."""
    return b"%2f" not in (scope.get("raw_path") or b"").lower()


def _segments(scope: Scope) -> list[str]:
    if _is_plain(scope):
        return list(scope["path"].split("/"))
    raw: bytes = scope["raw_path"]
    return [unquote(part) for part in raw.partition(b"?")[0].decode("ascii", "replace").split("/")]


def _matches(node: _Node, parts: list[str], index: int) -> Iterable[tuple[dict[str, Route], tuple[str, ...]]]:
    """The routes of every path that matches, with the values of its parameters."""
    if index == len(parts):
        if node.routes:
            yield node.routes, ()
        return
    part = parts[index]
    if (below := node.fixed.get(part)) is not None:
        yield from _matches(below, parts, index + 1)
    if node.named is not None and part:
        for routes, values in _matches(node.named, parts, index + 1):
            yield routes, (part, *values)
    if node.rest:
        yield node.rest, ("/".join(parts[index:]),)


def json_response(record: Any, status: int = 200) -> Response:
    """A record of the contract as the answer."""
    return Response(to_json(record), status, media_type="application/json")


@cache
def contract_routes() -> tuple[Route, ...]:
    """The routes of all calls of the contract, for every application of this process."""
    return tuple(Route(call.route.method, PREFIX + call.route.path, _CallHandler(call), operation_of(call)) for call in all_calls())


class _CallHandler:
    """Checks the caller, then decodes the parameters, then makes the call."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._replayable = call.route.creates and not call.keyed

    async def __call__(self, request: Request) -> Response:
        state, route = state_of(request), self._call.route
        access = await state.access(request)
        operations = state.service_for(request, access)
        operations.check(self._call)
        key = request.headers.get(KEY_HEADER) if route.creates or self._call.keyed else None
        if key is not None and len(key) > KEY_LENGTH:
            raise InvalidRequest([problem_at(f"it is longer than {KEY_LENGTH} characters", "header", KEY_HEADER)])
        if self._replayable and key is not None:
            await operations.permit(self._call, **await self._options(request))
            make = partial(self._make, state, operations)
            return await once(state.engine.kernel.requests, access.actor, self._call.id, key, request, make)
        return await self._make(state, operations, request, key)

    async def _make(self, state: AppState, operations: Operations, request: Request, key: str | None = None) -> Response:
        call = self._call
        options = await self._options(request)
        if key is not None:
            options[KEY] = key
        make = partial(getattr(getattr(operations, call.group), call.name), **options)
        if options.get(WAIT):
            result = await state.wait(operations.access, make, partial(make, **{WAIT: 0.0}), request)
        else:
            result = await make()
        return json_response(result, call.route.status)

    async def _options(self, request: Request) -> dict[str, Any]:
        """The arguments of the call in the path, and in the query or the body."""
        options: dict[str, Any] = {each.name: request.path_params[each.name] for each in self._call.path}
        if self._call.others:
            options |= self._query.read(request) if self._call.in_query else await self._body.read(request)
        return options

    @cached_property
    def _query(self) -> Query:
        return Query(self._call.others)

    @cached_property
    def _body(self) -> Body:
        return Body(self._call.others)


async def once(
    requests: Requests, actor: str, call_id: str, key: str, request: Request, handle: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Handle the first request with this `Idempotency-Key` and repeat its answer for later ones.

    For calls whose service method takes no key. Only successful answers are kept.
    """
    sent = b"\n".join([request.method.encode(), request.url.path.encode(), request.url.query.encode(), await request.body()])
    begun = await requests.begin(actor, call_id, key, sent)
    if isinstance(begun, Answer):
        return Response(begun.body, begun.status, {REPLAYED: "true"}, "application/json")
    made = False
    try:
        answer = await handle(request)
        made = answer.status_code < 300
    finally:
        if not made:
            await requests.forget(begun)
    await requests.finish(begun, Answer(answer.status_code, bytes(answer.body)))
    return answer
