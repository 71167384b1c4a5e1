"""Pages about tokens, retention and the store."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.web.conftest import Visit
from tests.web.test_dead_letters import going_on
from tests.web.test_lists import main_of

from treadle.interfaces.web import settings
from treadle.model.access import PRESET_DAYS, PRESETS


async def test_a_token_is_made_its_secret_shown_once_and_revoked(visit: Visit):
    assert "There are no tokens" in await visit.page("/settings")
    answer = await visit.browser.post("/settings/tokens", data={"name": "ada", "scope": ["read", "admin"], "expires": "1"})
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    secret = answer.text.partition('aria-label="Secret">')[2].partition("<")[0]
    assert (await visit.engine.kernel.tokens.find_access(secret)).actor == "ada"
    async with visit.anew() as visit:
        assert (await visit.browser.get("/settings")).status_code == 303
        visit.browser.headers["Authorization"] = f"Bearer {secret}"
        page = await visit.page("/settings")
        assert "ada" in page
        assert secret not in page
        (token,) = (await visit.engine.kernel.tokens.list()).tokens
        answer = await visit.browser.post(f"/settings/tokens/{token.id}/revoke")
        assert (answer.status_code, answer.headers["location"]) == (303, "/settings")
        assert (await visit.engine.kernel.tokens.list()).tokens == []


async def test_a_token_without_scopes_is_rejected_with_an_explanation(visit: Visit):
    assert "scope" in main_of(await visit.do("/settings/tokens", name="ada"))
    assert (await visit.engine.kernel.tokens.list()).tokens == []


@pytest.mark.parametrize("preset", PRESETS)
async def test_a_preset_grants_its_scopes_for_the_default_time(visit: Visit, preset: str):
    page = await visit.page("/settings")
    assert f'name="expires" type="number" min="0.01" step="any" value="{PRESET_DAYS}"' in page
    await visit.do("/settings/tokens", name="ada", preset=preset, expires=str(PRESET_DAYS))
    (token,) = (await visit.engine.kernel.tokens.list()).tokens
    assert token.scopes == sorted(PRESETS[preset])
    assert token.expires_at is not None
    assert round((token.expires_at - token.created_at) / timedelta(days=1)) == PRESET_DAYS


async def test_the_login_page_has_no_menu(visit: Visit):
    page = await visit.page("/login")
    assert "<main" in page
    assert not any(text in page for text in ('id="menu"', "data-toggle-menu", "data-palette"))


async def test_retention_rules_of_a_list_are_set(visit: Visit):
    assert "by default" in await visit.page("/settings/retention")
    page = await visit.do("/settings/retention", task_list="night", completed="2", failed="30")
    assert "night now has its own retention rules." in page
    assert '<td class="number">30 d</td>' in page


async def test_pruning_is_previewed_and_done(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    made = await visit.engine.enqueue("greet", {"name": "Ada"})
    await visit.engine.kernel.queue.cancel(made.id, actor="ann")
    await visit.do("/settings/retention", task_list="default", completed="0", failed="0")
    monkeypatch.setattr(settings, "PAGES_AT_ONCE", 1)

    async def pruned(**fields: str) -> str:
        page = main_of(await visit.do("/settings/prune", **fields))
        while "data-continue" in page:
            page = main_of(await visit.do("/settings/prune", **going_on(page)))
        return page

    page = await pruned(dry="1")
    assert "To be pruned" in page
    assert "Prune these now" in page
    assert (await visit.engine.kernel.reads.get_task(made)).finished
    assert "<h2>Pruned</h2>" in await pruned()
    assert (await visit.browser.get(f"/tasks/{made.id}")).status_code == 404


async def test_the_store_is_shown_and_its_log_verified_page_by_page(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    for _ in range(3):
        made = await visit.engine.enqueue("greet", {"name": "Ada"})
        await visit.engine.kernel.queue.cancel(made.id, actor="ann")
    assert "measured on demand" in await visit.page("/settings/store")
    page = main_of(await visit.page("/settings/store?measure"))
    assert "Finished: canceled" in page
    assert "sqlite library" in page
    monkeypatch.setattr(settings, "PAGES_AT_ONCE", 1)
    page = main_of(await visit.do("/settings/verify"))
    assert "No problems so far" in page
    while "data-continue" in page:
        page = main_of(await visit.do("/settings/verify", **going_on(page)))
    assert "The log is consistent" in page
    assert "3 histories were checked." in page


async def test_problems_of_earlier_verify_steps_stay_listed(visit: Visit):
    page = main_of(await visit.do("/settings/verify", problem="task <b>7</b>: transition 2 should be number 1"))
    assert "1 problem" in page
    assert "task &lt;b&gt;7&lt;/b&gt;: transition 2 should be number 1" in page


async def test_slow_calls_of_the_store_are_shown(visit: Visit):
    await visit.page("/settings/store")  # from now on it is measured
    async with visit.engine.worker():
        await visit.engine.result(await visit.engine.enqueue("greet", {"name": "Ada"}))
    page = main_of(await visit.page("/settings/store"))
    assert '<th scope="row">commit</th>' in page
