"""Pages about task lists."""

from __future__ import annotations

from tests.web.conftest import Visit
from tests.web.test_tasks import HOSTILE


def main_of(page: str) -> str:
    return page.partition("<main")[2]


async def test_lists_show_their_depth_and_their_workers(visit: Visit):
    for _ in range(3):
        await visit.engine.enqueue("greet", {"name": "Ada"})
    await visit.engine.enqueue("greet", {"name": "Ada"}, task_list="night", delay=60)
    page = main_of(await visit.page("/lists"))
    assert "default" in page
    assert "night" in page
    assert '<td class="number">3</td>' in page
    assert "none" in page  # nobody serves it


async def test_a_list_is_paused_drained_and_resumed_from_its_page(visit: Visit):
    await visit.engine.enqueue("greet", {"name": "Ada"}, task_list="night")
    assert "night is paused" in await visit.do("/lists/night/pause")
    page = await visit.page("/lists/night")
    assert "/lists/night/resume" in page
    assert "/lists/night/pause" not in page
    assert "night is resumed" in await visit.do("/lists/night/resume")
    assert "accepts no new tasks" in await visit.do("/lists/night/drain")
    assert "draining" in await visit.page("/lists/night")


async def test_rates_caps_policies_and_limits_are_set(visit: Visit):
    await visit.engine.enqueue("greet", {"name": "Ada"})
    assert "at most 2.5 per second" in await visit.do("/lists/default/rate", name="greet", rate="2.5", stay="1")
    assert "at most 10 ready tasks" in await visit.do("/lists/default/backlog", name="greet", backlog_limit="10", stay="1")
    page = main_of(await visit.page("/lists/default"))
    assert "2.5 per second" in page
    assert '<td class="number">10</td>' in page
    assert "no rate limit" in await visit.do("/lists/default/rate", name="greet", stay="1")
    assert "ignore" in await visit.do("/lists/default/policy", no_handler="ignore", stay="1")
    assert "customer:42: at most 3 running" in await visit.do("/limits", key="customer:42", max_running="3")
    assert "customer:42" in main_of(await visit.page("/lists"))
    await visit.do("/limits", key="greet", max_running="1", handler="1")
    assert "handler:greet" in main_of(await visit.page("/lists"))


async def test_user_defined_keys_are_escaped(visit: Visit):
    page = await visit.do("/limits", key=HOSTILE, max_running="3")
    assert HOSTILE not in page
    assert "<img" not in page
    assert "&lt;img" in page


async def test_a_rate_that_is_not_a_number_is_rejected_with_an_explanation(visit: Visit):
    await visit.engine.enqueue("greet", {"name": "Ada"})
    assert "rate must be a number, not &#39;often&#39;." in await visit.do("/lists/default/rate", name="greet", rate="often")


async def test_a_read_only_user_is_offered_no_actions(visit: Visit):
    await visit.engine.enqueue("greet", {"name": "Ada"})
    created = await visit.engine.kernel.tokens.create("eve", ["read"])
    async with visit.anew() as visit:
        visit.browser.headers["Authorization"] = f"Bearer {created.secret}"
        for path in ("/lists", "/lists/default", "/dead-letters", "/servers", "/events", "/tasks"):
            assert 'method="post"' not in main_of(await visit.page(path)), path


async def test_a_token_of_one_list_sees_that_list_alone(visit: Visit):
    for task_list in ("night", "day"):
        await visit.engine.enqueue("greet", {"name": "Ada"}, task_list=task_list)
    created = await visit.engine.kernel.tokens.create("eve", ["read"], task_lists=["night"])
    async with visit.anew() as visit:
        visit.browser.headers["Authorization"] = f"Bearer {created.secret}"
        page = main_of(await visit.page("/lists"))
        assert "night" in page
        assert "/lists/day" not in page
