"""Authentication: open servers, tokens, sessions, cross-site requests of browsers, and guessing."""

from __future__ import annotations

import httpx
import pytest
from tests.http.conftest import Stage

from treadle.interfaces.http.access import COOKIE, SIGN_IN_FOR
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.app_state import state_of
from treadle.kernel.access.credentials import RECENT_FOR
from treadle.kernel.access.login_throttle import PER_ADDRESS
from treadle.model.access import Scope

TASK = {"name": "greet"}


def code(answer: httpx.Response) -> str:
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return str(answer.json()["code"])


# --- open servers ---


@pytest.mark.parametrize("base", ["http://127.0.0.1", "http://localhost:8787", "http://[::1]:1", "http://127.8.8.8"])
async def test_a_server_without_tokens_is_open_under_names_of_loopback(stage: Stage, base: str):
    async with stage.client(base=base) as client:
        made = await client.post("/v1/tasks", json=TASK)
        assert made.status_code == 201
        assert (await client.post(f"/v1/tasks/{made.json()['id']}/cancel")).json()["actor"] == "local"


@pytest.mark.parametrize(
    "base", ["http://evil.example", "http://localhost.evil.example", "http://10.0.0.1", "http://127.0.0.1.nip.io"]
)
async def test_an_open_server_answers_under_no_other_name(stage: Stage, base: str):
    async with stage.client(base=base) as client:
        answer = await client.get("/v1/tasks")
    assert (answer.status_code, code(answer)) == (403, "host_not_allowed")


@pytest.mark.parametrize("header", ["X_Forwarded_For", "X_Forwarded_Host", "Forwarded", "Via", "X_Real_IP"])
async def test_an_open_server_answers_no_caller_behind_a_proxy(stage: Stage, header: str):
    async with stage.client(**{header: "for=192.0.2.1"}) as client:
        assert code(await client.get("/v1/tasks")) == "host_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "127.0.0.1"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_pages_of_other_origins_cannot_change_state(stage: Stage, headers: dict[str, str]):
    async with stage.client(**headers) as client:
        answer = await client.post("/v1/tasks", json=TASK)
        assert (answer.status_code, code(answer)) == (403, "cross_origin")
    async with stage.client() as client:
        assert (await client.get("/v1/tasks")).json()["tasks"] == []


async def test_pages_of_the_server_can_change_state(stage: Stage):
    async with stage.client(Origin="http://127.0.0.1", Sec_Fetch_Site="same-origin") as client:
        assert (await client.post("/v1/tasks", json=TASK)).status_code == 201


async def test_a_server_requires_a_token_even_if_none_is_valid(stage: Stage):
    stage.app = make_app(stage.engine)
    async with stage.client() as client:
        answer = await client.get("/v1/tasks")
        assert (answer.status_code, code(answer)) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        await stage.engine.kernel.tokens.create("ada", [Scope.ADMIN], expires=60)
        assert (await client.get("/v1/tasks")).status_code == 401
        stage.clock.advance(3600)  # the last token has expired
        assert (await client.get("/v1/tasks")).status_code == 401
        stage.app = make_app(stage.engine)  # and the server has been started again
    async with stage.client() as client:
        assert (await client.get("/v1/tasks")).status_code == 401


async def test_an_open_server_reports_it_and_rejects_invalid_tokens(stage: Stage):
    await stage.token(Scope.READ)
    async with stage.client() as client:
        assert (await client.get("/v1/tasks")).status_code == 200
        assert (await client.get("/health")).json()["access"] == "open"
        assert (await client.get("/v1/status")).json()["access"] == "open"
        assert (await client.get("/v1/tasks", headers={"Authorization": "Bearer tdl_wrong"})).status_code == 401


# --- the sign-in link ---


