"""Tokens of an external issuer: found by metadata, verified by its keys, and mapped to our scopes."""

from __future__ import annotations

import base64
import io
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPMessage
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
import pytest
import pytest_asyncio
from joserfc import jws, jwt
from joserfc.jwk import OctKey
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.oauth2 import AuthorizationCodeResult
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl
from starlette.applications import Starlette
from tests.limits import BOUND
from tests.mcp.issuer import Issuer
from tests.mcp.transports import told

from treadle import Engine
from treadle.interfaces.cli.mcp_mount import add_mcp
from treadle.interfaces.http import access as oauth
from treadle.interfaces.http.access import Issuer as Verifier
from treadle.interfaces.http.app import make_app
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput, Unauthorized
from treadle.settings import Settings
from treadle.testing import ManualClock

PUBLIC = "https://work.example.org"
RESOURCE = f"{PUBLIC}/mcp"
BACK = "http://127.0.0.1:9/callback"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as made:
        yield made


@pytest_asyncio.fixture
async def app(issuer: Issuer) -> AsyncIterator[Starlette]:
    async with Engine("memory://", settings=Settings(public_url=PUBLIC, oauth_issuer=issuer.url)) as engine:
        made = make_app(engine, more=(add_mcp,))
        yield made
        await made.state.treadle.close()


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=PUBLIC, timeout=BOUND)


