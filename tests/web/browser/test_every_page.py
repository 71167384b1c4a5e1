"""Every page in a browser: it complains of nothing, runs nothing that users wrote, and can be used by everybody."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser
from tests.web.browser.conftest import IN_BROWSER, on_screen
from tests.web.browser.screenshots import settled
from tests.web.scene import set_scene
from tests.web.test_every_page import evil

AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
FOUND = """options => axe.run(document, {resultTypes: ["violations"], ...options}).then(all => all.violations
  .filter(each => ["serious", "critical"].includes(each.impact))
  .map(each => [each.id, each.help, each.nodes.slice(0, 4).map(node => [node.target.join(" "), node.failureSummary])]))"""

COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""The rules that depend on the theme."""

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
WIDTHS = (390, 1920, WIDE["width"])
"""The widths at which no page may scroll sideways; the last one stays."""
NARROW = ("overview", "runs", "run", "step", "dead-group")
"""Pages that are also looked at on a phone: one of each kind of markup."""

pytestmark = IN_BROWSER


@dataclass
class Look:
    """How the browser found a page that shows what hostile users wrote."""

    ran: Any
    complaints: list[str]
    dialogs: list[str]
    violations: list[Any] = field(default_factory=list)
    too_wide: dict[int, int] = field(default_factory=dict)
    """Pixels by which it is wider than a screen, by the width of that screen."""


ALL = pytest.param(1, marks=pytest.mark.soak, id="all")


@pytest_asyncio.fixture(loop_scope="session", scope="module", params=[pytest.param(6, id="a sixth"), ALL])
async def looks(request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Look]:
    """Every page, opened once for all tests; axe, which takes seconds, examines a sixth of them and those for phones."""
    script = AXE.read_text() if AXE.is_file() else None
    looks: dict[str, Look] = {}
    async with set_scene(tmp_path_factory.mktemp("pages"), evil) as scene:
        options = {
            "extra_http_headers": {"Authorization": f"Bearer {scene.secret}"},
            "color_scheme": "light",
            "viewport": WIDE,
            "reduced_motion": "reduce",
        }
        async with on_screen(browser, scene.engine, **options) as screen:
            page, dialogs = screen.page, []

            async def dismiss(dialog: Any) -> None:
                dialogs.append(dialog.message)
                await dialog.dismiss()

            page.on("dialog", dismiss)
            for number, (name, path) in enumerate(scene.paths.items()):
                await screen.go(path)
                await settled(page)
                if name == "trouble":
                    screen.complaints.clear()  # that there is no such run
                ran = await page.evaluate("[window.evil ?? null, document.querySelectorAll('x-evil, [x-evil], main img').length]")
                looks[name] = look = Look(ran, list(screen.complaints), list(dialogs))
                if script is not None and (name in NARROW or number % request.param == 0):
                    await page.evaluate(script)
                    look.violations += await page.evaluate(FOUND, {})
                    await page.emulate_media(color_scheme="dark")
                    await settled(page)
                    look.violations += await page.evaluate(FOUND, COLOURS)
                    if name in NARROW:
                        await page.set_viewport_size(PHONE)
                        await settled(page)
                        look.violations += await page.evaluate(FOUND, {})
                        await page.set_viewport_size(WIDE)
                    await page.emulate_media(color_scheme="light")
                for width in WIDTHS:
                    await page.set_viewport_size({"width": width, "height": 900})
                    look.too_wide[width] = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                look.complaints += screen.complaints[len(look.complaints) :]
                screen.complaints.clear()
    return looks


async def test_no_page_has_console_errors_or_executes_user_input(looks: dict[str, Look]):
    assert len(looks) > 50
    for name, look in looks.items():
        assert (look.ran, look.complaints, look.dialogs) == ([None, 0], [], []), name


async def test_axe_finds_no_serious_violation_on_any_page(looks: dict[str, Look]):
    if not AXE.is_file():
        pytest.skip("axe-core is not there: make assets fetches it")
    assert {name: look.violations for name, look in looks.items() if look.violations} == {}


async def test_no_page_scrolls_sideways(looks: dict[str, Look]):
    assert {name: look.too_wide for name, look in looks.items() if max(look.too_wide.values()) > 0} == {}
