"""Calls about task lists, on an engine and over HTTP."""

from __future__ import annotations

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidName, InvalidPolicy, ListForbidden, RestrictedToken


async def test_lists_are_shown_with_their_queues_and_operated(scene: Scene):
    lists = scene.api.lists
    await scene.api.tasks.enqueue("greet", task_list="night")
    assert [each.task_list for each in (await lists.list()).lists] == ["default", "night"]
    (queue,) = (await lists.get("night")).queues
    assert (queue.name, queue.ready, queue.running) == ("greet", 1, 0)
    assert queue.oldest_due_at is not None
    assert (await lists.pause("night")).paused
    assert not (await lists.drain("night")).accepting
    resumed = await lists.resume("night")
    assert (resumed.paused, resumed.accepting) == (False, True)
    assert (await lists.set_policy("night", "ignore")).no_handler == "ignore"


async def test_rates_caps_and_limits_are_set_and_removed(scene: Scene):
    lists = scene.api.lists
    await scene.api.tasks.enqueue("greet", limit_key="customer:42/a", limit=1)
    (limit,) = (await lists.limit_key("customer:42/a", 5)).limits
    assert (limit.key, limit.max_running, limit.by_operator, limit.admitted) == ("customer:42/a", 5, True, 1)
    await lists.limit_handler("greet", 3)
    await lists.limit_rate("default", "greet", 2.5, burst=4)
    (queue,) = (await lists.limit_backlog("default", "greet", 7)).queues
    assert (queue.limit_key, queue.rate, queue.burst, queue.backlog_limit) == ("handler:greet", 2.5, 4, 7)
    await lists.limit_rate("default", "greet", None)
    (queue,) = (await lists.limit_backlog("default", "greet", None)).queues
    assert (queue.rate, queue.burst, queue.backlog_limit) == (None, None, None)
    await lists.limit_handler("greet", None)
    assert (await lists.limit_key("customer:42/a", None)).limits == []
    assert (await lists.limits()).limits == []


async def test_the_desired_workers_of_a_list_are_reported_with_the_reason(scene: Scene):
    await scene.api.tasks.enqueue("greet")
    found = await scene.api.lists.desired("default", name="greet", concurrency=2, least=1, most=4)
    assert (found.task_list, found.name, found.desired, found.ready, found.target_for) == ("default", "greet", 1, 1, 30_000)
    assert "1 ready" in found.text


async def test_names_may_contain_slashes(scene: Scene):
    await scene.api.tasks.enqueue("billing/charge", task_list="eu/night")
    assert (await scene.api.lists.get("eu/night")).task_list == "eu/night"
    assert (await scene.api.lists.pause("eu/night")).paused
    (queue,) = (await scene.api.lists.limit_rate("eu/night", "billing/charge", 2)).queues
    assert (queue.name, queue.rate) == ("billing/charge", 2)
    with pytest.raises(InvalidName, match="%2F"):
        await scene.api.lists.get("eu%2Fnight")
    with pytest.raises(InvalidName, match="a%/b"):
        await scene.api.lists.get("a%/b")


async def test_invalid_arguments_are_rejected(scene: Scene):
    lists = scene.api.lists
    with raises_code("list_not_found", match="nosuch"):
        await lists.pause("nosuch")
    with pytest.raises(InvalidPolicy):
        await lists.set_policy("default", "explode")
    with pytest.raises(InvalidPolicy):
        await lists.limit_key("k", 0)
    with pytest.raises(InvalidPolicy):
        await lists.limit_rate("default", "greet", None, burst=3)


async def test_a_token_for_some_lists_sees_and_operates_those_alone(scene: Scene):
    await scene.api.tasks.enqueue("greet", task_list="night")
    held = Operations(scene.engine, Access("ci", frozenset(Scope), ("night",))).lists
    assert [each.task_list for each in (await held.list()).lists] == ["night"]
    assert (await held.pause("night")).paused
    assert (await held.limits()).limits == []
    for refused in (held.get, held.pause, held.resume, held.drain, held.desired):
        with pytest.raises(ListForbidden):
            await refused("default")
    with pytest.raises(RestrictedToken):
        await held.limit_key("k", 1)
