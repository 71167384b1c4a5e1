"""Errors as `application/problem+json` (RFC 9457), each with a stable code and the status from one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import ApiRecord
from treadle.interfaces.http.parameters import InvalidRequest
from treadle.model.errors import (
    BacklogFull,
    CallbackRefused,
    ClaimLost,
    Forbidden,
    IllegalTransition,
    InvalidFlow,
    InvalidInput,
    MissingDependency,
    NotFound,
    PayloadTooLarge,
    Refused,
    RequestInProgress,
    StoreError,
    StoreOverloaded,
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
    (IllegalTransition, 409),
    (CallbackRefused, 403),
    (Refused, 409),
    (Unsupported, 501),
    (MissingDependency, 501),
    (StoreError, 503),
)
"""The first matching class determines the status. Without a match it is 409: the current state does not allow the request."""

_CODES = {404: "no_such_route", 405: "method_not_allowed", 408: "request_too_slow", 413: "payload_too_large"}
"""Codes of errors that the framework raises."""


class ClientGone(Exception):
    """The caller closed the connection before there was an answer."""


class ProblemDetails(ApiRecord, frozen=True):
    """The answer to a request that failed."""

    type: str
    """A URI that identifies the code."""
    title: str
    """The name of the status."""
    status: int
    code: str
    """A stable code for programs."""
    detail: str
    """The cause and the remedy, for people."""
    problems: list[dict[str, Any]] | None = None
    """The invalid places in the request."""
    diagnostics: list[dict[str, Any]] | None = None
    """The compiler's diagnostics for AFL sources."""
    scope: str | None = None
    """The missing scope."""


DOCUMENTED = (400, 401, 403, 404, 408, 409, 413, 422, 429, 431, 501, 503)
"""Statuses of problems that any call may return."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI responses for problems of those statuses; without statuses, for all that any call may return."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses or DOCUMENTED
    }


def status_of(error: TreadleError) -> int:
    """The HTTP status of an error; errors of dispatch carry their own, from its specification."""
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
    more = {"problems": problems, "diagnostics": diagnostics, "scope": scope}
    body = {
        "type": f"urn:treadle:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        **{name: value for name, value in more.items() if value is not None},
    }
    return Response(msgspec.json.encode(body), status, dict(headers or {}), MEDIA_TYPE)


def problem_of(error: TreadleError) -> Response:
    """The answer for an error of the engine."""
    headers: dict[str, str] = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="treadle"'
    scope: str | None = getattr(error, "scope", None) if isinstance(error, Forbidden) else None
    if scope is not None:
        headers["WWW-Authenticate"] = f'Bearer realm="treadle", error="insufficient_scope", scope="{scope}"'
    if isinstance(error, StoreOverloaded | TooManyAttempts | TooManyWaiting):
        headers["Retry-After"] = str(-(-error.retry_after // 1000))
    if isinstance(error, RequestInProgress):
        headers["Retry-After"] = "1"
    diagnostics = None
    if isinstance(error, InvalidFlow):
        diagnostics = [diagnostic.as_json() for diagnostic in error.diagnostics if hasattr(diagnostic, "as_json")]
    return problem(status_of(error), error.code, str(error), headers=headers, diagnostics=diagnostics, scope=scope)


async def http_problem(request: Request, error: HTTPException) -> Response:
    """The answer for an error of the framework, such as an unknown route."""
    code = _CODES.get(error.status_code, "invalid_request")
    return problem(error.status_code, code, str(error.detail), headers=error.headers)


async def _engine_problem(request: Request, error: TreadleError) -> Response:
    answer = problem_of(error)
    metadata = getattr(request.app.state, "resource_metadata", None)
    if metadata is not None and (challenge := answer.headers.get("WWW-Authenticate")) is not None:
        answer.headers["WWW-Authenticate"] = f'{challenge}, resource_metadata="{metadata}"'
    return answer


async def _request_problem(request: Request, error: InvalidRequest) -> Response:
    first = error.problems[0]
    detail = f"The request is invalid: {'.'.join(first['at'])}: {first['message']}."
    return problem(error.status, "invalid_request", detail, problems=error.problems)


async def _no_answer(request: Request, error: ClientGone) -> Response:
    return Response(status_code=204)  # nobody reads it


EXCEPTION_HANDLERS: Mapping[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    TreadleError: _engine_problem,
    InvalidRequest: _request_problem,
    HTTPException: http_problem,
    ClientGone: _no_answer,
}


def find_handler(error: Exception) -> Callable[[Request, Any], Awaitable[Response]] | None:
    """Return the function that makes the answer for an error; None: the error is a bug."""
    return next((handler for kind in type(error).__mro__ if (handler := EXCEPTION_HANDLERS.get(kind)) is not None), None)
