"""Pages about dead letters."""

from __future__ import annotations

import re

import pytest
from tests.web.conftest import Visit
from tests.web.test_lists import main_of
from tests.web.test_tasks import HOSTILE

from treadle.interfaces.web import dead_letters
from treadle.model.errors import TaskFailed


async def fail(visit: Visit, count: int, message: str = "no luck", name: str = "fail") -> list[str]:
    """So many tasks that failed permanently."""

    async def raises(payload: dict[str, str]) -> None:
        raise RuntimeError(message)

    visit.engine.handler(name)(raises)
    made = [await visit.engine.enqueue(name, {}, retry=0) for _ in range(count)]
    async with visit.engine.worker():
        for each in made:
            with pytest.raises(TaskFailed):
                await visit.engine.result(each)
    return [each.id for each in made]


def going_on(page: str) -> dict[str, str]:
    """The fields of the form that goes on with bulk work."""
    form = page.partition("data-continue")[2].partition("</form>")[0]
    return dict(re.findall(r'name="([^"]*)"\s+value="([^"]*)"', form))


async def test_dead_letters_are_grouped_by_cause(visit: Visit):
    await fail(visit, 3)
    page = main_of(await visit.page("/dead-letters"))
    assert "<strong>3</strong>" in page
    assert "no luck" in page
    assert "3 in 1 group" in page
    assert "No dead letters fit." in await visit.page("/dead-letters?name=other")


async def test_bulk_operations_preview_their_matches_before_they_run(visit: Visit):
    await fail(visit, 3)
    await fail(visit, 1, "other trouble", "other")
    page = main_of(await visit.page("/dead-letters/retry?name=fail"))
    assert "<strong>3</strong> of 3 matching dead letters" in page
    assert "no luck" in page
    assert "other trouble" not in page
    assert "<strong>3</strong>" in await visit.page("/dead-letters")  # a look changes nothing
    assert "3 letters retried." in await visit.do("/dead-letters/retry", name="fail")
    assert "1 letter discarded." in await visit.do("/dead-letters/discard", name="other")
    assert "no task has failed permanently" in await visit.page("/dead-letters")


async def test_a_bulk_action_on_everything_warns_first(visit: Visit):
    await fail(visit, 2)
    assert "This is every dead letter." in await visit.page("/dead-letters/discard")
    assert "2 letters discarded." in await visit.do("/dead-letters/discard")


async def test_bulk_operations_continue_over_several_requests(visit: Visit, monkeypatch: pytest.MonkeyPatch):
    await fail(visit, 6)
    monkeypatch.setattr(dead_letters, "AT_ONCE", 1)
    monkeypatch.setattr(dead_letters, "BATCH", 2)
    page = await visit.do("/dead-letters/retry", name="fail")
    assert "2 retried; more remain." in page
    assert "data-continue" in page
    assert going_on(page)["done"] == "2"
    page = await visit.do("/dead-letters/retry", **going_on(page))
    assert "4 retried; more remain." in page
    page = await visit.do("/dead-letters/retry", **going_on(page))
    assert "6 retried; more remain." in page
    assert "6 letters retried." in await visit.do("/dead-letters/retry", **going_on(page))


async def test_a_group_shows_its_dead_letters_and_some_of_them_can_be_chosen(visit: Visit):
    first, *_ = await fail(visit, 3)
    fingerprint = (await visit.engine.kernel.reads.get_task(first)).fingerprint
    page = main_of(await visit.page(f"/dead-letters?fingerprint={fingerprint}"))
    assert page.count('name="id"') == 3
    assert "Traceback" in page
    assert "1 letter retried." in await visit.do("/dead-letters/retry", id=first)
    assert (await visit.engine.kernel.reads.get_task(first)).shown_state == "pending"


async def test_handler_error_messages_are_escaped(visit: Visit):
    (first,) = await fail(visit, 1, HOSTILE)
    fingerprint = (await visit.engine.kernel.reads.get_task(first)).fingerprint
    for path in ("/dead-letters", f"/dead-letters?fingerprint={fingerprint}", "/dead-letters/retry", "/events"):
        page = await visit.page(path)
        assert HOSTILE not in page
        assert "<img" not in page


async def test_an_empty_selection_is_explained_and_offers_no_button(visit: Visit):
    page = main_of(await visit.page("/dead-letters/retry?name=fail"))
    assert "No dead letter matches" in page
    assert 'method="post"' not in page
    assert (await visit.browser.get("/dead-letters/burn")).status_code == 404
