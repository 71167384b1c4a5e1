"""The page about the changes by operators, and their undo."""

from __future__ import annotations

import re

from tests.web.conftest import Visit
from tests.web.test_lists import main_of


def undo_forms(page: str) -> list[str]:
    return re.findall(r'action="(/audit/\d+/undo)"', page)


async def test_changes_are_listed_newest_first_and_filtered(visit: Visit):
    assert "Nobody has changed anything yet" in await visit.page("/audit")
    lists = visit.engine.kernel.lists
    await lists.limit_key("customer:1", 3, actor="ada")
    await lists.pause("default", actor="bob")
    page = main_of(await visit.page("/audit"))
    assert page.index("lists.pause") < page.index("lists.limit_key")
    assert "max_running=3" in page
    for query, shown in (("actor=ada", "customer:1"), ("operation=lists.pause", "bob"), ("operation=lists", "bob")):
        assert shown in main_of(await visit.page(f"/audit?{query}"))
    assert "No change matches" in await visit.page("/audit?actor=ada&operation=lists.pause")
    assert "No change matches" in await visit.page("/audit?until=2020-01-01T00:00")
    assert "bob" in await visit.page("/audit?since=2020-01-01T00:00")


async def test_a_page_continues_with_older_changes(visit: Visit):
    for most in range(1, 53):
        await visit.engine.kernel.lists.limit_key("customer:1", most, actor="ada")
    page = await visit.page("/audit?actor=ada")
    (older,) = re.findall(r'rel="next" href="(/audit\?[^"]+)"', page)
    assert "max_running=1<" in re.sub(r"\s+", "", await visit.page(older.replace("&amp;", "&")))


async def test_a_change_is_undone_as_a_change_of_its_own(visit: Visit):
    await visit.engine.kernel.lists.limit_key("customer:1", 3, actor="ada")
    await visit.engine.kernel.lists.limit_key("customer:1", 5, actor="bob")
    newest, _ = undo_forms(await visit.page("/audit"))
    assert "lists.limit_key of customer:1 is undone." in await visit.do(newest)
    (limit,) = (await visit.engine.kernel.lists.limits()).limits
    assert limit.max_running == 3
    first, *_ = re.findall(r"<tr id=.*?</tr>", await visit.page("/audit"), re.DOTALL)
    assert all(text in first for text in ("local", "lists.limit_key", "max_running=5", "max_running=3"))


async def test_a_change_with_a_later_one_is_not_undone(visit: Visit):
    lists = visit.engine.kernel.lists
    await lists.pause("default", actor="ada")
    await lists.resume("default", actor="bob")
    _, pause = undo_forms(await visit.page("/audit"))
    await lists.pause("default", actor="bob")
    visit.browser.headers["Referer"] = "http://127.0.0.1/audit"
    assert "bob changed default later, with lists.pause" in (await visit.browser.post(pause, follow_redirects=True)).text
    await lists.drain("default", actor="bob")
    newest, latest_pause, *_ = undo_forms(await visit.page("/audit"))
    assert "is paused and draining" in (await visit.browser.post(newest, follow_redirects=True)).text
    assert "is paused and draining" in (await visit.browser.post(latest_pause, follow_redirects=True)).text
    status = await lists.get("default")
    assert (status.paused, status.accepting) == (True, False)


async def test_an_unknown_change_is_not_undone(visit: Visit):
    await visit.engine.enqueue("greet", {"name": "Ada"})
    for seq in ("1", "99999999", "x"):
        headers = {"Referer": "http://127.0.0.1/audit"}
        answer = await visit.browser.post(f"/audit/{seq}/undo", headers=headers, follow_redirects=True)
        assert f"There is no change {seq} that can be undone." in answer.text
