"""Errors as `application/problem+json` (RFC 9457), each with its stable code: one table says which status a code has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from treadle.api.contract import ApiRecord
from treadle.model.errors import (
    BacklogFull,
    CallbackRefused,
    CallbackTooEarly,
    ClaimLost,
    Forbidden,
    IllegalMove,
    InvalidFlow,
    InvalidInput,
    MissingDependency,
    NotFound,
    PayloadTooLarge,
    Refused,
    RequestInProgress,
    StoreError,
    TooManyAttempts,
    TooManyWaiting,
    TreadleError,
    Unauthorized,
    Unsupported,
)

MEDIA_TYPE = "application/problem+json"

STATUSES: tuple[tuple[type[TreadleError], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (TooManyAttempts, 429),
    (PayloadTooLarge, 413),
    (InvalidInput, 422),
    (NotFound, 404),
    (BacklogFull, 429),
    (ClaimLost, 409),
    (IllegalMove, 409),
    (CallbackTooEarly, 409),
    (CallbackRefused, 403),
    (Refused, 409),
    (Unsupported, 501),
    (MissingDependency, 501),
    (StoreError, 503),
)
"""The first class that fits says the status; what fits none is 409: the state of the thing does not allow it."""

_CODES = {404: "no_such_route", 405: "method_not_allowed", 408: "request_too_slow", 413: "payload_too_large"}
"""Codes of what the framework refuses."""


class ClientGone(Exception):
    """The caller closed the connection before there was an answer."""


@dataclass(frozen=True, slots=True)
class Problem(ApiRecord):
    """What went wrong."""

    type: str
    """Where the code is explained."""
    title: str
    """The status in words."""
    status: int
    code: str
    """Stable: programs go by it."""
    detail: str
    """What happened and what to do, for people."""
    problems: list[dict[str, Any]] | None = None
    """Each place in the request that does not fit, where there are several."""
    diagnostics: list[dict[str, Any]] | None = None
    """What is wrong with AFL sources."""
    scope: str | None = None
    """The scope that is missing."""


DOCUMENTED = (400, 401, 403, 404, 408, 409, 413, 422, 429, 501, 503)
"""Problems that any call may be answered with."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the documentation says of answers that are problems; without statuses, of all that a call may be answered with."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses or DOCUMENTED
    }


def status_of(error: TreadleError) -> int:
    """The HTTP status for an error; those of dispatch have one of their own, from its specification."""
    own: int | None = getattr(error, "http_status", None)
    return own or next((status for kind, status in STATUSES if isinstance(error, kind)), 409)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    problems: list[dict[str, Any]] | None = None,
    diagnostics: list[dict[str, Any]] | None = None,
    scope: str | None = None,
) -> Response:
    """The answer for a problem."""
    body: dict[str, Any] = {
        "type": f"urn:treadle:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
    }
    if problems is not None:
        body["problems"] = problems
    if diagnostics is not None:
        body["diagnostics"] = diagnostics
    if scope is not None:
        body["scope"] = scope
    return Response(msgspec.json.encode(body), status, dict(headers or {}), MEDIA_TYPE)


def problem_of(error: TreadleError) -> Response:
    """The answer for an error of the engine."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="treadle"'
    scope: str | None = getattr(error, "scope", None) if isinstance(error, Forbidden) else None
    if scope is not None:
        headers["WWW-Authenticate"] = f'Bearer realm="treadle", error="insufficient_scope", scope="{scope}"'
    if isinstance(error, TooManyAttempts | TooManyWaiting):
        headers["Retry-After"] = str(-(-error.retry_after // 1000))
    if isinstance(error, RequestInProgress):
        headers["Retry-After"] = "1"
    diagnostics = None
    if isinstance(error, InvalidFlow):
        diagnostics = [each.as_json() for each in error.diagnostics if hasattr(each, "as_json")]
    return problem(status_of(error), error.code, str(error), headers=headers, diagnostics=diagnostics, scope=scope)


def handle_problems(app: FastAPI) -> None:
    """Let the app answer every error with a problem."""

    @app.exception_handler(TreadleError)
    async def of_engine(request: Request, error: TreadleError) -> Response:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def of_request(request: Request, error: RequestValidationError) -> Response:
        found = [{"at": [str(part) for part in each["loc"]], "message": each["msg"]} for each in error.errors()]
        first = found[0] if found else {"at": [], "message": "it cannot be read"}
        where = ".".join(first["at"])
        return problem(422, "invalid_request", f"The request does not fit: {where}: {first['message']}.", problems=found)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        return problem(
            error.status_code, _CODES.get(error.status_code, "invalid_request"), str(error.detail), headers=error.headers
        )

    @app.exception_handler(ClientGone)
    async def of_nobody(request: Request, error: ClientGone) -> Response:
        return Response(status_code=204)  # nobody reads it
