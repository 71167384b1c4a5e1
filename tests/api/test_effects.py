"""Calls about effects, on an engine and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.conftest import Scene

from treadle import Context, TaskFailed
from treadle.model.errors import InvalidInput

BOUND = 30


async def doubt(scene: Scene, count: int) -> list[str]:
    """Tasks with an effect of unknown outcome; their ids."""

    @scene.engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        def charge() -> None:
            raise TimeoutError("no answer")

        await ctx.effect("charge", charge)

    tasks = [await scene.engine.enqueue("pay") for _ in range(count)]
    async with scene.engine.worker():
        for task in tasks:
            with pytest.raises(TaskFailed):
                await scene.engine.result(task, timeout=BOUND)
    return [task.id for task in tasks]


async def test_effects_of_unknown_outcome_are_listed_page_by_page(scene: Scene):
    assert (await scene.api.effects.list()).effects == []
    task_ids = await doubt(scene, 3)
    page = await scene.api.effects.list()
    assert {each.task_id for each in page.effects} == set(task_ids)
    assert page.next_before is None
    one = page.effects[0]
    assert (one.action, one.attempt, one.name, one.task_list, one.task_state, one.run_id) == (
        "charge",
        1,
        "pay",
        "default",
        "failed",
        None,
    )
    (transition, _) = await scene.engine.kernel.reads.list_transitions(one.task_id)
    assert one.dedupe_key in (transition.data or "")
    first = await scene.api.effects.list(limit=2)
    second = await scene.api.effects.list(limit=2, before=first.next_before)
    assert [*first.effects, *second.effects] == page.effects
    assert [each.task_id for each in (await scene.api.effects.list(task_id=task_ids[1])).effects] == [task_ids[1]]
    assert (await scene.api.effects.list(run_id=task_ids[1])).effects == []


@pytest.mark.parametrize("wrong", [{"before": "x"}, {"before": "9" * 30 + ".a"}, {"task_id": "x"}, {"run_id": "x"}, {"limit": 0}])
async def test_a_wrong_filter_is_refused(scene: Scene, wrong: dict[str, Any]):
    with pytest.raises(InvalidInput):
        await scene.api.effects.list(**wrong)
