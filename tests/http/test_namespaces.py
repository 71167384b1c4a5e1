"""One server in front of the namespaces of a directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.directories import write_directory

from treadle import Engine
from treadle.engine import Engine as AnyEngine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.http.namespaces import NamespaceApps
from treadle.interfaces.web.site import add_pages
from treadle.settings import Settings, read_directory


class Front:
    """A server with the namespaces `red` and `blue` on files of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "directory.toml"
        write_directory(self.path, {name: f"sqlite:///{folder}/{name}.db" for name in ("red", "blue")})
        self.secrets: dict[str, str] = {}

    async def token(self, namespace: str) -> str:
        url = read_directory(self.path).namespaces[namespace]
        async with Engine(url, settings=Settings(namespace=namespace)) as engine:
            made = await engine.kernel.tokens.create(f"ci-{namespace}", ["admin"])
        return made.secret

    def client(self, app: Any, secret: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=headers)


@pytest.fixture
async def front(tmp_path: Path) -> Front:
    return Front(tmp_path)


@pytest.fixture
async def app(front: Front) -> AsyncIterator[NamespaceApps]:
    async with Engine(f"sqlite:///{front.folder}/own.db", settings=Settings(directory=str(front.path))) as engine:
        front.secrets["own"] = (await engine.kernel.tokens.create("own", ["read"])).secret

        def make(of: AnyEngine) -> Any:
            return make_app(of, more=(add_pages,))

        made = NamespaceApps(make(engine), str(front.path), make)
        yield made
        await made.end_waits()
        await made.close()


async def test_each_namespace_has_its_own_store_tokens_and_dashboard(front: Front, app: NamespaceApps):
    red, blue = await front.token("red"), await front.token("blue")
    async with front.client(app, red) as client:
        made = (await client.post("/ns/red/v1/tasks", json={"name": "work"})).json()
        shown = (await client.get(f"/ns/red/v1/tasks/{made['id']}")).json()
        assert (shown["namespace"], shown["created_by"]) == ("red", "ci-red")
        assert (await client.get("/ns/blue/v1/tasks")).status_code == 401
        page = await client.get("/ns/red/login")
        assert page.status_code == 200
        assert b'="/ns/red/' in page.content
    async with front.client(app, blue) as client:
        assert (await client.get("/ns/blue/v1/tasks")).json()["tasks"] == []


async def test_other_paths_belong_to_the_namespace_of_the_server(front: Front, app: NamespaceApps):
    async with front.client(app, front.secrets["own"]) as client:
        assert (await client.get("/v1/tasks")).status_code == 200
        listed = (await client.get("/ns")).json()["namespaces"]
        assert [each["path"] for each in listed] == ["/ns/blue/", "/ns/red/"]
        answer = await client.get("/ns/green/v1/tasks")
        assert (answer.status_code, answer.json()["code"]) == (404, "namespace_not_found")
    async with front.client(app, "wrong") as client:
        assert (await client.get("/ns")).status_code == 401


async def test_a_namespace_that_is_moved_is_served_from_its_new_store(front: Front, app: NamespaceApps):
    async with front.client(app, await front.token("red")) as client:
        await client.post("/ns/red/v1/tasks", json={"name": "work"})
    write_directory(front.path, read_directory(front.path).namespaces | {"red": f"sqlite:///{front.folder}/other.db"})
    async with front.client(app, await front.token("red")) as client:
        assert (await client.get("/ns/red/v1/tasks")).json()["tasks"] == []


async def test_a_store_that_cannot_be_opened_concerns_its_namespace_only(front: Front, app: NamespaceApps):
    secret = await front.token("blue")
    write_directory(front.path, read_directory(front.path).namespaces | {"red": f"sqlite:///{front.folder}/missing/red.db"})
    async with front.client(app, secret) as client:
        assert (await client.get("/ns/red/v1/tasks")).status_code >= 400
        assert (await client.get("/ns/blue/v1/tasks")).status_code == 200


async def browse(app: Any, page: str, **logins: str) -> str:
    """A page as a browser sees it that is logged in with the tokens of these namespaces; `own` is the server's."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for namespace, secret in logins.items():
            base = "" if namespace == "own" else f"/ns/{namespace}"
            assert (await client.post(f"{base}/login", json={"token": secret})).status_code == 200
        answer = await client.get(page, follow_redirects=True)
        assert answer.status_code == 200
        return answer.text


async def test_the_dashboard_switches_between_the_namespaces(front: Front, app: NamespaceApps):
    page = await browse(app, "/", own=front.secrets["own"])
    for path in ("/", "/ns/blue/", "/ns/red/"):
        assert f"<a href='{path}'" in page
    assert "<a href='/' aria-current=" in page
    page = await browse(app, "/ns/red/", own=front.secrets["own"], red=await front.token("red"))
    assert "<a href='/ns/red/' aria-current=" in page
    assert "<a href='/ns/blue/'>" in page


async def test_callers_of_one_namespace_do_not_learn_the_names_of_others(front: Front, app: NamespaceApps):
    page = await browse(app, "/ns/red/", red=await front.token("red"))
    assert "blue" not in page
    assert 'class="places"' not in page
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert 'class="places"' not in (await client.get("/login")).text


async def test_a_browser_can_have_sessions_in_two_namespaces(front: Front, app: NamespaceApps):
    red, own = await front.token("red"), front.secrets["own"]
    for logins in ({"own": own, "red": red}, {"red": red, "own": own}):
        for page in ("/tasks", "/ns/red/tasks"):
            assert "<h1>Tasks" in await browse(app, page, **logins)
