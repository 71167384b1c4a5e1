"""Operations pages in a browser: live charts, dead letters, forms that keep their input, clocks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle.model.errors import TaskFailed

pytestmark = IN_BROWSER


async def test_charts_are_drawn_in_both_themes_and_figures_update_live(screen: Screen):
    @screen.engine.handler("greet")
    async def greet(payload: dict[str, str]) -> dict[str, str]:
        return {"hello": payload["name"]}

    await screen.go("/")
    await screen.sees("No live workers")
    for chart in ("throughput", "age", "failures"):
        await screen.page.locator(f"#chart-{chart} canvas").wait_for()
    await screen.page.get_by_role("button", name="Theme").click()
    await screen.page.locator("#chart-throughput canvas").wait_for()
    async with screen.engine.worker():
        await screen.engine.result(await screen.engine.enqueue("greet", {"name": "Ada"}))
        await screen.sees("All is well")
        await screen.page.locator(".figure", has_text="Completed, 1 h").get_by_text("1", exact=True).wait_for()
        await screen.page.locator("#chart-throughput .u-legend", has_text="completed").wait_for()
    drawn = await screen.page.locator("#chart-throughput canvas").evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0)"
    )
    assert drawn


async def test_a_dead_letter_is_shown_retried_and_completed(screen: Screen):
    broken = [True]

    @screen.engine.handler("charge", retry=0)
    async def charge(payload: dict[str, Any]) -> dict[str, Any]:
        if broken[0]:
            raise RuntimeError("no luck")
        return {}

    async with screen.engine.worker():
        made = await screen.engine.enqueue("charge", {})
        with pytest.raises(TaskFailed):
            await screen.engine.result(made)
        broken[0] = False
        await screen.go("/dead-letters")
        await screen.sees("no luck")
        await screen.page.get_by_role("link", name="Retry…").click()
        await screen.sees("of 1 matching dead letter")
        await screen.page.get_by_role("button", name="Retry 1").click()
        await screen.sees("1 letter retried.")
        await screen.engine.result(made)
    await screen.sees("no task has failed permanently")


async def test_a_live_refresh_keeps_typed_input(screen: Screen):
    await screen.engine.enqueue("greet", {"name": "Ada"})
    await screen.go("/lists")
    await screen.page.locator("[data-live-state]", has_text="live").wait_for()
    await screen.page.get_by_label("Key or handler").fill("customer:42")
    await screen.page.get_by_label("Maximum running").fill("3")
    made = await screen.engine.enqueue("greet", {"name": "Bob"}, task_list="night")
    await screen.engine.kernel.queue.pause(made.id, actor="ann")
    await screen.sees("night")
    assert await screen.page.get_by_label("Key or handler").input_value() == "customer:42"
    await screen.page.get_by_role("button", name="Set the limit").click()
    await screen.sees("customer:42: at most 3 running.")


async def test_clocks_of_a_task_count_down(screen: Screen):
    made = await screen.engine.enqueue("greet", {"name": "Ada"}, deadline=600)
    await screen.go(f"/tasks/{made.id}")
    clock = screen.page.locator("time[data-countdown]")
    first = await clock.text_content()
    await screen.page.wait_for_function("first => document.querySelector('time[data-countdown]').textContent !== first", arg=first)
    assert "min" in (await clock.text_content() or "")


async def test_bulk_operations_continue_automatically(screen: Screen, monkeypatch: pytest.MonkeyPatch):
    from treadle.interfaces.web import dead_letters

    monkeypatch.setattr(dead_letters, "AT_ONCE", 1)
    monkeypatch.setattr(dead_letters, "BATCH", 1)

    @screen.engine.handler("charge", retry=0)
    async def charge(payload: dict[str, Any]) -> None:
        raise RuntimeError("no luck")

    async with screen.engine.worker():
        made = [await screen.engine.enqueue("charge", {}) for _ in range(3)]
        for each in made:
            with pytest.raises(TaskFailed):
                await screen.engine.result(each)
    await screen.go("/dead-letters/discard")
    await screen.page.get_by_role("button", name="Discard 3").click()
    await screen.sees("3 letters discarded.")