class Kept:
    """The storage of a client."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def test_a_hosted_client_finds_the_issuer_signs_in_and_calls_a_tool(app: Starlette, issuer: Issuer) -> None:
    answered: dict[str, list[str]] = {}

    async def redirect(url: str) -> None:
        async with httpx.AsyncClient(timeout=BOUND) as browser:
            answered.update(parse_qs(urlsplit((await browser.get(url)).headers["Location"]).query))

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=answered["code"][0], state=answered["state"][0])

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(BACK)], client_name="hosted")
    kept = Kept()
    provider = OAuthClientProvider(RESOURCE, metadata, kept, redirect, callback)
    async with (
        httpx2.AsyncClient(auth=provider, timeout=BOUND, mounts={PUBLIC: httpx2.ASGITransport(app)}) as http,
        Client(streamable_http_client(RESOURCE, http_client=http)) as client,
    ):
        tools = {each.name for each in (await client.list_tools()).tools}
        assert told(await client.call_tool("run_list", {}))["runs"] == []
    assert ("afl_retry_step" in tools, "flow_publish" in tools) == (True, True)
    assert kept.tokens is not None
    assert kept.tokens.scope == "treadle:read treadle:operate treadle:publish"


async def test_the_metadata_and_the_challenge_name_the_issuer(app: Starlette, issuer: Issuer) -> None:
    async with client_of(app) as http:
        for path in ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"):
            told = (await http.get(path, headers={"Host": "evil.example.org"})).json()
            assert (told["resource"], told["authorization_servers"]) == (RESOURCE, [issuer.url])
            assert told["scopes_supported"] == ["treadle:read", "treadle:operate", "treadle:publish"]
        sent = await http.get("/.well-known/oauth-authorization-server?next=https://evil.example.org")
        assert (sent.status_code, sent.headers["Location"]) == (302, f"{issuer.url}/.well-known/oauth-authorization-server")
        for path in ("/mcp", "/v1/runs"):
            refused = await http.request("POST" if path == "/mcp" else "GET", path)
            assert refused.status_code == 401
            assert f'resource_metadata="{PUBLIC}/.well-known/oauth-protected-resource/mcp"' in refused.headers["WWW-Authenticate"]


async def test_only_tokens_that_the_issuer_signed_for_this_server_are_accepted(app: Starlette, issuer: Issuer) -> None:
    now, good = issuer.now(), issuer.token(issuer.now(), RESOURCE)
    head, body, signature = good.split(".")

    def coded(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    with Issuer() as other:
        shared = OctKey.import_key(json.dumps(issuer.key.as_dict(private=False)))
        claims = {"iss": issuer.url, "aud": RESOURCE, "sub": "ada", "exp": now + 60, "scope": "treadle:admin"}
        bad = {
            "other audience": issuer.token(now, "https://elsewhere.example.org/mcp"),
            "no audience": issuer.token(now, RESOURCE, aud=None),
            "other issuer": issuer.token(now, RESOURCE, iss="https://elsewhere.example.org"),
            "key of another": other.token(now, RESOURCE, iss=issuer.url),
            "expired": issuer.token(now - 7200, RESOURCE),
            "no expiry": issuer.token(now, RESOURCE, exp=None),
            "not yet": issuer.token(now, RESOURCE, nbf=now + 3600),
            "no subject": issuer.token(now, RESOURCE, sub=None),
            "odd subject": issuer.token(now, RESOURCE, sub="a\nb"),
            "alg none": f"{coded({'alg': 'none'})}.{body}.",
            "alg none, signed": f"{coded({'alg': 'none'})}.{body}.{signature}",
            "shared secret": jwt.encode({"alg": "HS256", "kid": issuer.key.kid}, claims, shared, algorithms=["HS256"]),
            "changed": f"{head}.{coded(claims)}.{signature}",
            "not a token": "a.b.c",
            "huge": f"{head}.{body}.{'x' * 20_000}",
        }
    async with client_of(app) as http:
        for name, token in bad.items():
            answer = await http.get("/v1/runs", headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), name
        assert (await http.get("/v1/runs", headers={"Authorization": f"Bearer {good}"})).status_code == 200
        assert (await http.get("/v1/runs", params={"access_token": good})).status_code == 401
    assert issuer.key_requests == 1


@pytest.mark.parametrize("scope", ["", "read", "treadle:everything", *(f"treadle:{each}" for each in Scope)])
async def test_scopes_of_the_issuer_count_only_with_our_prefix(app: Starlette, issuer: Issuer, scope: str) -> None:
    token = issuer.token(issuer.now(), RESOURCE, scope)
    headers = {"Authorization": f"Bearer {token}"}
    own = Scope(scope.removeprefix("treadle:")) if scope.removeprefix("treadle:") in set(Scope) and ":" in scope else None
    async with client_of(app) as http:
        read = await http.get("/v1/runs", headers=headers)
        assert read.status_code == (403 if own in (None, Scope.ENQUEUE, Scope.WORK) else 200)
        added = await http.post("/v1/objectives", json={"title": "a goal"}, headers=headers)
        assert added.status_code == (201 if own in (Scope.OPERATE, Scope.ADMIN) else 403)
        if own is Scope.ADMIN:
            assert added.json()["created_by"] == "oauth:ada"


async def test_new_keys_of_the_issuer_are_found_and_unknown_ones_do_not_flood_it(issuer: Issuer) -> None:
    clock = ManualClock()
    verifier = Verifier(issuer.url, RESOURCE, clock)

    def token() -> str:
        return issuer.token(clock.now() // 1000, RESOURCE)

    old = token()
    assert (await verifier.find_access(old)).actor == "oauth:ada"
    issuer.rotate()
    for _ in range(3):
        with pytest.raises(Unauthorized):
            await verifier.find_access(token())
    assert issuer.key_requests == 1
    clock.advance(31)
    assert (await verifier.find_access(token())).may(Scope.READ)
    with pytest.raises(Unauthorized):
        await verifier.find_access(old)
    assert issuer.key_requests == 2
    issuer.__exit__()
    clock.advance(7200)
    assert (await verifier.find_access(token())).actor == "oauth:ada"  # with the keys that it has
    with pytest.raises(Unauthorized):
        await Verifier(issuer.url, RESOURCE, clock).find_access(token())


async def test_a_failing_issuer_is_not_retried_immediately(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = ManualClock(), []

    def fails(url: str) -> None:
        asked.append(url)
        raise OSError

    verifier = Verifier(issuer.url, RESOURCE, clock)
    monkeypatch.setattr(oauth, "_load_keys", fails)
    for _ in range(3):
        with pytest.raises(Unauthorized):
            await verifier.find_access(issuer.token(clock.now() // 1000, RESOURCE))
    assert len(asked) == 1
    monkeypatch.undo()
    clock.advance(6)
    assert (await verifier.find_access(issuer.token(clock.now() // 1000, RESOURCE))).actor == "oauth:ada"


@pytest.mark.parametrize(
    ("target", "follows"), [("https://a.example/b", True), ("http://a.example/b", False), ("https://b.example/b", False)]
)
def test_redirects_of_the_issuer_stay_at_its_origin(target: str, follows: bool) -> None:
    def redirected() -> Any:
        request = urllib.request.Request("https://a.example/a")
        return oauth._SameOrigin().redirect_request(request, io.BytesIO(), 302, "Found", HTTPMessage(), target)

    if follows:
        assert redirected().full_url == target
    else:
        with pytest.raises(ValueError, match="another origin"):
            redirected()


async def test_our_own_tokens_still_count_and_an_incomplete_setting_is_refused(app: Starlette, issuer: Issuer) -> None:
    made = await app.state.treadle.engine.kernel.tokens.create("ci", [Scope.READ])
    async with client_of(app) as http:
        assert (await http.get("/v1/runs", headers={"Authorization": f"Bearer {made.secret}"})).status_code == 200
    async with Engine("memory://", settings=Settings(oauth_issuer=issuer.url)) as engine:
        with pytest.raises(InvalidInput, match="TREADLE_PUBLIC_URL"):
            make_app(engine)
    async with Engine("memory://", settings=Settings(oauth_issuer="http://login.example.org", public_url=PUBLIC)) as engine:
        with pytest.raises(InvalidInput, match="https"):
            make_app(engine)
    async with Engine("memory://") as engine:
        plain = make_app(engine, more=(add_mcp,))
        async with client_of(plain) as http:
            assert (await http.get("/.well-known/oauth-protected-resource")).status_code == 404
            token = issuer.token(issuer.now(), RESOURCE)
            assert (await http.get("/v1/runs", headers={"Authorization": f"Bearer {token}"})).status_code == 401


ODD_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**11, 10**30, -(10**30), 1e300, float("inf"), float("nan"), 253_402_300_800),
    *("", "x", "\x00", "\ud800", "x" * 300, [], {}, [[]], {"a": 1}, ["treadle:read", 7, None], [{}]),
)


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat", "iss", "aud", "sub", "jti", "scope", "scp"])
async def test_odd_claims_of_signed_tokens_are_answered_and_no_error_of_the_server(app: Starlette, issuer: Issuer, claim: str):
    now = app.state.treadle.engine.kernel.clock.now() // 1000
    good = issuer.token(now, RESOURCE)
    async with client_of(app) as http:
        for value in ODD_VALUES[1:]:
            token = signed(issuer, {**claims_of(good), claim: value})
            answer = await http.get("/session", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code in (200, 401), (claim, value, answer.text)
            if claim == "exp":
                assert answer.status_code == (200 if value == 10**11 else 401), value


@pytest.mark.parametrize("name", ["kid", "typ", "alg", "crit", "b64", "zip", "jwk", "jku", "x5c", "cty"])
async def test_odd_headers_of_tokens_are_answered_and_no_error_of_the_server(app: Starlette, issuer: Issuer, name: str):
    now = app.state.treadle.engine.kernel.clock.now() // 1000
    head, body, signature = issuer.token(now, RESOURCE).split(".")
    async with client_of(app) as http:
        for value in ODD_VALUES:
            changed = encoded({**decoded(head), name: value})
            answer = await http.get("/session", headers={"Authorization": f"Bearer {changed}.{body}.{signature}"})
            assert answer.status_code == 401, (name, value, answer.text)


@pytest.mark.parametrize("nested", ["[" * 4000 + "]" * 4000, '{"a":' * 1500 + "1" + "}" * 1500], ids=["arrays", "objects"])
@pytest.mark.parametrize("part", ["header", "claims", "signed claims", "claim"])
async def test_deeply_nested_parts_of_tokens_are_refused(app: Starlette, issuer: Issuer, part: str, nested: str):
    good = issuer.token(app.state.treadle.engine.kernel.clock.now() // 1000, RESOURCE)
    head, body, signature = good.split(".")
    claims = nested if part == "signed claims" else json.dumps(claims_of(good)).removesuffix("}") + f', "scp": {nested}}}'
    deep = base64.urlsafe_b64encode(nested.encode()).rstrip(b"=").decode()
    token = {"header": f"{deep}.{body}.{signature}", "claims": f"{head}.{deep}.{signature}"}.get(part) or signed(issuer, claims)
    async with client_of(app) as http:
        assert (await http.get("/session", headers={"Authorization": f"Bearer {token}"})).status_code == 401


def claims_of(token: str) -> dict[str, Any]:
    return decoded(token.split(".")[1])


def decoded(part: str) -> dict[str, Any]:
    return dict(json.loads(base64.urlsafe_b64decode(part + "==")))


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def signed(issuer: Issuer, claims: dict[str, Any] | str) -> str:
    """A token of the issuer with any claims, which a library might refuse to sign."""
    header = {"alg": "ES256", "kid": issuer.key.kid, "typ": "at+jwt"}
    return jws.serialize_compact(header, (claims if isinstance(claims, str) else json.dumps(claims)).encode(), issuer.key)
