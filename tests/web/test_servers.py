"""Pages about servers and events."""

from __future__ import annotations

from tests.web.conftest import Visit
from tests.web.test_lists import main_of


async def test_the_fleet_and_each_of_its_servers_are_shown(visit: Visit):
    assert "No live workers" in await visit.page("/servers")
    async with visit.engine.worker(name="loom-7", concurrency=12):
        await visit.engine.result(await visit.engine.enqueue("greet", {"name": "Ada"}))
        page = main_of(await visit.page("/servers"))
        assert "loom-7" in page
        assert "/12" in page
        (server,) = await visit.engine.kernel.store.servers.list_all()
        page = main_of(await visit.page(f"/servers/{server.id}"))
        assert "greet" in page
    assert "loom-7" not in main_of(await visit.page("/servers"))
    assert "stopped" in main_of(await visit.page("/servers?every"))


async def test_events_are_listed_newest_first_and_filtered(visit: Visit):
    first = await visit.engine.enqueue("greet", {"name": "Ada"})
    second = await visit.engine.enqueue("greet", {"name": "Bob"})
    await visit.engine.kernel.queue.cancel(first.id, actor="ann")
    await visit.engine.kernel.queue.pause(second.id, actor="bob")
    page = main_of(await visit.page("/events"))
    assert page.index(second.id) < page.index(first.id)
    assert "ann" in page
    page = main_of(await visit.page("/events?entity=task&transition=cancel"))
    assert first.id in page
    assert second.id not in page
    assert "No recent event matches" in await visit.page("/events?entity=run")


async def test_events_are_live_until_paused(visit: Visit):
    assert 'data-live="all"' in await visit.page("/events")
    assert 'data-live=""' in await visit.page("/events?still=1")
    assert 'data-live=""' in await visit.page("/events?after=0")


async def test_older_events_are_on_the_next_page(visit: Visit):
    for _ in range(60):
        made = await visit.engine.enqueue("greet", {"name": "Ada"})
        await visit.engine.kernel.queue.pause(made.id, actor="ann")
        await visit.engine.kernel.queue.resume(made.id, actor="ann")
    newest = main_of(await visit.page("/events"))
    assert 'id="events-120"' in newest
    assert 'id="events-20"' not in newest
    older = newest.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert 'id="events-20"' in await visit.page(older)