async def test_the_sign_in_link_opens_one_session_and_only_once(stage: Stage):
    stage.app = make_app(stage.engine)
    link = state_of(stage.app).callers.offer_sign_in(await stage.token(Scope.ADMIN, name="local"))
    async with stage.client() as client:
        for wrong in ("", "x", link[:-1], link + "x", "ü"):
            refused = await client.get("/sign-in", params={"code": wrong})
            assert (refused.status_code, refused.headers["Location"], refused.cookies) == (303, "/login?refused", {})
        from_elsewhere = {"Sec-Fetch-Site": "cross-site"}  # the link was clicked in a terminal that is a web page
        answer = await client.get("/sign-in", params={"code": link}, headers=from_elsewhere)
        assert (answer.status_code, answer.headers["Refresh"]) == (200, "0; url=/")
        who = (await client.get("/session")).json()
        assert (who["actor"], "admin" in who["scopes"]) == ("local", True)
    async with stage.client() as another:
        assert (await another.get("/sign-in", params={"code": link})).headers["Location"] == "/login?refused"
        assert (await another.get("/session")).status_code == 401


async def test_the_sign_in_link_is_valid_for_a_quarter_of_an_hour(stage: Stage):
    stage.app = make_app(stage.engine)
    link = state_of(stage.app).callers.offer_sign_in(await stage.token(Scope.ADMIN))
    stage.clock.advance(SIGN_IN_FOR)
    async with stage.client() as client:
        assert (await client.get("/sign-in", params={"code": link})).headers["Location"] == "/login?refused"


# --- tokens ---


async def test_a_token_acts_under_its_name_and_within_its_scopes(stage: Stage):
    secret = await stage.token(Scope.WORK, name="ci")
    async with stage.shown(secret, base="http://anywhere.example") as client:
        made = await client.post("/v1/tasks", json=TASK)
        assert made.status_code == 201
        refused = await client.get("/v1/tasks")
        assert (refused.status_code, code(refused), refused.json()["scope"]) == (403, "forbidden", "read")
        assert 'scope="read"' in refused.headers["WWW-Authenticate"]


async def test_unauthorized_callers_get_no_details_of_body_errors(closed: Stage):
    secret = await closed.token(Scope.READ)
    async with closed.shown(secret) as client:
        assert (await client.post("/v1/tasks", content=b"no json")).status_code == 403
    async with closed.client() as client:
        assert (await client.post("/v1/tasks", content=b"no json")).status_code == 401


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer ", "Bearer nonsense", "Basic YWRhOmFkYQ==", "bearer tdl_x_y", "nonsense"])
async def test_an_invalid_token_is_rejected_even_with_open_access(stage: Stage, shown: str):
    async with stage.client(Authorization=shown) as client:
        assert (await client.get("/v1/tasks")).status_code == 401


async def test_revoked_and_expired_tokens_get_the_same_refusal(stage: Stage):
    short, long = await stage.token(name="short", expires=60), await stage.token(name="long")
    async with stage.shown(short) as first, stage.shown(long) as second:
        assert (await first.get("/v1/time")).status_code == (await second.get("/v1/time")).status_code == 200
        await stage.engine.kernel.tokens.revoke("long")
        stage.clock.advance(60 + RECENT_FOR)
        expired, revoked = await first.get("/v1/time"), await second.get("/v1/time")
    assert (expired.status_code, expired.json()) == (revoked.status_code, revoked.json()) == (401, expired.json())


async def test_token_guessing_is_throttled_without_locking_out_others(stage: Stage):
    secret = await stage.token()
    async with stage.shown("tdl_no") as guesser, stage.shown(secret) as owner:
        for _ in range(PER_ADDRESS):
            assert (await guesser.get("/v1/time")).status_code == 401
        answer = await guesser.get("/v1/time")
        assert (answer.status_code, code(answer)) == (429, "too_many_attempts")
        assert int(answer.headers["Retry-After"]) > 0
        assert (await owner.get("/v1/time")).status_code == 200
    async with stage.shown("tdl_no", address="192.0.2.7") as elsewhere:
        assert (await elsewhere.get("/v1/time")).status_code == 401


# --- sessions ---


