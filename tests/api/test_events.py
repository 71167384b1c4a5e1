"""Calls about events, on an engine and over HTTP."""

from __future__ import annotations

import pytest
from tests.api.conftest import Scene

from treadle.model.errors import InvalidInput


async def cancel(scene: Scene, count: int) -> list[str]:
    ids = []
    for _ in range(count):
        made = await scene.api.tasks.enqueue("greet")
        await scene.api.tasks.cancel(made.id)
        ids.append(made.id)
    return ids


async def test_pages_follow_one_another_from_the_beginning(scene: Scene):
    ids = await cancel(scene, 5)
    found, after, more = [], 0, True
    while more:
        page = await scene.api.events.list(after_seq=after, limit=2)
        found += page.events
        after, more = page.next_after, page.more
    assert [event.entity_id for event in found] == ids
    assert page.resume_after == page.next_after == found[-1].seq
    assert {(event.transition, event.from_state, event.to_state, event.actor) for event in found} == {
        ("cancel", "pending", "canceled", "local")
    }


async def test_without_a_cursor_the_latest_events_are_returned(scene: Scene):
    ids = await cancel(scene, 5)
    page = await scene.api.events.list(limit=2)
    assert [event.entity_id for event in page.events] == ids[-2:]
    assert not page.more


async def test_filters_exclude_other_events(scene: Scene):
    ids = await cancel(scene, 3)
    assert [event.entity_id for event in (await scene.api.events.list(entity_id=ids[1])).events] == [ids[1]]
    assert (await scene.api.events.list(after_seq=0, entity="run")).events == []
    assert (await scene.api.events.list(after_seq=0, transition="succeed")).events == []
    assert len((await scene.api.events.list(root_id=ids[0])).events) == 1


async def test_invalid_arguments_are_rejected(scene: Scene):
    for wrong in ({"limit": 0}, {"limit": 5000}, {"after_seq": -1}, {"entity_id": "no-id"}):
        with pytest.raises(InvalidInput):
            await scene.api.events.list(**wrong)
