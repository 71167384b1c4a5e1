"""Access tokens of an external OAuth issuer, and the metadata by which clients find that issuer (RFC 9728).

A token is a JWT that the issuer signed for this server: issuer, audience, expiry and an asymmetric signature are checked against
the issuer's keys, which are loaded with the first token and again when an unknown key appears. Scopes are ours with the prefix
`treadle:`; others mean nothing here.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from treadle.model.access import Access, Scope, granted
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, MissingDependency, Unauthorized
from treadle.model.text import safe_logger
from treadle.settings import Settings

_LOG = safe_logger("treadle.http")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Accepted signatures: asymmetric ones alone. `none` and shared secrets are not among them."""
PREFIX = "treadle:"
OFFERED = (Scope.READ, Scope.OPERATE, Scope.PUBLISH)
"""The scopes that metadata suggests to clients; a token may have others."""
PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"

_LONGEST_TOKEN, _LONGEST_SUBJECT = 16 * 1024, 200
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

        if len(token) > _LONGEST_TOKEN:
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
        except (JoseError, ValueError, TypeError, OSError) as error:
            _LOG.info("a token of the OAuth issuer was refused: %s", type(error).__name__)
            raise Unauthorized("wrong") from None
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject.isprintable() or not 0 < len(subject) <= _LONGEST_SUBJECT:
            raise Unauthorized("malformed")
        return Access(f"oauth:{subject}", _scopes(claims), expires_at=int(claims["exp"]) * 1000)

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
    said = claims.get("scope", claims.get("scp", ()))
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
    known = {f"{PREFIX}{scope}": scope for scope in Scope}
    return granted(known[word] for word in words if isinstance(word, str) and word in known)


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
    keys = [each for each in _get(metadata["jwks_uri"])["keys"] if each.get("kty") in ("RSA", "EC", "OKP")]
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
        found = json.loads(answer.read(_LARGEST_ANSWER))
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found
