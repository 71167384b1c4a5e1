"""Authentication of callers: by a token, or by a session's cookie with its CSRF token.

A server is open, so that callers need neither, only if it was started so: never because of its tokens, its address or a
caller's. Browsers run foreign code on the machine of an open server, so it answers only under loopback names (against DNS
rebinding), to requests that do not declare a proxy, and refuses changes from pages of another origin.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import json
import urllib.request
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from treadle.engine import Engine
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.kernel.access.sessions import SessionAccess
from treadle.model.access import OPEN, Access, Scope, granted
from treadle.model.clock import Clock
from treadle.model.errors import Forbidden, InvalidInput, MissingDependency, TreadleError, Unauthorized
from treadle.model.text import safe_logger
from treadle.settings import Settings

COOKIE = "treadle_session"
CSRF_HEADER = "X-CSRF-Token"
SIGN_IN_FOR = 15 * 60.0
"""Seconds for which a sign-in link is valid."""

_PROXY_HEADERS = frozenset({"forwarded", "via", "x-real-ip"})
"""Headers that only proxies add, besides those that start with `X-Forwarded-`."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestRefused(Forbidden):
    """A request that its origin, its host or its signature rules out, whatever the caller's scopes are."""

    def __init__(self, message: str, *, code: str) -> None:
        TreadleError.__init__(self, message, code=code)


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
        link, now = self._link, self._engine.kernel.clock.monotonic()
        if link is None or not hmac.compare_digest(code.encode(), link.code.encode()) or now >= link.until:
            self.logins.failed(address_of(request))
            raise Unauthorized("unknown")
        self._link = None
        return (await self._engine.kernel.sessions.open(link.secret)).cookie

    async def find(self, request: Request, *, csrf: str | None = None) -> Access:
        """The access of the caller; `csrf` is the token of a form.

        Raises `Unauthorized`, or `Forbidden` for a request that a foreign page made.
        """
        if (secret := bearer(request)) is not None:
            return await self._of_token(request, secret)
        if request.method not in SAFE_METHODS:
            check_origin(request)
        if (session := await self.find_session(request)) is not None:
            check_csrf(request, session, csrf)
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
        try:
            opened = await self._engine.kernel.sessions.open(secret)
        except Unauthorized:
            self.logins.failed(address_of(request))
            raise
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
            self.logins.failed(address_of(request))
            raise


def bearer(request: Request) -> str | None:
    """The token in the request, or None. The value of another scheme counts as an unknown token."""
    authorization = request.headers.get("Authorization")
    if authorization is None:
        return None
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else authorization


def address_of(request: Request) -> str:
    """The address of the caller; behind a trusted proxy, the one that it reports."""
    return request.client.host if request.client is not None else ""


def check_csrf(request: Request, session: SessionAccess, csrf: str | None) -> None:
    """Refuse a change without the CSRF token of the session, in a form (`csrf`) or a header."""
    if request.method not in SAFE_METHODS and not session.accepts(csrf or request.headers.get(CSRF_HEADER, "")):
        message = f"A session that changes something must send its CSRF token in the header {CSRF_HEADER}."
        raise RequestRefused(message, code="csrf_refused")


def check_local(request: Request) -> None:
    """Raise `RequestRefused` unless the server was called directly and under a loopback name."""
    proxied = any(name in _PROXY_HEADERS or name.startswith("x-forwarded-") for name in request.headers)
    if proxied or not is_loopback_name(_host_of(f"//{request.headers.get('Host', '')}")):
        raise RequestRefused(
            "This server is open, so it answers only as localhost or 127.0.0.1, and not through a proxy. Start it without --open, "
            "and use a token.",
            code="host_not_allowed",
        )


def check_origin(request: Request) -> None:
    """Raise `RequestRefused` if a browser reports that a page of another site made the request."""
    is_foreign = request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    if is_foreign or (origin is not None and origin.lower().partition("://")[2] != request.headers.get("Host", "").lower()):
        message = "The request came from a page of another origin; only pages of this server may make changes."
        raise RequestRefused(message, code="cross_origin")


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


