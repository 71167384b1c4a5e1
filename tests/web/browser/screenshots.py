"""Pictures of every page, in light and in dark, a few of them as on a phone: `python -m tests.web.browser.screenshots [FOLDER]`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Browser, Page, async_playwright
from tests.web.browser import chromium
from tests.web.scene import Scene, set_scene

from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.interfaces.web.site import add_pages

FOLDER = Path(__file__).parents[3] / "docs" / "images"
WIDE, PHONE = (1200, 800), (390, 844)
ON_A_PHONE = ("overview", "runs", "run", "approvals", "objectives", "dead-letters", "lists", "editor")


async def settled(page: Page) -> None:
    """Wait until scripts have drawn what they draw."""
    await page.wait_for_load_state("load")
    await page.evaluate("document.fonts.ready")
    await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


async def shoot(
    browser: Browser, url: str, scene: Scene, folder: Path, theme: str, size: tuple[int, int], only: tuple[str, ...]
) -> None:
    """Pictures of the pages in one theme and size."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
        extra_http_headers={"Authorization": f"Bearer {scene.secret}"},
    )
    page = await context.new_page()
    for name, path in scene.paths.items():
        if name in only or not only:
            await page.goto(f"{url}{path}")
            await settled(page)
            await page.screenshot(path=folder / f"{name}-{theme}{'-phone' if size == PHONE else ''}.png")
    await context.close()


async def main(folder: Path) -> None:
    """Set the scene, and take all pictures."""
    program, problem = chromium.get()
    if program is None:
        sys.exit(problem)
    with TemporaryDirectory() as place:
        async with (
            set_scene(Path(place), busy=True) as scene,
            HttpServer(scene.engine, HttpOptions(port=0), more=(add_pages,)) as server,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=program, args=list(chromium.FLAGS))
            for theme in ("light", "dark"):
                await shoot(browser, server.url, scene, folder, theme, WIDE, ())
            await shoot(browser, server.url, scene, folder, "light", PHONE, ON_A_PHONE)
            await browser.close()


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    FOLDER.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(FOLDER))
    taken = sorted(FOLDER.glob("*.png"))
    print(f"{len(taken)} pictures, {sum(each.stat().st_size for each in taken) // 1024} KiB, in {FOLDER}")