async def test_a_person_logs_in_changes_something_and_logs_out(closed: Stage):
    secret = await closed.token(name="ada@example.org")
    async with closed.client() as client:
        answer = await client.post("/login", json={"token": secret})
        assert answer.status_code == 200
        cookie = answer.headers["Set-Cookie"]
        assert all(word in cookie for word in (f"{COOKIE}=tds_", "HttpOnly", "SameSite=strict", "Path=/"))
        assert "Secure" not in cookie
        csrf = answer.json()["csrf"]
        assert (await client.get("/session")).json() == answer.json()
        assert (await client.get("/v1/tasks")).status_code == 200
        refused = await client.post("/v1/tasks", json=TASK)
        assert (refused.status_code, code(refused)) == (403, "csrf_refused")
        made = await client.post("/v1/tasks", json=TASK, headers={"X-CSRF-Token": csrf})
        assert made.status_code == 201
        kept = dict(client.cookies)
        assert (await client.post("/logout")).status_code == 204
        assert client.cookies.get(COOKIE) is None
        client.cookies.update(kept)
        assert (await client.get("/v1/tasks")).status_code == 401


async def test_the_cookie_of_a_server_behind_tls_is_secure(stage: Stage):
    secret = await stage.token()
    async with stage.client(base="https://treadle.example") as client:
        assert "Secure" in (await client.post("/login", json={"token": secret})).headers["Set-Cookie"]


@pytest.mark.parametrize(
    ("wanted", "place"),
    [("/runs/1", "/runs/1"), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\\evil", "/"), ("", "/")],
)
async def test_a_form_leads_to_a_page_of_this_server_and_to_no_other(stage: Stage, wanted: str, place: str):
    secret = await stage.token()
    async with stage.client() as client:
        answer = await client.post("/login", data={"token": secret, "next": wanted})
    assert (answer.status_code, answer.headers["Location"]) == (303, place)


async def test_the_csrf_token_of_another_session_is_refused(stage: Stage):
    secret = await stage.token()
    async with stage.client() as one, stage.client() as other:
        await one.post("/login", json={"token": secret})
        csrf = (await other.post("/login", json={"token": secret})).json()["csrf"]
        assert code(await one.post("/v1/tasks", json=TASK, headers={"X-CSRF-Token": csrf})) == "csrf_refused"


async def test_a_session_ends_with_its_token(closed: Stage):
    secret = await closed.token()
    async with closed.client() as client:
        await client.post("/login", json={"token": secret})
        await closed.engine.kernel.tokens.revoke("ada")
        assert (await client.get("/v1/tasks")).status_code == 401


async def test_failed_logins_are_limited_per_client_behind_a_proxy(stage: Stage):
    secret = await stage.token()
    async with stage.client() as client:
        for _ in range(PER_ADDRESS):
            assert (await client.post("/login", json={"token": "wrong"})).status_code == 401
        answer = await client.post("/login", json={"token": "wrong"})
        assert (answer.status_code, code(answer)) == (429, "too_many_attempts")
        assert (await client.post("/login", json={"token": secret})).status_code == 200
        link = state_of(stage.app).callers.offer_sign_in(secret)
        assert (await client.get("/sign-in", params={"code": "wrong"})).status_code == 429
        assert (await client.get("/sign-in", params={"code": link})).status_code == 200
        stage.clock.advance(int(answer.headers["Retry-After"]))
        assert (await client.post("/login", json={"token": "wrong"})).status_code == 401


async def test_another_site_can_neither_log_a_user_in_nor_out(stage: Stage):
    secret = await stage.token()
    async with stage.client(Origin="http://evil.example") as client:
        assert code(await client.post("/login", data={"token": secret})) == "cross_origin"
        assert code(await client.post("/logout")) == "cross_origin"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"token": 3}', b"\xff\xfe", b'{"other": "x"}'])
async def test_a_login_that_cannot_be_read_is_a_problem(stage: Stage, body: bytes):
    async with stage.client() as client:
        answer = await client.post("/login", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, code(answer)) == (422, "invalid_input")
