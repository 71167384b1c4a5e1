"""The page that finds everything by one field."""

from __future__ import annotations

import re

import pytest
from tests.web.conftest import Visit


async def hits(visit: Visit, wanted: str) -> list[str]:
    answer = await visit.browser.get("/find", params={"q": wanted})
    assert answer.status_code == 200, answer.text
    results = answer.text.partition('<div id="hits">')[2].partition("</main>")[0]
    return re.findall(r'grow wrap"><a href="([^"]+)"', results)


@pytest.mark.parametrize("value", ["4711", 4711, "Acme & Co.", 'b"c'])
async def test_the_value_of_a_tag_finds_its_run_and_task(visit: Visit, value: str | int):
    run = await visit.engine.start_function("order", {}, version=1, tags={"customer": value, "stage": "new"})
    other = await visit.engine.start_function("order", {}, version=1, tags={"customer": "other"})
    task = await visit.engine.enqueue("greet", {"name": "Ada"}, tags={"invoice": value})
    found = await hits(visit, str(value))
    assert {f"/runs/{run.id}", f"/tasks/{task.id}"} <= set(found)
    assert f"/runs/{other.id}" not in found


async def test_ids_and_names_lead_to_their_pages(visit: Visit):
    task = await visit.engine.enqueue("greet", {"name": "Ada"}, task_list="night")
    run = await visit.engine.start_function("shop.Order", {}, version=1)
    await visit.engine.schedules.create("nightly", cron="0 3 * * *", task="greet")
    assert (await hits(visit, task.id))[0] == f"/tasks/{task.id}"
    assert f"/runs/{run.id}" in await hits(visit, "shop.ord")
    (schedule, queue) = await hits(visit, "NIGHT")
    assert (schedule, queue) == ("/schedules/nightly", "/lists/night")
    assert (await hits(visit, "audit")) == ["/audit"]
    assert "/tasks/new" in await hits(visit, "new task")
    assert await hits(visit, "no such thing") == []
    assert "/runs" in await hits(visit, "")


async def test_actions_are_those_of_the_token(visit: Visit):
    secret = (await visit.engine.kernel.tokens.create("ada", ["read"])).secret
    async with visit.anew() as ada:
        ada.browser.headers["Authorization"] = f"Bearer {secret}"
        assert await hits(ada, "new schedule") == []
        assert await hits(ada, "schedules") == ["/schedules"]
