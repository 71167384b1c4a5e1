"""The API and the dashboard below a path of another application: links, forms, redirects, cookies, streams, and its own users."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from tests.engines import make_engine

from treadle import Engine
from treadle.integrations.fastapi import EngineDep, lifespan, mount
from treadle.model.errors import InvalidInput

PREFIX = "/internal/treadle"
HOST = "http://shop.example"
_PATHS = re.compile(r'(?:href|src|action|formaction|data-base)="(/[^"#]*)')


def authenticate(request: Request) -> Any:
    match request.headers.get("x-user"):
        case None:
            raise HTTPException(303, headers={"Location": "/accounts/login"})
        case "nobody":
            return None
        case "reader":
            return "reader", ["read"]
        case name:
            return name


@pytest.fixture
async def engine() -> Engine:
    return make_engine("memory://")


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(lifespan=lifespan(engine))
    mount(app, engine, PREFIX, authenticate=authenticate)

    @app.post("/orders")
    async def create(engine: EngineDep) -> dict[str, str]:
        return {"task": (await engine.enqueue("charge", {"order": 17})).id}

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, root_path="")
        async with httpx.AsyncClient(transport=transport, base_url=HOST, headers={"x-user": "ada", "accept": "text/html"}) as made:
            yield made


async def test_every_page_and_file_is_reached_below_the_path(client, engine):
    task = (await client.post("/orders")).json()["task"]
    seen: set[str] = set()
    todo = [f"{PREFIX}/", f"{PREFIX}/tasks/{task}"]
    while todo:
        path = todo.pop()
        if path.split("?")[0] in seen:
            continue
        seen.add(path.split("?")[0])
        page = await client.get(path)
        assert page.status_code == 200, path
        if page.headers["content-type"].startswith("text/html"):
            assert int(page.headers["content-length"]) == len(page.content)
            assert f'<html data-prefix="{PREFIX}"' in page.text
            for found in _PATHS.findall(page.text):
                assert found.startswith(f"{PREFIX}/"), (path, found)
                if f'href="{found}' in page.text or f'src="{found}' in page.text:
                    todo.append(found.replace("&amp;", "&"))
    assert {f"{PREFIX}/runs", f"{PREFIX}/static/treadle.css", f"{PREFIX}/static/live.js", f"{PREFIX}/settings"} <= seen


async def test_a_form_needs_the_token_of_its_page_and_returns_to_it(client, engine):
    task = (await client.post("/orders")).json()["task"]
    where = f"{PREFIX}/tasks/{task}"
    page = await client.get(where)
    assert "Path" not in page.headers["set-cookie"]
    assert f"path={PREFIX}" in page.headers["set-cookie"]
    csrf = re.search(r'name="csrf" value="([\w-]+)"', page.text)[1]
    act = f"{where}/pause"
    assert act in page.text
    refused = await client.post(act, data={"csrf": "wrong"}, headers={"referer": HOST + where})
    assert (await engine.kernel.reads.get_task(task)).shown_state != "paused"
    assert refused.status_code == 303
    done = await client.post(act, data={"csrf": csrf}, headers={"referer": HOST + where, "origin": HOST})
    assert (done.status_code, done.headers["location"]) == (303, where)
    assert f"path={PREFIX}" in done.headers["set-cookie"]
    assert (await engine.kernel.reads.get_task(task)).shown_state == "paused"
    assert "ada" in [transition.actor for transition in await engine.kernel.store.log.list_transitions(task)]
    foreign = await client.post(act, data={"csrf": csrf}, headers={"origin": "https://evil.example"})
    assert foreign.status_code in (303, 403)


async def test_the_host_application_authenticates_and_authorizes_its_users(client, engine):
    answer = await client.get(f"{PREFIX}/v1/tasks", headers={"x-user": "reader", "accept": "application/json"})
    assert answer.status_code == 200
    answer = await client.post(f"{PREFIX}/v1/tasks", json={"name": "charge"}, headers={"x-user": "reader"})
    assert answer.status_code == 403
    del client.headers["x-user"]
    answer = await client.get(f"{PREFIX}/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/accounts/login")


async def test_callers_without_a_user_need_a_token(client, engine):
    client.headers["x-user"] = "nobody"
    assert (await client.get(f"{PREFIX}/")).headers["location"].startswith(f"{PREFIX}/login?next=")
    assert (await client.get(f"{PREFIX}/v1/tasks")).status_code == 401
    secret = (await engine.kernel.tokens.create("ci", ["admin"], actor="test")).secret
    answer = await client.get(f"{PREFIX}/v1/tasks", headers={"authorization": f"Bearer {secret}"})
    assert answer.status_code == 200
    answer = await client.post(f"{PREFIX}/login", data={"token": secret, "next": "/runs"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"{PREFIX}/runs")
    assert f"Path={PREFIX};" in answer.headers["set-cookie"] or f"path={PREFIX};" in answer.headers["set-cookie"]
    assert (await client.get(f"{PREFIX}/runs")).status_code == 200


async def test_mistakes_are_reported_when_it_is_mounted(engine):
    with pytest.raises(InvalidInput, match="not a scope"):
        mount(FastAPI(), engine, scopes=["everything"])
