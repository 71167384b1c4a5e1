"""Every route for every kind of caller: made from the OpenAPI document, so that no route can be forgotten."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.http.conftest import Stage

from treadle.engine import Engine
from treadle.interfaces.cli.mcp_mount import add_mcp
from treadle.interfaces.http.access import COOKIE
from treadle.interfaces.http.app import api_document, make_app
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.routes import RouteTable
from treadle.interfaces.web.site import add_pages
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.model.access import Scope, granted
from treadle.testing import ManualClock

ID = "01935b8e-7c3a-7000-8000-000000000000"


@dataclass(frozen=True)
class Place:
    """A route, and who may use it."""

    method: str
    path: str
    public: bool
    scope: Scope | None
    for_lists: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def places() -> list[Place]:
    document = api_document()
    return [
        Place(
            method.upper(),
            path,
            said.get("security") == [],
            Scope(said["x-scope"]) if "x-scope" in said else None,
            said.get("x-task-lists", True),
        )
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    ]


PLACES = places()
GUARDED = [place for place in PLACES if not place.public]


@pytest.fixture
async def guarded() -> AsyncIterator[Stage]:
    """A server that needs tokens, and does not mind how often somebody tries."""
    clock = ManualClock()
    async with Engine("memory://", clock=clock) as engine:
        stage = Stage(engine, clock, make_app(engine))
        state_of(stage.app).callers.logins = FailedLogins(clock, per_address=10**6)
        yield stage


async def answers(client: httpx.AsyncClient, places: list[Place], **headers: str) -> dict[Place, tuple[int, str]]:
    """Status and code of each route; what a body would have to be is another matter."""
    found = {}
    for place in places:
        path = re.sub(r"{\w+}", ID, place.path)
        sent = {"Last-Event-ID": "none", **headers}  # live events would go on without an end
        body = {} if place.method == "GET" else {"content": b"{}", "headers": {"Content-Type": "application/json"} | sent}
        answer = await client.request(place.method, path, **({"headers": sent} | body))
        is_problem = answer.headers.get("Content-Type") == "application/problem+json"
        found[place] = (answer.status_code, answer.json()["code"] if is_problem else "")
    return found


def odd(found: dict[Place, tuple[int, str]], *expected: tuple[int, str]) -> dict[str, tuple[int, str]]:
    return {str(place): answer for place, answer in found.items() if answer not in expected}


def test_all_routes_but_the_listed_ones_require_a_token():
    assert len(GUARDED) > 40
    signed = {"POST /v1/external-jobs/{job_id}/callback", "POST /v1/ingest/github"}
    assert {str(place) for place in PLACES if place.public} == {
        "GET /health",
        "GET /live",
        "POST /login",
        "POST /logout",
        "GET /sign-in",
        *signed,
    }
    assert {str(place) for place in GUARDED if place.scope is None} == {"GET /session"}


@pytest.mark.parametrize("shown", ["none", "malformed", "unknown", "expired", "revoked", "ended cookie"])
async def test_no_route_opens_without_a_valid_token(guarded: Stage, shown: str):
    headers = {}
    match shown:
        case "malformed":
            headers["Authorization"] = "Bearer nonsense"
        case "unknown":
            headers["Authorization"] = f"Bearer tdl_{ID.replace('-', '')}_{'x' * 43}"
        case "expired":
            headers["Authorization"] = f"Bearer {await guarded.token(Scope.ADMIN, expires=60)}"
            guarded.clock.advance(60)
        case "revoked":
            headers["Authorization"] = f"Bearer {await guarded.token(Scope.ADMIN)}"
            await guarded.engine.kernel.tokens.revoke("ada")
        case "ended cookie":
            opened = await guarded.engine.kernel.sessions.open(await guarded.token(Scope.ADMIN))
            await guarded.engine.kernel.sessions.close(opened.cookie)
            headers |= {"Cookie": f"{COOKIE}={opened.cookie}", "X-CSRF-Token": opened.csrf}
    async with guarded.client() as client:
        assert odd(await answers(client, GUARDED, **headers), (401, "unauthorized")) == {}


@pytest.mark.parametrize("scope", Scope)
async def test_a_token_opens_only_the_routes_of_its_scope(guarded: Stage, scope: Scope):
    async with guarded.shown(await guarded.token(scope)) as client:
        found = await answers(client, GUARDED)
    closed = {place: answer for place, answer in found.items() if place.scope is not None and place.scope not in granted([scope])}
    opened = {place: answer for place, answer in found.items() if place not in closed}
    assert odd(closed, (403, "forbidden")) == {}
    assert {str(place): answer for place, answer in opened.items() if answer[0] in (401, 403) or answer[0] >= 500} == {}
    assert bool(closed) is (scope is not Scope.ADMIN)


@pytest.mark.parametrize("scope", [Scope.READ, Scope.WORK, Scope.OPERATE])
async def test_a_list_restricted_token_opens_only_routes_that_respect_lists(guarded: Stage, scope: Scope):
    mine = [place for place in GUARDED if place.scope in granted([scope])]
    async with guarded.shown(await guarded.token(scope, task_lists=["mine"])) as client:
        found = await answers(client, mine)
    assert odd({place: answer for place, answer in found.items() if not place.for_lists}, (403, "restricted_token")) == {}
    for place, (status, code) in found.items():
        if place.for_lists:
            assert status != 401, place
            assert status < 500, place
            assert code != "restricted_token", place


async def test_a_session_without_its_csrf_token_is_refused(guarded: Stage):
    opened = await guarded.engine.kernel.sessions.open(await guarded.token(Scope.ADMIN))
    changing = [place for place in GUARDED if place.method != "GET"]
    async with guarded.client(Cookie=f"{COOKIE}={opened.cookie}") as client:
        assert odd(await answers(client, changing), (403, "csrf_refused")) == {}
        assert odd(await answers(client, changing, **{"X-CSRF-Token": "wrong"}), (403, "csrf_refused")) == {}
        foreign = {"X-CSRF-Token": opened.csrf, "Origin": "http://evil.example"}
        assert odd(await answers(client, changing, **foreign), (403, "cross_origin")) == {}
        for place, (status, _) in (await answers(client, changing, **{"X-CSRF-Token": opened.csrf})).items():
            assert status not in (401, 403), place
            assert status < 500, place


async def test_an_open_server_serves_no_page_of_another_site(stage: Stage):
    changing = [place for place in GUARDED if place.method != "GET"]
    async with stage.client(Origin="http://evil.example") as client:
        assert odd(await answers(client, changing), (403, "cross_origin")) == {}
    async with stage.client(base="http://rebound.example") as client:
        assert odd(await answers(client, GUARDED), (403, "host_not_allowed")) == {}


def every_route(routes: list[Any]) -> list[tuple[str, str]]:
    """Methods and paths of all that an application serves, whoever added it and documented or not."""
    found = []
    for route in routes:
        if isinstance(route, RouteTable):
            found += [(each.method, each.path) for each in route.routes]
        elif (path := getattr(route, "path", None)) is not None:
            found += [(method, path) for method in getattr(route, "methods", None) or ("GET", "POST")]
    return found


async def test_every_page_tool_and_route_of_a_server_requires_a_token():
    clock = ManualClock()
    public = {"/health", "/live", "/login", "/logout", "/sign-in", "/static", "/v1/openapi.json", "/v1/docs"}
    public |= {"/llms.txt", "/llms-full.txt", "/docs/{page:path}"}  # the documentation
    async with Engine("memory://", clock=clock) as engine:
        app = make_app(engine, more=[add_pages, add_mcp])
        found = sorted({each for each in every_route(app.routes) if each[1] not in public})
        assert len(found) > len(GUARDED)
        let_in = {}
        async with Stage(engine, clock, app).client() as client:
            for method, path in found:
                answer = await client.request(method, re.sub(r"{[\w:]+}", ID, path), headers={"Last-Event-ID": "none"})
                to_login = answer.status_code in (302, 303) and answer.headers["Location"].startswith("/login")
                if answer.status_code not in (401, 405) and not to_login:
                    let_in[f"{method} {path}"] = answer.status_code
    signed = {"POST /v1/external-jobs/{job_id}/callback": 403, "POST /v1/ingest/github": 409}  # 409: it has no secret to check with
    assert let_in == signed
