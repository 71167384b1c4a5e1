"""Every page in a browser: it complains of nothing, runs nothing that users wrote, and can be used by everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser
from tests.web.browser.conftest import IN_BROWSER, Screen, on_screen
from tests.web.browser.screenshots import settled
from tests.web.scene import Scene, set_scene
from tests.web.test_every_page import evil

AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
FOUND = """options => axe.run(document, {resultTypes: ["violations"], ...options}).then(all => all.violations
  .filter(each => ["serious", "critical"].includes(each.impact))
  .map(each => [each.id, each.help, each.nodes.slice(0, 4).map(node => [node.target.join(" "), node.failureSummary])]))"""

COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""The rules that depend on the theme."""

pytestmark = IN_BROWSER


def bearer(scene: Scene) -> dict[str, Any]:
    return {"extra_http_headers": {"Authorization": f"Bearer {scene.secret}"}}


async def go(screen: Screen, name: str, path: str) -> None:
    await screen.go(path)
    await settled(screen.page)
    if name == "trouble":
        screen.complaints.clear()  # that there is no such run


async def test_no_page_complains_or_runs_what_users_wrote(browser: Browser, tmp_path: Path):
    async with set_scene(tmp_path, evil) as scene, on_screen(browser, scene.engine, **bearer(scene)) as screen:
        dialogs: list[str] = []

        async def dismiss(dialog: Any) -> None:
            dialogs.append(dialog.message)
            await dialog.dismiss()

        screen.page.on("dialog", dismiss)
        for name, path in scene.paths.items():
            await go(screen, name, path)
            ran = await screen.page.evaluate(
                "[window.evil ?? null, document.querySelectorAll('x-evil, [x-evil], main img').length]"
            )
            assert ran == [None, 0], name
            assert screen.complaints == [], name
        assert dialogs == []


async def test_axe_finds_no_serious_violation_on_any_page(browser: Browser, tmp_path: Path):
    if not AXE.is_file():
        pytest.skip("axe-core is not there: make assets fetches it")
    script = AXE.read_text()
    async with set_scene(tmp_path) as scene:
        options = bearer(scene) | {"color_scheme": "light", "reduced_motion": "reduce", "bypass_csp": True}
        async with on_screen(browser, scene.engine, **options) as screen:
            wrong: dict[str, Any] = {}
            for name, path in scene.paths.items():
                await go(screen, name, path)
                await screen.page.evaluate(script)
                found = await screen.page.evaluate(FOUND, {})
                await screen.page.emulate_media(color_scheme="dark")
                await settled(screen.page)
                found += await screen.page.evaluate(FOUND, COLOURS)
                await screen.page.emulate_media(color_scheme="light")
                if found:
                    wrong[name] = found
            assert wrong == {}
