"""Calls about servers, on an engine and over HTTP."""

from __future__ import annotations

from tests.api.conftest import Scene
from tests.errors import raises_code


async def test_servers_are_listed_shown_and_counted_together(scene: Scene):
    async with scene.engine.worker(concurrency=7, name="mill", task_lists=["default", "night"]):
        made = await scene.api.tasks.enqueue("greet", {"name": "Ada"})
        await scene.api.tasks.result(made.id, wait_for=30)
        (server,) = (await scene.api.servers.list()).servers
        assert (server.name, server.state, server.concurrency) == ("mill", "running", 7)
        assert set(server.handlers) >= {"greet", "fail"}
        shown = await scene.api.servers.get(server.id)
        assert (shown.id, shown.server_group, shown.error) == (server.id, "default", None)
        fleet = await scene.api.servers.fleet()
        assert (fleet.states, fleet.slots, fleet.oldest_heartbeat_at) == ({"running": 1}, 7, server.heartbeat_at)
        assert [(each.name, each.servers) for each in fleet.task_lists] == [("default", 1), ("night", 1)]
        assert [each.name for each in fleet.versions] == [server.version]
    (server,) = (await scene.api.servers.list()).servers
    assert (server.state, server.handled) == ("stopped", 1)
    assert (await scene.api.servers.list(live=True)).servers == []
    fleet = await scene.api.servers.fleet()
    assert (fleet.states, fleet.slots, fleet.oldest_heartbeat_at) == ({"stopped": 1}, 0, None)


async def test_an_unknown_server_is_not_found(scene: Scene):
    with raises_code("server_not_found", match="nobody"):
        await scene.api.servers.get("nobody")
