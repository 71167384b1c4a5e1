"""The OpenAPI document: what FastAPI makes of the routes, and what it cannot know."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from treadle.http.problems import Problem

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
        schemas = components.setdefault("schemas", {})
        schemas["Problem"] = TypeAdapter(Problem).json_schema(ref_template="#/components/schemas/{model}")
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        app.openapi_schema = made
    return app.openapi_schema
