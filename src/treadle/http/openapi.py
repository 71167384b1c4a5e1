"""The OpenAPI document: what FastAPI makes of the routes, and what it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from treadle.api.contract import PREFIX, Call
from treadle.api.facade import all_calls
from treadle.http.access import COOKIE, CSRF_HEADER
from treadle.http.problems import Problem
from treadle.http.schemas import components as components_of_shapes
from treadle.http.schemas import content_of

_DESCRIPTION = """\
Everything that people, programs and agents do with a Treadle engine.

Instants are RFC 3339 in UTC. Durations in requests are seconds; fields of answers that end in `_for` are milliseconds. Lists are
paged: pass `next_before` as `before`. Errors are `application/problem+json` with a stable `code`. Each call names the scope
that its token needs. Calls that make something take an `Idempotency-Key`. Every answer has an `X-Request-Id`.
"""

_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "The secret of a token, as `Authorization: Bearer SECRET`"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"The cookie of a session; what changes something also needs its CSRF token in `{CSRF_HEADER}`",
    },
}


def document(app: FastAPI, version: str) -> dict[str, Any]:
    """The document of the app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title="Treadle", version=version, description=_DESCRIPTION, routes=app.routes)
        content_of(Problem)
        components = made.setdefault("components", {})
        components["schemas"] = components_of_shapes() | components.get("schemas", {})
        components["securitySchemes"] = _SECURITY
        made["security"] = [{"token": []}, {"session": []}]
        for operations in made["paths"].values():
            for operation in operations.values():
                _tidy(operation)
        for call in all_calls():
            if links := _links(call):
                made["paths"][f"{PREFIX}{call.route.path}"][call.route.method.lower()]["responses"][str(call.route.status)][
                    "links"
                ] = links
        app.openapi_schema = made
    return app.openapi_schema


def _links(call: Call) -> dict[str, Any]:
    """What can be done next with what the call made: all calls of its group that need nothing but its id in their path."""
    if not call.route.creates or "id" not in getattr(call.returns, "__dataclass_fields__", {}):
        return {}
    return {
        other.id: {"operationId": other.id, "parameters": {other.path[0].name: "$response.body#/id"}}
        for other in all_calls()
        if other.group == call.group and len(other.path) == 1 and other.path[0].name.endswith("_id")
    }


def _tidy(operation: dict[str, Any]) -> None:
    """A parameter that may be left out is not null in a query, a path or a header: there is no null there."""
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        if {"type": "null"} in (options := schema.get("anyOf", [])):
            (kept,) = [each for each in options if each != {"type": "null"}]
            del schema["anyOf"]
            schema.update(kept)
        if "examples" in schema:
            parameter["example"] = schema.pop("examples")[0]
        schema.pop("title", None)
        schema.pop("description", None)
