"""Calls about watchers, on an engine and over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code
from tests.limits import BOUND

from treadle import Engine
from treadle.engine.operations import Operations
from treadle.model.access import OPEN, Scope
from treadle.model.errors import IllegalTransition, InvalidInput, InvalidWatcher, WatchForbidden
from treadle.model.watchers import is_allowed
from treadle.settings import Settings


async def test_a_watcher_is_created_shown_edited_paused_resumed_and_removed(scene: Scene, tmp_path: Path):
    api = scene.api.watchers
    made = await api.create("inbox", directory=str(tmp_path), pattern="*.csv", task="greet", inputs={"n": 1}, every=5)
    assert (made.state, made.source.kind, made.source.place, made.source.pattern) == ("active", "directory", str(tmp_path), "*.csv")
    assert (made.every_for, made.changes, made.target.given_as) == (5000, ["created", "modified"], "change")
    assert await api.get("inbox") == made == await api.get(made.id)
    assert (await api.list()).watchers == [made]
    edited = await api.edit("inbox", every=300, changes=["deleted"], hashing=False)
    assert (edited.every_for, edited.changes, edited.source.hashing) == (300_000, ["deleted"], False)
    assert (await api.pause("inbox")).state == "paused"
    with pytest.raises(IllegalTransition):
        await api.look("inbox")
    assert (await api.resume("inbox")).state == "active"
    assert (await api.look("inbox")).task_id != made.task_id
    assert (await api.remove("inbox")).state == "removed"
    assert (await api.list()).watchers == []
    assert [each.id for each in (await api.list(every=True)).watchers] == [made.id]
    with raises_code("watcher_not_found"):
        await api.get("inbox")


async def test_seen_files_are_paged_in_order_of_name(scene: Scene, tmp_path: Path):
    for name in ("b", "a", "c"):
        (tmp_path / name).write_text(name)
    await scene.api.watchers.create("inbox", directory=str(tmp_path), task="greet")
    async with scene.engine.worker(), asyncio.timeout(BOUND):
        while not (await scene.api.watchers.get("inbox")).items:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    first = await scene.api.watchers.seen("inbox", limit=2)
    rest = await scene.api.watchers.seen("inbox", limit=2, after=first.next_after)
    assert [(each.name, each.size, each.settling) for each in (*first.seen, *rest.seen)] == [(name, 1, False) for name in "abc"]
    assert rest.next_after is None


async def test_invalid_watchers_are_rejected(scene: Scene):
    api = scene.api.watchers
    with pytest.raises(InvalidWatcher):
        await api.create("x", task="greet")
    with pytest.raises(InvalidWatcher):
        await api.create("x", directory="/srv/../etc", task="greet")
    with pytest.raises(InvalidWatcher):
        await api.create("x", directory="/srv", pattern="[z-a]", task="greet")
    with pytest.raises(InvalidInput):
        await api.create("x", directory="/srv")
    await api.create("inbox", directory="/srv", task="greet")
    with raises_code("watcher_exists"):
        await api.create("inbox", directory="/srv", task="greet")
    with pytest.raises(InvalidInput, match="limit"):
        await api.list(limit=0)


async def test_an_operator_watches_only_locations_allowed_by_settings():
    settings = Settings(store="memory://", watch_allow=("/srv/in", "https://example.org/prices"))
    async with Engine("memory://", settings=settings) as engine:
        operator = Operations(engine, replace(OPEN, scopes=frozenset({Scope.OPERATE, Scope.WORK, Scope.READ})))
        for number, place in enumerate(({"directory": "/etc"}, {"file": "/srv/inner"}, {"url": "http://169.254.169.254/"})):
            with pytest.raises(WatchForbidden, match="TREADLE_WATCH_ALLOW"):
                await operator.watchers.create(f"w{number}", task="greet", **place)
        await operator.watchers.create("in", directory="/srv/in/today", task="greet")
        await operator.watchers.create("prices", url="https://example.org/prices/eu.json", task="greet")
        await Operations(engine, OPEN).watchers.create("etc", directory="/etc", task="greet")


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        ("/srv/in", True),
        ("/srv/in/a/b", True),
        ("/srv/in2", False),
        ("/srv", False),
        ("/srv/in/../../etc", False),
        ("https://example.org/prices", True),
        ("https://example.org:443/prices/eu", True),
        ("https://EXAMPLE.org/prices?day=1", True),
        ("https://example.org/prices/%2e%2e/admin", False),
        ("https://example.org/pricesX", False),
        ("https://example.org:8443/prices", False),
        ("http://example.org/prices", False),
        ("https://example.org@evil.org/prices", False),
        ("https://example.org.evil.org/prices", False),
        ("https://example.org:port/prices", False),
        ("HTTPS://example.org./prices", True),
        ("https://example.org/%70rices", True),
        ("https://example.org/prices/%252e%252e/admin", False),
        ("https://example.org/prices%2f..%2fadmin", False),
        ("https://example.org/prices\\..\\admin", False),
        ("https://b\u00fccher.example/", True),
        ("https://xn--bcher-kva.example/x", True),
        ("http://2130706433/a", True),
        ("http://0x7f.1/a", True),
        ("http://[::ffff:127.0.0.1]:80/a", True),
        ("http://[::1]/a", False),
        ("/srv/in/50%2e%2e", True),
    ],
)
def test_a_location_is_allowed_at_or_below_a_listed_one(place: str, allowed: bool):
    assert (
        is_allowed(place, ("/srv/in/", "https://example.org/prices", "https://B\u00dcCHER.example", "http://127.0.0.1/a"))
        is allowed
    )
