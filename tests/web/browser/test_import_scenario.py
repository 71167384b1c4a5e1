"""A day of an operator in the browser: items fail, a worker is killed, a person approves, and one click repairs the run."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

from playwright.async_api import Browser, expect
from tests.commands import Treadle
from tests.engines import make_engine
from tests.limits import BOUND
from tests.runs.test_import_scenario import FLOW, HANDLERS
from tests.web.browser.conftest import IN_BROWSER, on_screen

from treadle.kernel.store.queries import DeadLetterFilter

pytestmark = IN_BROWSER


async def test_an_import_is_approved_retried_with_one_click_and_completes(browser: Browser, tmp_path: Path):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    treadle = Treadle(tmp_path, url, {"TREADLE_LEASE": "2"})
    worker = ("worker", "--handlers", "jobs", "--json", "--concurrency", "1")
    files = list(range(20))
    async with asyncio.timeout(3 * BOUND), make_engine(url) as engine, on_screen(browser, engine) as screen:
        page = screen.page
        run = await engine.start_run([("imports.afl", FLOW)], "Import", {"files": files}, on_failure="finish")
        with treadle.started(*worker) as first:
            assert await asyncio.to_thread(first.process.wait, BOUND) == -signal.SIGKILL
        await screen.go(f"/runs/{run.id}")
        await screen.is_live()
        state = page.locator("p.facts .badge").first
        with treadle.started(*worker):
            await page.get_by_role("button", name="Approve").click()
            await screen.sees("approved")
            await expect(state).to_have_text("failed", timeout=BOUND * 1000)
            await screen.sees("Takeovers")
            await expect(page.locator(".graph .block.bad .count")).to_have_text("7 of 20, 13 failed")
            await page.locator("#menu").get_by_role("link", name="Failures").click()
            await screen.sees("13 of runs")
            await screen.go(f"/runs/{run.id}")
            await page.get_by_role("button", name="Retry all that failed").click()
            await expect(state).to_have_text("completed", timeout=BOUND * 1000)
            await expect(page.locator(".graph .block.good .count")).to_have_text("20 of 20")
        await screen.go("/dead-letters")
        await screen.sees("No dead letters: no task has failed permanently.")
        assert (await engine.kernel.store.dead_letters.count(DeadLetterFilter()))[0] == 0
        assert (await engine.run_result(run))["rows"] == files  # type: ignore[index,call-overload]
        calls = await asyncio.to_thread((tmp_path / "calls").read_text)
        assert Counter(map(int, calls.split())) == {n: 3 if n < 13 else 2 if n == 19 else 1 for n in files}
        assert (await engine.kernel.verify()).problems == ()
