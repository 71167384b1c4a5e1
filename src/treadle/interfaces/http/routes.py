"""Routes, their lookup by path, and the routes of the contract, each made from the description of its call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
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
from treadle.interfaces.http.openapi import KEY_HEADER, KEY_LENGTH, Returns, RouteDescription, operation_of
from treadle.interfaces.http.parameters import Body, InvalidRequest, Query, problem_at
from treadle.kernel.access.requests import Requests, StoredAnswer

WAIT = "wait_for"
"""The parameter that makes a call wait for something to happen."""

REPLAYED = "Idempotency-Replayed"

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A method and a path, such as `/v1/tasks/{task_id}`, and their handler."""

    method: str
    path: str
    handler: Handler
    operation: RouteDescription | None = None
    """Its description in the OpenAPI document; None: it is not in there."""

    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters in the path."""
        return tuple(part[1:-1].partition(":")[0] for part in self.path.split("/") if part.startswith("{"))


class Routes(list[HttpRoute]):
    """The documented routes of a module: `@ROUTES.add(...)` registers a handler, whose docstring is its description."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def add(
        self, method: str, path: str, operation_id: str, summary: str, returns: Mapping[int, Returns], **options: Any
    ) -> Callable[[Handler], Handler]:
        """Register the decorated handler; `options` are those of its `RouteDescription`."""

        def register(handler: Handler) -> Handler:
            operation = RouteDescription(operation_id, self._tag, summary, inspect.getdoc(handler) or "", returns, **options)
            self.append(HttpRoute(method, path, handler, operation))
            return handler

        return register


class RouteTable(BaseRoute):
    """Finds the route of a request; fixed segments of a path take precedence over parameters.

    Names of handlers, task lists and flows may contain slashes, encoded as `%2F`. Servers pass on decoded paths, so a path with
    an encoded slash is split as it was sent.
    """

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self.routes = tuple(routes)
        self._by_pattern: dict[tuple[bool, tuple[str | None, ...]], dict[str, HttpRoute]] = {}
        """The routes by method, by whether the last parameter takes all the rest, and by segments; None for a parameter."""
        for route in self.routes:
            segments = tuple(None if part.startswith("{") else part for part in route.path.split("/"))
            self._by_pattern.setdefault((route.path.endswith(":path}"), segments), {})[route.method] = route
        self._shapes = sorted({(rest, tuple(part is None for part in segments)) for rest, segments in self._by_pattern})
        """Which segments are parameters, in all patterns; the most specific first."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        allowed: dict[str, None] = {}
        for routes, values in self._candidates(scope):
            if (route := routes.get(scope["method"])) is not None:
                return Match.FULL, {"route": route, "path_params": dict(zip(route.parameters(), values, strict=True))}
            allowed.update(dict.fromkeys(routes))
        return (Match.PARTIAL, {"treadle.allow": ", ".join(allowed)}) if allowed else (Match.NONE, {})

    def _candidates(self, scope: Scope) -> Iterator[tuple[dict[str, HttpRoute], list[str]]]:
        """The routes of every path that matches, with the values of its parameters; the most specific path first."""
        if b"%2f" in (scope.get("raw_path") or b"").lower():
            path = scope["raw_path"].partition(b"?")[0].decode("ascii", "replace")
            parts = [unquote(part) for part in path.split("/")]
        else:
            parts = scope["path"].split("/")
        for rest, shape in self._shapes:
            last = len(shape) - 1
            if len(parts) <= last or (len(parts) > len(shape) and not rest):
                continue
            values = [*parts[:last], "/".join(parts[last:])]
            segments = tuple(None if is_named else value for value, is_named in zip(values, shape, strict=True))
            named = [value for value, is_named in zip(values, shape, strict=True) if is_named]
            if (routes := self._by_pattern.get((rest, segments))) is not None and (rest or all(named)):
                yield routes, named

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = scope["route"]
        if not isinstance(route, HttpRoute):
            raise HTTPException(405, headers={"Allow": scope["treadle.allow"]})
        response = await route.handler(Request(scope, receive, send))
        await response(scope, receive, send)

    def find(self, scope: Scope) -> HttpRoute | None:
        """Return the route of a request and prepare its scope; None if no route here has its path and method."""
        match, child_scope = self.matches(scope)
        if match is not Match.FULL:
            return None
        scope.update(child_scope)
        route: HttpRoute = child_scope["route"]
        return route


def json_response(record: Any, status: int = 200) -> Response:
    """A record of the contract as the answer."""
    return Response(to_json(record), status, media_type="application/json")


@cache
def contract_routes() -> tuple[HttpRoute, ...]:
    """The routes of all calls of the contract, for every application of this process."""
    return tuple(
        HttpRoute(call.route.method, PREFIX + call.route.path, _handler_of(call), operation_of(call)) for call in all_calls()
    )


def _handler_of(call: Call) -> Handler:
    """The handler that checks the caller, then decodes the parameters, then makes the call."""

    @cache
    def reader() -> Query | Body:
        return Query(call.others) if call.in_query else Body(call.others)

    async def options_of(request: Request) -> dict[str, Any]:
        """The arguments of the call in the path, and in the query or the body."""
        options: dict[str, Any] = {parameter.name: request.path_params[parameter.name] for parameter in call.path}
        return options | await reader().read(request) if call.others else options

    async def make(state: AppState, operations: Operations, request: Request, key: str | None = None) -> Response:
        options = await options_of(request)
        if key is not None:
            options[KEY] = key
        perform = partial(getattr(getattr(operations, call.group), call.name), **options)
        if options.get(WAIT):
            result = await state.wait(operations.access, perform, partial(perform, **{WAIT: 0.0}), request)
        else:
            result = await perform()
        return json_response(result, call.route.status)

    async def handle(request: Request) -> Response:
        state = state_of(request)
        access = await state.access(request)
        operations = state.service_for(request, access)
        operations.check(call)
        key = request.headers.get(KEY_HEADER) if call.route.creates or call.keyed else None
        if key is not None and len(key) > KEY_LENGTH:
            raise InvalidRequest([problem_at(f"it is longer than {KEY_LENGTH} characters", "header", KEY_HEADER)])
        if key is None or call.keyed:
            return await make(state, operations, request, key)
        await operations.authorize(call, **await options_of(request))
        return await once(state.engine.kernel.requests, access.actor, call.id, key, request, partial(make, state, operations))

    return handle


async def once(
    requests: Requests, actor: str, call_id: str, key: str, request: Request, handle: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Handle the first request with this `Idempotency-Key` and repeat its answer for later ones.

    For calls whose service method takes no key. Only successful answers are kept.
    """
    sent = b"\n".join([request.method.encode(), request.url.path.encode(), request.url.query.encode(), await request.body()])
    begun = await requests.begin(actor, call_id, key, sent)
    if isinstance(begun, StoredAnswer):
        return Response(begun.body, begun.status, {REPLAYED: "true"}, "application/json")
    is_successful = False
    try:
        answer = await handle(request)
        is_successful = answer.status_code < 300
    finally:
        if not is_successful:
            await requests.forget(begun)
    await requests.finish(begun, StoredAnswer(answer.status_code, bytes(answer.body)))
    return answer
