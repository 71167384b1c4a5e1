"""Operators in a browser: decide, retry, fork, act on many, and watch work survive the process that ran it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser
from tests.crash.scene import Scene as Processes
from tests.limits import BOUND
from tests.web.browser.conftest import IN_BROWSER, Screen, on_screen
from tests.web.browser.test_live import SHOP

from treadle import Engine, FunctionContext, TaskFailed

pytestmark = IN_BROWSER


@pytest_asyncio.fixture(loop_scope="session")
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    """A store in a file, and the processes that a test starts on it."""
    scene = Processes(f"sqlite:///{tmp_path / 'treadle.db'}", tmp_path)
    async with scene.engine:
        try:
            yield scene
        finally:
            for child in scene._children:
                child.destroy()


async def test_a_function_waits_for_an_approval_and_continues_once_granted(screen: Screen):
    @screen.engine.function("order.Review")
    async def review(payload: dict[str, int], ctx: FunctionContext) -> dict[str, Any]:
        said = await ctx.approval("Ship it on account?", context={"total": payload["total"]})
        return {"shipped_by": said["by"], "because": said["reason"]}

    async with screen.engine.worker():
        run = await screen.engine.start_function("order.Review", {"total": 310})
        await screen.go("/approvals")
        await screen.page.get_by_role("link", name="Ship it on account?").click()
        await screen.sees('"total": 310')
        await screen.page.get_by_role("textbox", name="Reason").fill("a good customer")
        await screen.page.get_by_role("button", name="Approve").click()
        await screen.sees("is approved now")
        await screen.go(f"/runs/{run.id}?view=values")
        await screen.sees("completed")
        await screen.sees("a good customer")


async def test_dead_letters_are_retried_after_a_preview_of_the_matches(screen: Screen):
    working = False

    @screen.engine.handler("mail.Send", retry=0)
    async def send(payload: dict[str, Any]) -> None:
        if not working:
            raise TimeoutError("the mail server did not answer")

    page = screen.page
    async with screen.engine.worker():
        await screen.go("/dead-letters")
        await screen.is_live()
        tasks = [await screen.engine.enqueue("mail.Send") for _ in range(3)]
        for task in tasks:
            with pytest.raises(TaskFailed):
                await screen.engine.result(task, timeout=BOUND)
        await screen.sees("the mail server did not answer")
        await page.get_by_role("link", name="the mail server did not answer").first.click()
        working = True
        await page.get_by_role("link", name="Retry all 3").click()
        await screen.sees("3 of 3 matching dead letters")
        await page.get_by_role("button", name="Retry 3").click()
        await screen.sees("3 letters retried.")
        await screen.go("/tasks?state=completed")
        await page.locator("main tbody tr").nth(2).wait_for()


async def test_a_run_is_forked_from_one_of_its_steps(screen: Screen):
    charged = 0

    @screen.engine.handler("shop.Charge")
    async def charge(payload: dict[str, int]) -> dict[str, str]:
        nonlocal charged
        charged += 1
        return {"receipt": f"receipt {charged}"}

    async with screen.engine.worker():
        run = await screen.engine.start_run([("shop.afl", SHOP)], "shop.Checkout", {"amount": 3})
        await screen.engine.run_result(run, timeout=BOUND)
        await screen.go(f"/runs/{run.id}")
        await screen.page.get_by_role("link", name="paid", exact=True).first.click()
        await screen.page.get_by_role("link", name="Fork from here").click()
        await screen.page.get_by_role("button", name="Fork", exact=True).click()
        await screen.sees("Forked from")
        assert run.id not in screen.page.url
        await screen.page.locator("p.facts .badge", has_text="completed").wait_for()
        await screen.page.get_by_role("link", name="Values").click()
        await screen.sees("receipt 2")


async def test_many_runs_are_canceled_after_a_preview(screen: Screen):
    for amount in range(4):
        await screen.engine.start_run([("shop.afl", SHOP)], "shop.Checkout", {"amount": amount})
    page = screen.page
    await screen.go("/runs?workflow=shop.Checkout")
    await page.get_by_label("Apply to all matching").select_option("cancel")
    await page.get_by_role("button", name="Preview").click()
    await screen.sees("Cancel 4 runs?")
    await page.get_by_role("textbox", name="Reason").fill("a test")
    await page.get_by_role("button", name="Cancel 4 runs").click()
    await screen.sees("cancel: 4 runs.")
    assert await page.locator("main tbody .badge", has_text="canceled").count() == 4


async def test_the_takeover_of_a_killed_workers_task_is_shown(processes: Processes, browser: Browser):
    first = await processes.start_worker("--name", "loom-1")
    made = await processes.engine.enqueue("hang_once")
    async with on_screen(browser, processes.engine) as screen:
        await screen.go(f"/tasks/{made.id}")
        await screen.sees("running")
        await screen.is_live()
        first.send(signal.SIGKILL)
        await processes.died(first)
        await processes.start_worker("--name", "loom-2")
        await screen.page.locator("main .badge", has_text="completed").first.wait_for()
        await screen.sees("1 takeover")
        (done,) = await processes.finished([made.id])
        assert (done.attempt, done.takeovers) == (2, 1)


async def test_a_login_with_a_token_offers_the_actions_of_its_scopes(browser: Browser):
    """`log_in_and_out` asserts that no other action is offered."""
    async with Engine("memory://") as engine:
        await engine.kernel.tokens.create("first", ["read"])
        async with on_screen(browser, engine) as screen:
            await log_in_and_out(screen)


async def log_in_and_out(screen: Screen) -> None:
    task = await screen.engine.enqueue("greet", {"name": "Ada"})
    reader = await screen.engine.kernel.tokens.create("wall-screen", ["read"])
    operator = await screen.engine.kernel.tokens.create("ada", ["read", "operate"])
    page = screen.page

    async def log_in(secret: str) -> None:
        await screen.go(f"/tasks/{task.id}")
        await page.wait_for_url("**/login?*")
        await page.get_by_label("Token").fill(secret)
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url(f"**/tasks/{task.id}")

    await log_in(reader.secret)
    await screen.sees("greet")
    assert await page.get_by_role("button", name="Pause").count() == 0
    await page.get_by_role("button", name="Log out").click()
    await log_in(operator.secret)
    await page.get_by_role("button", name="Pause").click()
    await screen.sees("greet is now paused.")


async def test_a_wrong_token_is_rejected_with_an_explanation(screen: Screen):
    """The login does not fail silently: an alert appears."""
    await screen.engine.kernel.tokens.create("ada", ["read"])
    await screen.go("/login")
    await screen.page.get_by_label("Token").fill("treadle_nonsense")
    await screen.page.get_by_role("button", name="Log in").click()
    await screen.page.get_by_role("alert").wait_for()
    screen.complaints.clear()  # the browser tells of the refusal itself


async def test_pages_work_without_scripts(browser: Browser):
    async with Engine("memory://") as engine, on_screen(browser, engine, java_script_enabled=False) as screen:
        task = await engine.enqueue("greet", {"name": "Ada"})
        await screen.go("/tasks")
        await screen.page.get_by_role("link", name="greet").first.click()
        await screen.page.get_by_role("button", name="Pause").click()
        await screen.sees("greet is now paused.")
        assert (await engine.kernel.reads.get_task(task)).shown_state == "paused"
