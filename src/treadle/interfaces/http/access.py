"""Authentication of callers: by a token, or by a session's cookie with its CSRF token.

A server is open, so that callers need neither, only if it was started so: never because of its tokens, its address or a
caller's. Browsers run foreign code on the machine of an open server, so it answers only under loopback names (against DNS
rebinding), to requests that do not declare a proxy, and refuses changes from pages of another origin.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import Request

from treadle.engine import Engine
from treadle.interfaces.http.oauth import is_jwt, make_issuer
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.kernel.access.sessions import SessionAccess
from treadle.model.access import OPEN, Access
from treadle.model.errors import Forbidden, TreadleError, Unauthorized

COOKIE = "treadle_session"
CSRF_HEADER = "X-CSRF-Token"
SIGN_IN_FOR = 15 * 60.0
"""Seconds for which a sign-in link is valid."""

_PROXY_HEADERS = frozenset({"forwarded", "via", "x-real-ip"})
"""Headers that only proxies add, besides those that start with `X-Forwarded-`."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class CsrfRefused(Forbidden):
    """A request with a session changes something, but has no CSRF token."""

    code = "csrf_refused"

    def __init__(self) -> None:
        TreadleError.__init__(self, f"A session that changes something must send its CSRF token in the header {CSRF_HEADER}.")


class CrossOrigin(Forbidden):
    """A page of another origin tries to change something."""

    code = "cross_origin"

    def __init__(self) -> None:
        TreadleError.__init__(self, "The request came from a page of another origin; only pages of this server may make changes.")


class HostNotAllowed(Forbidden):
    """An open server was called under a name that is not loopback, or through a proxy."""

    code = "host_not_allowed"

    def __init__(self) -> None:
        TreadleError.__init__(
            self,
            "This server is open, so it answers only as localhost or 127.0.0.1, and not through a proxy. Start it without --open, "
            "and use a token.",
        )


@dataclass(slots=True)
class SignInLink:
    """A code that opens one session, once and until `until` on the process's clock."""

    code: str
    secret: str = field(repr=False)
    """The secret of the token that the session belongs to."""
    until: float


class Callers:
    """Determines the access of requests. One per server."""

    def __init__(self, engine: Engine, *, open_access: bool = False) -> None:
        self._engine = engine
        self.open_access = open_access
        """Whether callers need no token."""
        self.logins = FailedLogins(engine.kernel.clock)
        self.issuer = make_issuer(engine.kernel.settings, engine.kernel.clock)
        self._link: SignInLink | None = None

    def offer_sign_in(self, secret: str) -> str:
        """Return a code that signs a browser in with the token of that secret, once, within `SIGN_IN_FOR`."""
        code = base64.urlsafe_b64encode(self._engine.kernel.ids.secret()).rstrip(b"=").decode()
        self._link = SignInLink(code, secret, self._engine.kernel.clock.monotonic() + SIGN_IN_FOR)
        return code

    async def sign_in(self, request: Request, code: str) -> str:
        """Open a session with the code of the link and return its cookie; `Unauthorized` if it is wrong, used or too old."""
        address = address_of(request)
        self.logins.check(address)
        link, now = self._link, self._engine.kernel.clock.monotonic()
        if link is None or not hmac.compare_digest(code.encode(), link.code.encode()) or now >= link.until:
            self.logins.failed(address)
            raise Unauthorized("unknown")
        self._link = None
        opened = await self._engine.kernel.sessions.open(link.secret)
        self.logins.succeeded(address)
        return opened.cookie

    async def find(self, request: Request, *, csrf: str | None = None) -> Access:
        """The access of the caller; `csrf` is the token of a form.

        Raises `Unauthorized`, or `Forbidden` for a request that a foreign page made.
        """
        if (secret := bearer(request)) is not None:
            return await self._of_token(request, secret)
        changes = request.method not in SAFE_METHODS
        if changes:
            check_origin(request)
        if (session := await self.find_session(request)) is not None:
            if changes and not session.accepts(csrf or request.headers.get(CSRF_HEADER, "")):
                raise CsrfRefused()
            return session.access
        if not self.open_access:
            raise Unauthorized("missing")
        check_local(request)
        return OPEN

    async def is_still_allowed(self, access: Access) -> bool:
        """Whether a caller with this access would still be admitted, according to the store and not to a cache."""
        if access.token_id is None:
            return self.open_access if access.expires_at is None else self._engine.kernel.clock.now() < access.expires_at
        try:
            await self._engine.kernel.tokens.find_access_of(access.token_id, afresh=True)
            if access.session_id is not None:
                await self._engine.kernel.sessions.check_open(access.session_id)
        except Unauthorized:
            return False
        return True

    async def find_session(self, request: Request) -> SessionAccess | None:
        """The session of the request's cookie, or None. An ended session raises `Unauthorized` unless the server is open."""
        refusal: Unauthorized | None = None
        for cookie in _session_cookies(request):
            try:
                return await self._engine.kernel.sessions.find(cookie)
            except Unauthorized as error:
                refusal = error
        if refusal is None or self.open_access:
            return None
        raise refusal

    async def log_in(self, request: Request, secret: str) -> tuple[str, SessionAccess]:
        """Open a session with a token; returns its cookie and its access."""
        check_origin(request)
        address = address_of(request)
        self.logins.check(address)
        try:
            opened = await self._engine.kernel.sessions.open(secret)
        except Unauthorized:
            self.logins.failed(address)
            raise
        self.logins.succeeded(address)
        return opened.cookie, SessionAccess(opened.access, opened.csrf)

    async def log_out(self, request: Request) -> None:
        """Close the session of the request, if it has one. Pages of another origin cannot do this."""
        check_origin(request)
        for cookie in _session_cookies(request):
            await self._engine.kernel.sessions.close(cookie)

    async def _of_token(self, request: Request, secret: str) -> Access:
        if self.issuer is not None and is_jwt(secret):
            return await self.issuer.find_access(secret)
        try:
            return await self._engine.kernel.tokens.find_access(secret)
        except Unauthorized:
            address = address_of(request)
            self.logins.check(address)
            self.logins.failed(address)
            raise


def bearer(request: Request) -> str | None:
    """The token in the request, or None. The value of another scheme counts as an unknown token."""
    given = request.headers.get("Authorization")
    if given is None:
        return None
    scheme, _, secret = given.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else given


def address_of(request: Request) -> str:
    """The address of the caller; behind a trusted proxy, the one that it reports."""
    return request.client.host if request.client is not None else ""


def check_local(request: Request) -> None:
    """Raise `HostNotAllowed` unless the server was called directly and under a loopback name."""
    proxied = any(name in _PROXY_HEADERS or name.startswith("x-forwarded-") for name in request.headers)
    if proxied or not is_loopback_name(_host_of(f"//{request.headers.get('Host', '')}")):
        raise HostNotAllowed()


def check_origin(request: Request) -> None:
    """Raise `CrossOrigin` if a browser reports that a page of another site made the request."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        raise CrossOrigin()
    origin = request.headers.get("Origin")
    if origin is not None and origin.lower().partition("://")[2] != request.headers.get("Host", "").lower():
        raise CrossOrigin()


def is_loopback_name(host: str) -> bool:
    """Whether the name can only mean this machine."""
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


def _session_cookies(request: Request) -> list[str]:
    """The cookies of sessions: a browser that is logged in to two namespaces sends both below the path of one of them."""
    parts = (part.strip().partition("=") for header in request.headers.getlist("cookie") for part in header.split(";"))
    return [value for name, _, value in parts if name == COOKIE and value]
