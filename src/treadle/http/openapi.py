"""The OpenAPI document: what FastAPI makes of the routes, and what it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from treadle.http.problems import Problem
from treadle.http.schemas import components as components_of_shapes
from treadle.http.schemas import content_of

_DESCRIPTION = """\
Everything that people, programs and agents do with a Treadle engine.

Instants are RFC 3339 in UTC. Durations in requests are seconds; fields of answers that end in `_for` are milliseconds. Lists are
paged: pass `next_before` as `before`. Errors are `application/problem+json` with a stable `code`. Each call names the scope
that its token needs.
"""


def document(app: FastAPI, version: str) -> dict[str, Any]:
    """The document of the app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title="Treadle", version=version, description=_DESCRIPTION, routes=app.routes)
        components = made.setdefault("components", {})
        content_of(Problem)
        components["schemas"] = components_of_shapes() | components.get("schemas", {})
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        app.openapi_schema = made
    return app.openapi_schema
