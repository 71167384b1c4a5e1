"""Pages about tasks, and what all pages have in common."""

from __future__ import annotations

import re

import pytest
from tests.limits import BOUND
from tests.web.conftest import Visit

from treadle import Context
from treadle.interfaces.web import tasks
from treadle.kernel.search import service

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


async def test_tasks_are_listed_and_filtered(visit: Visit):
    await visit.engine.enqueue("greet", {"name": "Ada"})
    await visit.engine.enqueue("other", {})
    page = await visit.page("/tasks")
    assert "greet" in page
    assert "other" in page
    assert "other" not in (await visit.page("/tasks?name=greet")).partition("<main")[2]


async def test_a_task_is_operated_from_its_page(visit: Visit):
    made = await visit.engine.enqueue("greet", {"name": "Ada"})
    assert "greet is now paused." in await visit.do(f"/tasks/{made.id}/pause")
    assert "greet is now pending." in await visit.do(f"/tasks/{made.id}/resume")
    assert "greet is now canceled." in await visit.do(f"/tasks/{made.id}/cancel")
    assert "not possible" in await visit.do(f"/tasks/{made.id}/pause")


async def test_a_notice_is_shown_only_once(visit: Visit):
    made = await visit.engine.enqueue("greet", {"name": "Ada"})
    await visit.do(f"/tasks/{made.id}/pause")
    assert "is now paused." not in await visit.page("/tasks")


async def test_a_live_refresh_neither_shows_nor_consumes_a_notice(visit: Visit):
    visit.browser.cookies.set("treadle_said", "0" + b"greet is now paused.".hex())
    refreshed = await visit.browser.get("/tasks", headers={"X-Live": "1"})
    assert ("is now paused." in refreshed.text, "Set-Cookie" in refreshed.headers) == (False, False)
    assert "is now paused." in await visit.page("/tasks")


async def test_the_page_of_a_missing_task_is_not_found(visit: Visit):
    answer = await visit.browser.get("/tasks/01935b8e-7c3a-7000-8000-000000000000")
    assert (answer.status_code, "There is no task" in answer.text) == (404, True)


async def test_pages_load_and_execute_only_our_own_files(visit: Visit):
    made = await visit.engine.enqueue("greet", {"name": HOSTILE})
    answer = await visit.browser.get(f"/tasks/{made.id}")
    assert HOSTILE not in answer.text
    assert "&lt;script&gt;" in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")


async def test_a_visitor_without_a_session_is_redirected_to_the_login(visit: Visit):
    created = await visit.engine.kernel.tokens.create("ada", ["operate"])
    made = await visit.engine.enqueue("greet", {"name": "Ada"})
    async with visit.anew() as visit:
        answer = await visit.browser.get("/tasks")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Ftasks")
        assert 'name="token"' in await visit.page("/login?next=/tasks")
        answer = await visit.browser.post("/login", data={"token": created.secret, "next": "/tasks"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/tasks")
        page = await visit.page("/tasks")
        assert 'Log out<span class="wide"> ada</span>' in page
        answer = await visit.browser.post(f"/tasks/{made.id}/pause", data={"csrf": "wrong"}, follow_redirects=True)
        assert "CSRF" in answer.text
        assert (await visit.engine.kernel.reads.get_task(made)).shown_state == "pending"
        csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
        assert "greet is now paused." in await visit.do(f"/tasks/{made.id}/pause", csrf=csrf)


async def test_an_unknown_url_is_a_page_for_browsers_and_a_problem_for_programs(visit: Visit):
    answer = await visit.browser.get("/nowhere/<b>", headers={"Accept": "text/html"})
    assert (answer.status_code, "There is no page /nowhere/" in answer.text, "<b>" in answer.text) == (404, True, False)
    answer = await visit.browser.get("/settings/tokens", headers={"Accept": "text/html"})
    assert answer.status_code == 405
    for path in ("/nowhere", "/v1/nowhere"):
        answer = await visit.browser.get(path)
        assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/tasks", "/runs"])
async def test_a_search_that_stopped_before_the_end_can_be_continued(visit: Visit, monkeypatch: pytest.MonkeyPatch, path: str):
    monkeypatch.setattr(service, "VALUES_LIMIT", 3)
    for name in ("rare", *["common"] * 5):
        await visit.engine.enqueue("greet", {"name": name})
        await visit.engine.kernel.functions.start("greet", {"name": name}, version=1)
    page = await visit.page(f"{path}?where=input.name+%3D+rare")
    assert "None of the 3 newest" in page
    assert "No matching" not in page
    for _ in range(5):
        if "None of the 3 newest" not in page:
            break
        page = await visit.page(page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&"))
    assert "<table" in page


async def test_a_part_of_a_stream_names_its_length_and_offers_a_download(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "_ENTRIES", 2)

    @visit.engine.handler("speak")
    async def speak(payload: dict[str, str], ctx: Context) -> None:
        tokens = ctx.stream("tokens")
        for word in ("one ", "two ", "three"):
            tokens.write(word)

    async with visit.engine.worker():
        task = await visit.engine.enqueue("speak")
        await visit.engine.result(task, timeout=BOUND)
    page = await visit.page(f"/tasks/{task.id}")
    assert "The last 2 of 3 entries." in page
    assert "two three" in re.sub(r"<[^>]+>", "", page)
    address = re.search(r'<a href="([^"]+)" download>', page)
    assert address is not None
    assert "one" in (await visit.browser.get(address[1])).text
