"""Errands of an operator, from Home, with at most two clicks or one search each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import Locator, expect
from tests.limits import BOUND
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle import FunctionContext, RunFailed, TaskFailed

pytestmark = IN_BROWSER


@dataclass
class Errand:
    """An operator who counts clicks and searches, and begins at Home."""

    screen: Screen
    clicks: int = 0
    searches: int = 0

    async def begin(self) -> None:
        """Open Home."""
        await self.screen.go("/")

    async def click(self, name: str, role: Any = "link", within: str = "body") -> None:
        """Click a link or a button."""
        self.clicks += 1
        await self.screen.page.locator(within).get_by_role(role, name=name).first.click()

    async def find(self, wanted: str) -> None:
        """Type the text into the dialog that `/` opens, and open the first result."""
        self.searches += 1
        page = self.screen.page
        await page.keyboard.press("/")
        await page.locator("#find input").fill(wanted)
        await page.locator("#find input").press("Enter")

    @property
    def is_short(self) -> bool:
        """Whether it took no more than two clicks, or one search."""
        return self.clicks <= 2 if self.searches == 0 else (self.clicks, self.searches) == (0, 1)


@pytest.fixture
def errand(screen: Screen) -> Errand:
    return Errand(screen)


def main(errand: Errand, text: str) -> Locator:
    return errand.screen.page.locator("main").get_by_text(text).first


async def test_a_stuck_order_of_a_customer_is_found_with_its_reason(errand: Errand):
    engine = errand.screen.engine
    for customer in range(4709, 4714):
        await engine.start_function("order.Ship", {}, version=1, tags={"customer": str(customer)})
    await errand.begin()
    await errand.find("4711")
    await main(errand, "customer = 4711").wait_for()
    await main(errand, "no live worker").wait_for()
    assert errand.is_short


async def test_the_worst_cause_of_failures_is_shown_since_when(errand: Errand):
    engine = errand.screen.engine

    @engine.handler("mail.Send", retry=0)
    async def send(payload: dict[str, Any]) -> None:
        raise TimeoutError("the mail server did not answer")

    async with engine.worker():
        for _ in range(3):
            with pytest.raises(TaskFailed):
                await engine.result(await engine.enqueue("mail.Send"), timeout=BOUND)
    await errand.begin()
    await errand.click("Failures", within="#menu")
    row = errand.screen.page.locator("main tr", has_text="the mail server did not answer")
    await row.get_by_text("3", exact=True).first.wait_for()
    assert await row.locator("time").count() >= 2  # first and last
    assert errand.is_short


async def test_a_question_is_approved_with_an_edit(errand: Errand):
    engine = errand.screen.engine

    @engine.function("order.Review")
    async def review(payload: dict[str, int], ctx: FunctionContext) -> dict[str, Any]:
        decision = await ctx.approval("Refund?", context={"amount": 120}, edits=True)
        return {"amount": decision["context"]["amount"]}

    async with engine.worker():
        run = await engine.start_function("order.Review", {})
        await errand.screen.go("/approvals")
        await errand.screen.is_live()
        await errand.screen.sees("Refund?")
        await errand.begin()
        await errand.click("Decide")
        await errand.screen.page.locator("textarea[name=edits]").fill('{"amount": 100}')
        await errand.click("Approve", "button")
        await errand.screen.sees("is approved now")
        assert await engine.run_result(run, timeout=BOUND) == {"amount": 100}
    assert errand.is_short


async def test_a_queue_is_paused(errand: Errand):
    await errand.screen.engine.enqueue("greet", task_list="mail")
    errand.screen.page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
    await errand.begin()
    await errand.click("System", within="#menu")
    await errand.click("Pause", "button", within="tr:has-text('mail')")
    await errand.screen.sees("mail is paused")
    assert (await errand.screen.engine.kernel.lists.get("mail")).paused
    assert errand.is_short


async def test_a_change_by_a_person_is_found_in_the_audit(errand: Errand):
    await errand.screen.engine.kernel.lists.pause("default", actor="ada")
    await errand.begin()
    await errand.click("System", within="#menu")
    await errand.click("Audit")
    await main(errand, "ada").wait_for()
    await main(errand, "lists.pause").wait_for()
    assert errand.is_short


async def test_the_time_range_of_runs_is_entered_in_local_time(screen: Screen):
    """The page's zone is that of the browser: 14:03 in Berlin is 13:03 UTC."""
    context = await screen.page.context.browser.new_context(timezone_id="Europe/Berlin")  # type: ignore[union-attr]
    page = await context.new_page()
    await page.goto(f"{screen.url}/runs")
    await page.locator("input[name=since]").fill("2026-01-31T14:03")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**since=2026-01-31T13%3A03Z**")
    assert await page.locator("input[name=since]").input_value() == "2026-01-31T14:03"
    await context.close()


async def test_the_dialog_to_find_opens_by_key_and_button_and_moves_by_arrows(screen: Screen):
    await screen.engine.enqueue("greet", tags={"customer": "4711"})
    await screen.go("/tasks")
    dialog, field = screen.page.locator("#find"), screen.page.locator("#find input")
    for key in ("Control+k", "/"):
        await screen.page.keyboard.press(key)
        await field.wait_for()
        await screen.page.keyboard.press("Escape")
        await dialog.wait_for(state="hidden")
    await screen.page.get_by_role("link", name="Find").click()
    await field.fill("audit")
    await expect(dialog.locator("li")).to_have_count(1)
    await field.press("ArrowDown")
    await screen.page.keyboard.press("Enter")
    await screen.page.wait_for_url("**/audit")


async def test_the_failed_item_of_many_is_shown_where_its_run_opens(errand: Errand):
    engine = errand.screen.engine

    async def pack(order: int) -> int:
        if order == 150:
            raise ValueError(f"order {order} has no address")
        return order

    @engine.function("ship.Orders")
    async def ship(payload: dict[str, int], ctx: FunctionContext) -> Any:
        return await ctx.gather(*(ctx.step(pack, order) for order in range(payload["orders"])))

    async with engine.worker():
        run = await engine.start_function("ship.Orders", {"orders": 200})
        with pytest.raises(RunFailed):
            await engine.run_result(run, timeout=BOUND)
    await errand.begin()
    await errand.click("ship.Orders")
    await main(errand, "200 items").wait_for()
    await errand.screen.page.get_by_label("Traceback", exact=True).get_by_text("order 150 has no address").wait_for()
    assert await errand.screen.page.locator("[data-pick]").count() < 40
    assert errand.is_short


async def test_the_words_and_the_cost_of_an_agent_are_shown(errand: Errand):
    engine = errand.screen.engine

    async def ask(messages: list[Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": [{"type": "text", "text": "Refund it: the parcel was lost."}]}

    @engine.function("support.Agent")
    async def agent(payload: dict[str, Any], ctx: FunctionContext) -> Any:
        return await ctx.step(ask, [{"role": "user", "content": "Where is parcel 7?"}])

    async with engine.worker():
        run = await engine.start_function("support.Agent", {})
        await engine.run_result(run, timeout=BOUND)
    await errand.begin()
    await errand.click("support.Agent")
    await errand.click("ask", within=".tree")
    await errand.screen.page.get_by_label("reply").get_by_text("Refund it").wait_for()
    assert errand.is_short
