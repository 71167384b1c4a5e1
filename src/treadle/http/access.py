"""Who calls: whoever shows a token, a session's cookie with its CSRF token, or anybody while there are no tokens.

A server without a live token is open to its own machine. Browsers run other people's code on that machine, so an open server
answers only under names of loopback (a page cannot make its own name point here), nothing that came through a proxy, and no
page of another origin that wants to change something. With the first token it closes within `LOOK_EVERY` seconds, and stays
closed: that the last token expires opens nothing.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from fastapi import Request

from treadle.engine import Engine
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.kernel.access.sessions import SessionAccess
from treadle.model.access import OPEN, Access
from treadle.model.errors import Forbidden, TreadleError, Unauthorized

COOKIE = "treadle_session"
CSRF_HEADER = "X-CSRF-Token"
LOOK_EVERY = 1.0
"""Seconds between two looks for a first token while the server is open."""

_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})
"""Headers that only something between the caller and the server adds, beside all that begin with `X-Forwarded-`."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class CsrfRefused(Forbidden):
    """A session wants to change something without its CSRF token."""

    code = "csrf_refused"

    def __init__(self) -> None:
        TreadleError.__init__(self, f"What a session changes needs its CSRF token, in the header {CSRF_HEADER}.")


class CrossOrigin(Forbidden):
    """A page of another origin wants to change something."""

    code = "cross_origin"

    def __init__(self) -> None:
        TreadleError.__init__(self, "This came from a page of another origin; only pages of this server may change something.")


class HostNotAllowed(Forbidden):
    """An open server was called by another name than one of loopback, or through a proxy."""

    code = "host_not_allowed"

    def __init__(self) -> None:
        TreadleError.__init__(
            self,
            "This server has no tokens, so it answers only on its own machine: as localhost or 127.0.0.1, and not through a proxy. "
            "`treadle token create` makes a token.",
        )


class Callers:
    """Finds out what a request may do. One for each server."""

    def __init__(self, engine: Engine, *, may_be_open: bool = True) -> None:
        self._engine = engine
        self._closed = not may_be_open
        self._looked: float | None = None
        self.logins = FailedLogins(engine.kernel.clock)

    async def is_open(self) -> bool:
        """Whether callers need no token."""
        now = self._engine.kernel.clock.monotonic()
        if not self._closed and (self._looked is None or now - self._looked >= LOOK_EVERY):
            self._closed = await self._engine.tokens.any_live()
            self._looked = now
        return not self._closed

    async def find(self, request: Request, *, csrf: str | None = None) -> Access:
        """What the caller may do; `Unauthorized`, or `Forbidden` where a browser is made to call. `csrf`: that of a form."""
        if (secret := bearer(request)) is not None:
            return await self._of_token(request, secret)
        changes = request.method not in SAFE_METHODS
        if changes:
            check_origin(request)
        if (session := await self.find_session(request)) is not None:
            if changes and not session.accepts(csrf or request.headers.get(CSRF_HEADER, "")):
                raise CsrfRefused()
            return session.access
        if not await self.is_open():
            raise Unauthorized("missing")
        check_local(request)
        return OPEN

    async def would_let_in(self, access: Access) -> bool:
        """Whether who was found to have that access would still be let in; the store is asked, not what was seen lately."""
        if access.token_id is None:
            return await self.is_open()
        try:
            await self._engine.tokens.find_access_of(access.token_id, afresh=True)
            if access.session_id is not None:
                await self._engine.sessions.check_open(access.session_id)
        except Unauthorized:
            return False
        return True

    async def find_session(self, request: Request) -> SessionAccess | None:
        """The session whose cookie came with the request; None: none did. A cookie that has ended counts while nothing is open."""
        cookie = request.cookies.get(COOKIE)
        if not cookie:
            return None
        try:
            return await self._engine.sessions.find(cookie)
        except Unauthorized:
            if await self.is_open():
                return None
            raise

    async def log_in(self, request: Request, secret: str) -> tuple[str, SessionAccess]:
        """Open a session for who shows a token: its cookie, and what it grants."""
        check_origin(request)
        address = address_of(request)
        self.logins.check(address)
        try:
            opened = await self._engine.sessions.open(secret)
        except Unauthorized:
            self.logins.failed(address)
            raise
        self.logins.succeeded(address)
        self._closed = True
        return opened.cookie, SessionAccess(opened.access, opened.csrf)

    async def log_out(self, request: Request) -> None:
        """Close the session of the request, if it has one. It takes nothing but what a page of another origin cannot send."""
        check_origin(request)
        if cookie := request.cookies.get(COOKIE):
            await self._engine.sessions.close(cookie)

    async def _of_token(self, request: Request, secret: str) -> Access:
        try:
            found = await self._engine.tokens.find_access(secret)
        except Unauthorized:
            address = address_of(request)
            self.logins.check(address)
            self.logins.failed(address)
            raise
        self._closed = True
        return found


def bearer(request: Request) -> str | None:
    """What was shown as a token; None if nothing was. Other schemes are shown tokens too, which nobody knows."""
    shown = request.headers.get("Authorization")
    if shown is None:
        return None
    scheme, _, secret = shown.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else shown


def address_of(request: Request) -> str:
    """Where the request came from; behind a proxy that is trusted, what that says."""
    return request.client.host if request.client is not None else ""


def check_local(request: Request) -> None:
    """`HostNotAllowed` unless the server was called by a name of loopback, and directly."""
    proxied = any(name in _OF_PROXIES or name.startswith("x-forwarded-") for name in request.headers)
    if proxied or not is_loopback_name(_host_of(f"//{request.headers.get('Host', '')}")):
        raise HostNotAllowed()


def check_origin(request: Request) -> None:
    """`CrossOrigin` if a browser says that another site's page made this request; programs say nothing of the kind."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        raise CrossOrigin()
    origin = request.headers.get("Origin")
    if origin is not None and origin.lower().partition("://")[2] != request.headers.get("Host", "").lower():
        raise CrossOrigin()


def is_loopback_name(host: str) -> bool:
    """Whether that can mean nothing but this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
