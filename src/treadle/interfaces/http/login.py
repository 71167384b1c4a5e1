"""Sessions for browsers: logging in with a token sets a cookie that no script can read."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from treadle.api.contract import ApiRecord
from treadle.api.wire import Instant
from treadle.interfaces.http.access import COOKIE
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.openapi import JSON, PUBLIC, Returns
from treadle.interfaces.http.routes import Routes, json_response
from treadle.kernel.access.sessions import SESSION_FOR
from treadle.model.errors import InvalidInput, Unauthorized

ROUTES = Routes("session")
_FORM = "application/x-www-form-urlencoded"
_FIELDS = {"token": {"type": "string", "description": "The secret of a token"}, "next": {"type": "string"}}
_CONTENT = {"schema": {"type": "object", "properties": _FIELDS, "required": ["token"]}}


class Caller(ApiRecord, frozen=True):
    """A caller and its access."""

    actor: str
    scopes: list[str]
    task_lists: list[str]
    """The task lists that it is restricted to; empty: all."""
    expires_at: Instant | None
    csrf: str | None
    """A session sends it in `X-CSRF-Token` with requests that change something; null for tokens."""


@ROUTES.add(
    "POST",
    "/login",
    "session_log_in",
    "Log in",
    {200: Returns("Done", (Caller,)), 303: Returns("Logged in with a form; redirects to `next`")},
    extra={**PUBLIC, "requestBody": {"required": True, "content": {JSON: _CONTENT, _FORM: _CONTENT}}},
)
async def log_in(request: Request) -> Response:
    """Open a session with a token, sent as JSON or as a form. A form is answered with a redirect to `next`, a path of this server,
    or back to the login page."""
    fields, is_form = await _given(request)
    secret = fields.get("token")
    if not isinstance(secret, str):
        raise InvalidInput("Send the token, as the field `token` of a form or of a JSON object.")
    try:
        cookie, session = await state_of(request).callers.log_in(request, secret)
    except Unauthorized:
        if not is_form:
            raise
        return RedirectResponse(f"/login?{urlencode({'next': _local(fields.get('next')), 'refused': ''})}", 303)
    answer = RedirectResponse(_local(fields.get("next")), 303) if is_form else json_response(_caller(session.access, session.csrf))
    return _with_session(request, answer, cookie)


def _with_session(request: Request, answer: Response, cookie: str) -> Response:
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, cookie, max_age=SESSION_FOR, path="/", httponly=True, samesite="strict", secure=secure)
    return answer


@ROUTES.add(
    "GET",
    "/sign-in",
    "session_sign_in",
    "Sign in with a link",
    {200: Returns("Signed in; the browser goes on to the dashboard", media=("text/html",)), 303: Returns("The link is not valid")},
    extra={**PUBLIC, "parameters": [{"name": "code", "in": "query", "required": True, "schema": {"type": "string"}}]},
)
async def sign_in(request: Request) -> Response:
    """Open a session with the link that the server printed when it started; it is valid once, for 15 minutes."""
    try:
        cookie = await state_of(request).callers.sign_in(request, request.query_params.get("code", ""))
    except Unauthorized:
        return RedirectResponse("/login?refused", 303)
    # not a redirect: after a click on another site's page, such as a terminal in a browser, it would not carry the strict cookie
    page = Response("Signed in.", headers={"Refresh": "0; url=/", "Cache-Control": "no-store"}, media_type="text/html")
    return _with_session(request, page, cookie)


@ROUTES.add("POST", "/logout", "session_log_out", "Log out", {204: Returns("Done")}, extra=PUBLIC)
async def log_out(request: Request) -> Response:
    """Close the session, if there is one. A browser is redirected to the login page."""
    await state_of(request).callers.log_out(request)
    is_page = "text/html" in request.headers.get("accept", "")
    answer = RedirectResponse("/login", 303) if is_page else Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@ROUTES.add("GET", "/session", "session_show", "Show the caller", {200: Returns("Done", (Caller,))})
async def show_session(request: Request) -> Response:
    """The caller behind the token or session, and its access."""
    state = state_of(request)
    access = await state.access(request)
    session = await state.callers.find_session(request) if access.session_id is not None else None
    return json_response(_caller(access, None if session is None else session.csrf))


def _caller(access: Any, csrf: str | None) -> Caller:
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
    """The path if it is on this server, otherwise the start page."""
    ok = isinstance(place, str) and place.startswith("/") and not place.startswith("//") and "\\" not in place
    return place if ok and place.isprintable() else "/"