_LOG = safe_logger("treadle.http")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Accepted signatures: asymmetric ones alone. `none` and shared secrets are not among them."""
PREFIX = "treadle:"
OFFERED = (Scope.READ, Scope.OPERATE, Scope.PUBLISH)
"""The scopes that metadata suggests to clients; a token may have others."""
PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"

_TOKEN_LIMIT, _SUBJECT_LIMIT = 16 * 1024, 200
_EXPIRY_LIMIT = 253_402_300_800
"""Seconds since 1970 of the year 10000, which no instant of ours reaches."""
_LARGEST_ANSWER = 1024 * 1024
_TIMEOUT = 5.0
_LEEWAY = 30
_AGAIN_AFTER, _FRESH_FOR, _MISSING_FOR = 30.0, 3600.0, 5.0


class Issuer:
    """The issuer that the settings name, as a verifier of its tokens."""

    def __init__(self, url: str, audience: str, clock: Clock) -> None:
        self.url, self.audience = url, audience
        self._clock = clock
        self._keys: Any = None
        self._loaded_at: float | None = None
        self._loading = asyncio.Lock()

    async def find_access(self, token: str) -> Access:
        """The access of a token; raises `Unauthorized` for any that the issuer did not sign for this server, or that has ended."""
        from joserfc import jwt
        from joserfc.errors import ExpiredTokenError, JoseError

        if len(token) > _TOKEN_LIMIT:
            raise Unauthorized("malformed")
        rules = jwt.JWTClaimsRegistry(
            now=self._clock.now() // 1000,
            leeway=_LEEWAY,
            iss={"essential": True, "value": self.url},
            aud={"essential": True, "value": self.audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            claims = await self._claims(token)
            rules.validate(claims)
        except ExpiredTokenError:
            raise Unauthorized("expired") from None
        except (JoseError, ValueError, TypeError, OSError, RecursionError) as error:
            _LOG.info("a token of the OAuth issuer was refused: %s", type(error).__name__)
            raise Unauthorized("wrong") from None
        subject, expires = claims["sub"], claims["exp"]
        if not expires < _EXPIRY_LIMIT:
            raise Unauthorized("malformed")
        if not isinstance(subject, str) or not subject.isprintable() or not 0 < len(subject) <= _SUBJECT_LIMIT:
            raise Unauthorized("malformed")
        return Access(f"oauth:{subject}", _scopes(claims), expires_at=int(expires) * 1000)

    async def _claims(self, token: str) -> dict[str, Any]:
        """The claims, with a verified signature."""
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError

        keys = await self._find_keys(_FRESH_FOR)
        try:
            return jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        except (BadSignatureError, InvalidKeyIdError, ValueError):  # perhaps the issuer has new keys
            newer = await self._find_keys(_AGAIN_AFTER)
            if newer is keys:
                raise
            return jwt.decode(token, newer, algorithms=ALGORITHMS).claims

    async def _find_keys(self, fresh_for: float) -> Any:
        async with self._loading:
            if self._keys is None:
                fresh_for = _MISSING_FOR
            if self._loaded_at is None or self._clock.monotonic() - self._loaded_at >= fresh_for:
                try:
                    self._keys = await asyncio.to_thread(_load_keys, self.url)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    _LOG.warning("the keys of the OAuth issuer %s cannot be loaded: %s", self.url, error)
                self._loaded_at = self._clock.monotonic()
            if self._keys is None:
                raise Unauthorized("unverifiable")
            return self._keys


def make_issuer(settings: Settings, clock: Clock) -> Issuer | None:
    """The issuer of the settings; None if they name none."""
    if not settings.oauth_issuer:
        return None
    audience = settings.oauth_audience or (f"{settings.public_url}/mcp" if settings.public_url else "")
    if not audience:
        raise InvalidInput("TREADLE_OAUTH_ISSUER needs TREADLE_PUBLIC_URL or TREADLE_OAUTH_AUDIENCE: the URL that tokens are for.")
    check_secure(settings.oauth_issuer, "TREADLE_OAUTH_ISSUER")
    if find_spec("joserfc") is None:
        raise MissingDependency("TREADLE_OAUTH_ISSUER needs the package authlib: pip install 'treadle[oauth]'.")
    return Issuer(settings.oauth_issuer, audience, clock)


def add_oauth(app: Starlette, issuer: Issuer | None) -> None:
    """Serve the metadata, if there is an issuer."""
    if issuer is None:
        return
    parts = urlsplit(issuer.audience)
    origin = f"{parts.scheme}://{parts.netloc}"
    app.state.resource_metadata = f"{origin}{PROTECTED_RESOURCE}{parts.path.rstrip('/')}"
    document = {
        "resource": issuer.audience,
        "authorization_servers": [issuer.url],
        "scopes_supported": [f"{PREFIX}{scope}" for scope in OFFERED],
        "bearer_methods_supported": ["header"],
        "resource_name": "Treadle",
    }

    async def resource(request: Request) -> Response:
        return JSONResponse(document, headers={"Access-Control-Allow-Origin": "*", "Cache-Control": "max-age=300"})

    async def authorization_server(request: Request) -> Response:
        """Older clients look for the issuer's metadata here; it is the issuer that has it."""
        return RedirectResponse(_metadata_urls(issuer.url)[0], 302, {"Access-Control-Allow-Origin": "*"})

    paths = dict.fromkeys((PROTECTED_RESOURCE, f"{PROTECTED_RESOURCE}{parts.path.rstrip('/')}"))
    app.router.routes += [Route(path, resource) for path in paths]
    app.router.routes.append(Route(AUTHORIZATION_SERVER, authorization_server))


