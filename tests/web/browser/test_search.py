"""The search box in a browser: a query, its error at the field, and tags that link to their search."""

from __future__ import annotations

from tests.web.browser.conftest import IN_BROWSER, Screen

pytestmark = IN_BROWSER


async def test_runs_are_found_by_a_query_and_by_a_click_on_a_tag(screen: Screen) -> None:
    engine, page = screen.engine, screen.page
    for number in range(4):
        tags = {"customer": "acme & co" if number % 2 else 'b"c', "n": number}
        run = await engine.start_function("order", {"n": number}, version=1, tags=tags)
    await screen.go("/runs")
    box = page.get_by_role("searchbox", name="Query")
    await box.fill("tag.n >= 2 and input.n < 3")
    await box.press("Enter")
    await page.wait_for_url("**where=**")
    assert await page.locator("tbody tr").count() == 1
    await page.locator("tbody").get_by_role("link", name='customer = b"c').click()
    await page.wait_for_url("**customer**")
    assert await page.locator("tbody tr").count() == 2
    assert await page.get_by_role("searchbox", name="Query").input_value() == 'tag.customer = "b\\"c"'
    await screen.go("/runs?where=stat+%3D+failed")
    error = page.get_by_role("alert").filter(has_text="did you mean state?")
    await error.wait_for()
    box = page.get_by_role("searchbox", name="Query")
    assert await box.get_attribute("aria-invalid") == "true"
    assert await box.input_value() == "stat = failed"
    await screen.go("/runs/last")
    await screen.sees(run.id)
    await page.get_by_role("link", name="n = 3").click()
    await page.wait_for_url("**/runs?where=**")
    assert await page.locator("tbody tr").count() == 1
    await screen.go("/tasks?where=kind+%3D+function&every=on")
    assert await page.locator("tbody tr").count() == 4
