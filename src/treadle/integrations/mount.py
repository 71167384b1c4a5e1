"""The HTTP API and the dashboard below a path of another ASGI application, with that application's own authentication."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from treadle.engine import Engine
from treadle.interfaces.http.access import SAFE_METHODS, Callers, check_csrf, check_origin
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.namespaces import Prefixed
from treadle.interfaces.web.site import add_pages
from treadle.kernel.access.sessions import SessionAccess
from treadle.model.access import Access, granted, parse_scopes
from treadle.model.errors import InvalidInput

CSRF_COOKIE = "treadle_csrf"

User = str | tuple[str, Iterable[str]]
"""The name of a user, shown as the actor of transitions; with the scopes of the user, or else those of the mount."""

Authenticate = Callable[[Request], User | Awaitable[User | None] | None]
"""Returns the user of a request; None: the caller needs a token of Treadle's. May raise an `HTTPException`, such as a redirect."""


class AppCallers(Callers):
    """Callers that the application has authenticated, and those with a token or a session of Treadle's."""

    async def find(self, request: Request, *, csrf: str | None = None) -> Access:
        """The access of the application's user, otherwise as for a server."""
        if (session := _session(request)) is None:
            return await super().find(request, csrf=csrf)
        if request.method not in SAFE_METHODS:
            check_origin(request)
        check_csrf(request, session, csrf)
        return session.access

    async def find_session(self, request: Request) -> SessionAccess | None:
        """The application's user with the CSRF token of the browser, or the session of Treadle's cookie."""
        return _session(request) or await super().find_session(request)

    async def is_still_allowed(self, access: Access) -> bool:
        """Users of the application are checked by each request."""
        return access.token_id is None or await super().is_still_allowed(access)


def _session(request: Request) -> SessionAccess | None:
    session: SessionAccess | None = request.scope.get("treadle.session")
    return session


class Mounted:
    """An ASGI application with the API and the dashboard of an engine, for `mount` of another application."""

    def __init__(self, engine: Engine, *, authenticate: Authenticate | None = None, scopes: Iterable[str] = ("admin",)) -> None:
        self._engine = engine
        self._authenticate = authenticate
        self._scopes = granted(parse_scopes(scopes))
        app = make_app(engine, more=(add_pages,))
        self._state = state_of(app)
        self._state.callers = callers = AppCallers(engine)
        self._state.waiters._is_still_allowed = callers.is_still_allowed
        self._app = Prefixed(app)

    async def close(self) -> None:
        """End long polls and streams, so that the server can stop."""
        await self._state.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            access = await self._find_user(request)
        except HTTPException as error:  # the application's answer, such as a redirect to its login page
            await PlainTextResponse(error.detail, error.status_code, error.headers)(scope, receive, send)
            return
        if access is not None:
            csrf = request.cookies.get(CSRF_COOKIE, "")
            if not re.fullmatch(r"[\w-]{43}", csrf):
                csrf = base64.urlsafe_b64encode(self._engine.kernel.ids.secret()).decode().rstrip("=")
                secure = "; secure" if request.url.scheme == "https" else ""
                path = scope.get("root_path", "") or "/"
                send = _with_cookie(send, f"{CSRF_COOKIE}={csrf}; path={path}; httponly; samesite=strict{secure}")
            scope = {**scope, "treadle.session": SessionAccess(access, csrf)}
        await self._app(scope, receive, send)

    async def _find_user(self, request: Request) -> Access | None:
        if self._authenticate is None:
            return None
        user: Any = self._authenticate(request)
        if inspect.isawaitable(user):
            user = await user
        if user is None:
            return None
        name, scopes = (user, None) if isinstance(user, str) else user
        if not isinstance(name, str) or not name:
            raise InvalidInput("`authenticate` returns the name of a user, a pair of the name and its scopes, or None.")
        return Access(name, self._scopes if scopes is None else granted(parse_scopes(scopes)))


def _with_cookie(send: Send, cookie: str) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"set-cookie", cookie.encode())]
        await send(message)

    return sent