def is_jwt(secret: str) -> bool:
    """Whether a credential has the shape of a JWT; our own tokens do not."""
    return secret.count(".") == 2


def check_secure(url: str, what: str) -> None:
    """Raise `InvalidInput` unless the URL is https, or http on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")):
        raise InvalidInput(f"{what} must be an https URL, not {url!r}.")


def _scopes(claims: dict[str, Any]) -> frozenset[Scope]:
    scopes = claims.get("scope", claims.get("scp", ()))
    words = scopes.split() if isinstance(scopes, str) else scopes if isinstance(scopes, list) else ()
    by_name = {f"{PREFIX}{scope}": scope for scope in Scope}
    return granted(by_name[word] for word in words if isinstance(word, str) and word in by_name)


def _metadata_urls(issuer: str) -> list[str]:
    """The places of an issuer's metadata: RFC 8414, then OpenID Connect."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    return [f"{origin}{AUTHORIZATION_SERVER}{path}", f"{origin}{path}/.well-known/openid-configuration"]


def _load_keys(issuer: str) -> Any:
    """Load the public keys of the issuer; blocks."""
    from joserfc.jwk import KeySet

    metadata, failed = None, None
    for url in _metadata_urls(issuer):
        try:
            metadata = _get(url)
            break
        except (OSError, ValueError) as error:
            failed = error
    if metadata is None:
        raise failed or ValueError("it has no metadata")
    if metadata["issuer"] != issuer:
        raise ValueError(f"its metadata names another issuer, {metadata['issuer']!r}")
    check_secure(metadata["jwks_uri"], "jwks_uri")
    keys = [key for key in _get(metadata["jwks_uri"])["keys"] if key.get("kty") in ("RSA", "EC", "OKP")]
    if not keys:
        raise ValueError("it has no public keys")
    return KeySet.import_key_set({"keys": keys})


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to the same scheme, host and port."""

    def redirect_request(self, req: urllib.request.Request, *args: Any) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(args[-1])
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise ValueError(f"{req.full_url} redirects to another origin, {after.scheme}://{after.netloc}")
        return super().redirect_request(req, *args)


def _get(url: str) -> dict[str, Any]:
    with urllib.request.build_opener(_SameOrigin).open(url, timeout=_TIMEOUT) as answer:
        document = json.loads(answer.read(_LARGEST_ANSWER))
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document
