"""Errors as `application/problem+json` (RFC 9457), each with its stable code: one table says which status a code has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from treadle.api.contract import Shape
from treadle.model.errors import (
    BacklogFull,
    ClaimLost,
    Forbidden,
    IllegalMove,
    InvalidFlow,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    Refused,
    StoreError,
    TooManyAttempts,
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
    (Refused, 409),
    (Unsupported, 501),
    (StoreError, 503),
)
"""The first class that fits says the status; what fits none is 409: the state of the thing does not allow it."""

_LOG = logging.getLogger("treadle")


@dataclass(frozen=True, slots=True)
class Problem(Shape):
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


def status_of(error: TreadleError) -> int:
    """The HTTP status for an error."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 409)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    problems: list[dict[str, Any]] | None = None,
    diagnostics: list[dict[str, Any]] | None = None,
) -> Response:
    """The answer for a problem."""
    body = {
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
    return Response(msgspec.json.encode(body), status, dict(headers or {}), MEDIA_TYPE)


def problem_of(error: TreadleError) -> Response:
    """The answer for an error of the engine."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="treadle"'
    if isinstance(error, TooManyAttempts):
        headers["Retry-After"] = str(-(-error.retry_after // 1000))
    diagnostics = None
    if isinstance(error, InvalidFlow):
        diagnostics = [each.as_json() for each in error.diagnostics if hasattr(each, "as_json")]
    return problem(status_of(error), error.code, str(error), headers=headers, diagnostics=diagnostics)


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
        code = {404: "no_such_route", 405: "method_not_allowed"}.get(error.status_code, f"http_{error.status_code}")
        return problem(error.status_code, code, str(error.detail), headers=error.headers)

    @app.exception_handler(Exception)
    async def of_bug(request: Request, error: Exception) -> Response:
        _LOG.exception("a request failed: %s %s", request.method, request.url.path, exc_info=error)
        return problem(500, "internal_error", "This is a bug in Treadle; the server's log says more.")
