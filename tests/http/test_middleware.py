"""Middleware around every request and response."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.http.conftest import Stage

from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.middleware import BODY_OVERHEAD, HEADERS_LIMIT, MAX_HEADERS, SAFE
from treadle.interfaces.web.site import add_pages
from treadle.kernel.store.committer import MAX_QUEUED_ROWS
from treadle.model.errors import StoreUnavailable


async def test_every_answer_has_an_id_and_the_headers_that_keep_browsers_safe(stage: Stage):
    async with stage.client() as client:
        for path in ("/health", "/v1/tasks", "/v1/tasks/nonsense", "/nowhere", "/v1/openapi.json"):
            answer = await client.get(path)
            assert answer.headers["X-Request-Id"]
            for name, value in SAFE.items():
                assert answer.headers[name] == value


async def test_a_valid_request_id_of_the_caller_is_kept(stage: Stage):
    async with stage.client() as client:
        assert (await client.get("/health", headers={"X-Request-Id": "abc-1"})).headers["X-Request-Id"] == "abc-1"
        for odd in ("two words", "x" * 101, "a\tb"):
            assert (await client.get("/health", headers={"X-Request-Id": odd})).headers["X-Request-Id"] != odd


@pytest.mark.parametrize("path", ["/health", "/v1/tasks", "/login", "/nowhere"])
async def test_a_request_with_too_many_or_too_large_headers_is_refused(stage: Stage, path: str):
    async with stage.client() as client:
        few = [(f"x-{number}", "1") for number in range(MAX_HEADERS - len(client.headers) - 1)]
        assert (await client.get(path, headers=few)).status_code != 431
        for headers in ([(f"x-{number}", "1") for number in range(5000)], [("x-long", "x" * HEADERS_LIMIT)], [("x", "1")] * 200):
            answer = await client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (431, "headers_too_large")


async def test_a_body_declared_too_large_is_refused(stage: Stage):
    limit = stage.engine.kernel.settings.payload_limit + BODY_OVERHEAD
    async with stage.client() as client:
        answer = await client.post("/v1/tasks", content=b" " * (limit + 1), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_an_unauthenticated_body_has_a_smaller_limit(stage: Stage):
    async with stage.client() as client:
        for body in (b"x" * (16 * 1024 + 1), _parts()):
            answer = await client.post("/login", content=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
            assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def _parts() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"x" * 1024


async def test_an_oversized_body_without_a_declared_length_is_refused(stage: Stage):
    limit = stage.engine.kernel.settings.payload_limit + BODY_OVERHEAD
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 16
            yield b" " * (1 << 16)

    async with stage.client() as client:
        answer = await client.post("/v1/tasks", content=endless(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert sent <= limit + (1 << 17)


async def test_a_payload_over_the_engine_limit_is_rejected(stage: Stage):
    async with stage.client() as client:
        big = "x" * stage.engine.kernel.settings.payload_limit
        answer = await client.post("/v1/tasks", json={"name": "greet", "payload": {"big": big}})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


async def test_a_malformed_json_body_is_an_invalid_request(stage: Stage):
    async with stage.client() as client:
        for body in (b"{", b"\xff", b"[" * 100_000, b'{"name": "a", "priority": ' + b"9" * 5000 + b"}", b'{"name": "a"}' * 2):
            answer = await client.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 422)
            assert answer.json()["code"] == "invalid_request"


async def test_unknown_routes_and_methods_are_problems(stage: Stage):
    async with stage.client() as client:
        missing, wrong = await client.get("/v1/nowhere"), await client.delete("/v1/tasks")
    assert (missing.status_code, missing.json()["code"]) == (404, "no_such_route")
    assert (wrong.status_code, wrong.json()["code"], wrong.headers["Allow"]) == (405, "method_not_allowed", "GET, POST")


async def test_the_log_has_neither_queries_nor_path_parameters(stage: Stage, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "treadle.http"):
        async with stage.client(Authorization="Bearer tdl_secret") as client:
            await client.get("/v1/tasks/secret-in-path?key=secret-in-query")
    assert "/v1/tasks/{task_id} 401" in caplog.text
    assert "secret" not in caplog.text


async def test_an_internal_error_is_a_problem_without_details(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(type(stage.engine.kernel.reads), "list_tasks", broken)
    async with stage.client() as client:
        answer = await client.get("/v1/tasks")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "a secret of the inside" in caplog.text


async def test_health_needs_no_token_and_reports_an_unavailable_store(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    await stage.token()
    async with stage.client() as client:
        well = await client.get("/health")
        assert (well.status_code, well.json()["status"]) == (200, "ok")

        async def down() -> int:
            raise StoreUnavailable("postgresql://ada:secret@db cannot be reached")

        monkeypatch.setattr(stage.engine.kernel.store, "now", down)
        ill = await client.get("/health")
        assert (ill.status_code, ill.json()["code"], ill.headers["Retry-After"]) == (503, "store_unavailable", "1")
        assert "secret" not in ill.text
        alive = await client.get("/live")
        assert (alive.status_code, alive.json()) == (200, {"status": "ok"}), "no reason to restart the server"


async def test_a_page_of_an_unavailable_store_has_retry_after(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    async def down(*_: object, **__: object) -> None:
        raise StoreUnavailable("The store does not answer.")

    store = stage.engine.kernel.store
    for port, name in ((store, "now"), (store.runs, "list_matching"), (store.tasks, "list_matching")):
        monkeypatch.setattr(port, name, down)
    async with _paged(stage) as client:
        for path in ("/runs", "/tasks", "/v1/tasks"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def _paged(stage: Stage) -> httpx.AsyncClient:
    """A client of the same server with its pages."""
    stage.app = make_app(stage.engine, open_access=True, more=(add_pages,))
    return stage.client()


async def test_numbers_that_no_store_can_keep_are_refused(stage: Stage):
    async with stage.client() as client:
        for path in (f"/v1/tasks?limit={2**40}", f"/v1/flows/shop/graph?version={2**70}", f"/v1/events?after_seq={2**70}"):
            assert (await client.get(path)).status_code == 422
        wish = {"flow": "shop", "workflow": "x", "budget": 1e198}
        assert (await client.post("/v1/runs", json=wish)).status_code in (404, 422)
        assert (await client.post("/v1/tasks", json={"name": "greet", "priority": 2**70})).status_code == 422


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/tasks", {f"k{number}": 1 for number in range(1000)}), ("/v1/tasks/batch", {"tasks": [{"nam": 1}] * 1000})],
)
async def test_the_number_of_reported_problems_is_limited(stage: Stage, path: str, body: dict[str, object]):
    async with stage.client() as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 422
    assert 0 < len(answer.json()["problems"]) < 5


async def test_a_change_that_an_overloaded_store_refuses_is_answered_with_the_time_to_try_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    committer = stage.engine.kernel.committer
    monkeypatch.setattr(committer, "_waiting_rows", MAX_QUEUED_ROWS)
    async with stage.client() as client:
        answer = await client.post("/v1/tasks", json={"name": "greet"})
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "store_overloaded", "5")
        monkeypatch.setattr(committer, "_waiting_rows", 0)
        assert (await client.post("/v1/tasks", json={"name": "greet"})).status_code == 201
