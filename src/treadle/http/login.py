"""Sessions for people: a token is shown once, to log in; the browser keeps a cookie that no script can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from treadle.api.contract import ApiRecord
from treadle.api.wire import Instant, to_json
from treadle.http.access import COOKIE
from treadle.http.app_state import AppState
from treadle.http.problems import problem_responses
from treadle.http.schemas import content_of
from treadle.kernel.access.sessions import SESSION_FOR
from treadle.model.errors import InvalidInput, Unauthorized

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Caller(ApiRecord):
    """Who calls, and what they may do."""

    actor: str
    scopes: list[str]
    task_lists: list[str]
    """The only task lists that it is for; empty: all."""
    expires_at: Instant | None
    csrf: str | None
    """What a session has to send in `X-CSRF-Token` with whatever changes something; null for tokens."""


def make_router(front: AppState) -> APIRouter:
    """`/login`, `/logout` and `/session`."""
    router = APIRouter(tags=["session"])
    callers = front.callers

    @router.post("/login", response_model=None, responses=_responses(200), openapi_extra=_body(), operation_id="session_log_in")
    async def log_in(request: Request) -> Response:
        """Open a session for who shows a token: as JSON, or as a form (then the answer leads to `next`, a path here,
        or back to the form)."""
        given, is_form = await _given(request)
        secret = given.get("token")
        if not isinstance(secret, str):
            raise InvalidInput("Send the token, as the field `token` of a form or of a JSON object.")
        answer: Response
        try:
            cookie, session = await callers.log_in(request, secret)
        except Unauthorized:
            if not is_form:
                raise
            return RedirectResponse(f"/login?{urlencode({'next': _local(given.get('next')), 'refused': ''})}", 303)
        if is_form:
            answer = RedirectResponse(_local(given.get("next")), 303)
        else:
            answer = Response(to_json(_shown(session.access, session.csrf)), media_type=_JSON)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, cookie, max_age=SESSION_FOR, path="/", httponly=True, samesite="strict", secure=secure)
        return answer

    @router.post(
        "/logout",
        status_code=204,
        response_model=None,
        responses=_responses(204),
        operation_id="session_log_out",
        openapi_extra={"security": []},
    )
    async def log_out(request: Request) -> Response:
        """Close the session; without one, nothing is done. A browser is led to the page where one logs in."""
        await callers.log_out(request)
        is_page = "text/html" in request.headers.get("accept", "")
        answer = RedirectResponse("/login", 303) if is_page else Response(status_code=204)
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    @router.get("/session", response_model=None, responses=_responses(200), operation_id="session_show")
    async def show(request: Request) -> Response:
        """Who calls, by the token or the session shown, and what they may do."""
        access = await front.access(request)
        session = await callers.find_session(request) if access.session_id is not None else None
        return Response(to_json(_shown(access, None if session is None else session.csrf)), media_type=_JSON)

    return router


def _shown(access: Any, csrf: str | None) -> Caller:
    until = None if access.expires_at is None else Instant.of(access.expires_at)
    return Caller(access.actor, sorted(access.scopes), list(access.task_lists), until, csrf)


async def _given(request: Request) -> tuple[dict[str, Any], bool]:
    """The fields of the body, and whether it is a form."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() == _FORM:
        return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}, True
    try:
        return msgspec.json.decode(await request.body(), type=dict[str, Any]), False
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidInput("The body is neither a form nor a JSON object.") from None


def _local(place: Any) -> str:
    """The path, if it is one of this server; else its first page."""
    ok = isinstance(place, str) and place.startswith("/") and not place.startswith("//") and "\\" not in place
    return place if ok and place.isprintable() else "/"


def _responses(status: int) -> dict[int | str, dict[str, Any]]:
    done: dict[str, Any] = {"description": "Done"} if status == 204 else {"description": "Done", **content_of(Caller)}
    return {status: done, **problem_responses()}


def _body() -> dict[str, Any]:
    fields = {"token": {"type": "string", "description": "The secret of a token"}, "next": {"type": "string"}}
    schema = {"type": "object", "properties": fields, "required": ["token"]}
    redirect = {"description": "Logged in by a form; leads to `next`"}
    return {
        "requestBody": {"required": True, "content": {_JSON: {"schema": schema}, _FORM: {"schema": schema}}},
        "responses": {"303": redirect},
        "security": [],
    }
