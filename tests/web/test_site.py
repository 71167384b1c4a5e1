"""Properties common to all pages: same-site forms, cacheable files, and error pages."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from tests.web.conftest import Visit

from treadle.interfaces.http.app import make_app
from treadle.interfaces.web.site import make_site
from treadle.model.access import Scope


def actions(app: Starlette) -> list[str]:
    """The paths that forms are sent to."""
    return [each.path for each in make_site(app).routes if each.method == "POST"]


async def test_no_form_does_anything_without_the_csrf_token_of_its_session(visit: Visit):
    secret = (await visit.engine.kernel.tokens.create("ada", [Scope.ADMIN])).secret
    paths = actions(make_app(visit.engine, open_access=True))
    assert len(paths) > 20
    async with visit.anew() as ada:
        await ada.browser.post("/login", data={"token": secret})
        last = await visit.engine.kernel.store.log.find_last_seq()
        for path in paths:
            for csrf in ("", "x" * 43):
                fields = {"csrf": csrf, "name": "evil", "scope": "admin"}
                answer = await ada.browser.post(re.sub("{[^}]*}", "x", path), data=fields)
                assert (answer.status_code, bytes.fromhex(answer.cookies["treadle_said"][1:])[:9]) == (303, b"A session"), path
        assert await visit.engine.kernel.store.log.find_last_seq() == last


async def test_static_files_are_cacheable_under_their_versioned_address(visit: Visit):
    (named, *_) = re.findall(r'href="(/static/treadle\.css[^"]*)"', await visit.page("/"))
    assert "immutable" in (await visit.browser.get(named)).headers["Cache-Control"]
    assert (await visit.browser.get("/static/treadle.css")).headers["Cache-Control"] == "no-store"
    assert (await visit.browser.get("/static/nothing.css?v=1")).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/static/..%2fsite.py", "/static/%2e%2e/site.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd"]
)
async def test_no_other_files_are_served(visit: Visit, path: str):
    assert (await visit.browser.get(path)).status_code == 404


async def test_an_error_page_has_the_status_of_its_call(visit: Visit):
    assert (await visit.browser.get("/runs/x")).status_code == 422
    assert (await visit.browser.get("/runs", headers={"Host": "evil.example"})).status_code == 403
    secret = (await visit.engine.kernel.tokens.create("ada", [Scope.READ], task_lists=["mail"])).secret
    async with visit.anew() as ada:
        ada.browser.headers["Authorization"] = f"Bearer {secret}"
        assert (await ada.browser.get("/approvals")).status_code == 403
