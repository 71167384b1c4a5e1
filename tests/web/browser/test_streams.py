"""A stream on the page of its task: entries appear as they are written, and those of an abandoned attempt are struck out."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tests.limits import BOUND
from tests.web.browser.conftest import IN_BROWSER, Screen

from treadle import Context, RetryPolicy

pytestmark = IN_BROWSER


async def test_entries_appear_on_the_page_as_they_are_written(screen: Screen):
    turns = [asyncio.Event() for _ in range(3)]

    @screen.engine.handler("speak", retry=RetryPolicy.of(2, first=0))
    async def speak(payload: Any, ctx: Context) -> None:
        tokens = ctx.stream("tokens")
        tokens.write(f"Attempt {ctx.attempt} says ")
        await tokens.flush()
        await turns[ctx.attempt - 1].wait()
        tokens.write("<b>hello</b>\n")
        tokens.write({"n": ctx.attempt})
        if ctx.attempt == 1:
            raise ConnectionError("lost")
        await tokens.flush()
        await turns[2].wait()

    async with screen.engine.worker():
        task = await screen.engine.enqueue("speak")
        async with aclosing(screen.engine.stream(task, "tokens")) as entries:
            await asyncio.wait_for(anext(entries), BOUND)
        await screen.go(f"/tasks/{task.id}")
        stream = screen.page.get_by_role("region", name="Stream tokens").locator("pre")
        assert await stream.inner_text() == "Attempt 1 says "
        turns[0].set()
        await stream.get_by_text("Attempt 2 says").wait_for()
        turns[1].set()
        await stream.get_by_text('{"n":2}').wait_for()
        lines = (await stream.inner_text()).splitlines()
        assert [line for line in lines if line] == [
            "Attempt 1 says <b>hello</b>",
            '{"n":1}',
            "[attempt 1 was abandoned; attempt 2 begins]",
            "Attempt 2 says <b>hello</b>",
            '{"n":2}',
        ]
        assert "".join(await stream.locator(".abandoned").all_inner_texts()).startswith("Attempt 1 says ")
        turns[2].set()
        await screen.engine.result(task, timeout=BOUND)
        await screen.sees("completed")
        await screen.go(f"/tasks/{task.id}")
        assert "Attempt 2 says <b>hello</b>" in await stream.inner_text()
    assert screen.complaints == []
