"""Calls about dead letters, on an engine and over HTTP."""

from __future__ import annotations

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput, TaskNotFound


async def fail(scene: Scene, count: int, task_list: str = "default") -> list[str]:
    """Dead letters, in the order in which they failed."""
    made = [(await scene.api.tasks.enqueue("fail", {"n": n}, task_list=task_list)).id for n in range(count)]
    async with scene.engine.worker(task_lists=[task_list], concurrency=1):
        for task_id in made:
            await scene.api.tasks.result(task_id, wait_for=30)
    return made


async def test_dead_letters_are_paged_grouped_and_shown(scene: Scene):
    made = await fail(scene, 3)
    first = await scene.api.dead_letters.list(limit=2)
    rest = await scene.api.dead_letters.list(limit=2, before=first.next_before)
    assert [letter.id for letter in (*first.letters, *rest.letters)] == made[::-1]
    assert rest.next_before is None
    (group,) = (await scene.api.dead_letters.groups()).groups
    assert (group.count, group.name, group.last_id, group.error["message"]) == (3, "fail", made[2], "no luck")
    shown = await scene.api.dead_letters.get(made[0])
    assert (shown.payload, shown.fingerprint, shown.state) == ({"n": 0}, group.fingerprint, "failed")
    assert (await scene.api.dead_letters.list(fingerprint="other")).letters == []


async def test_a_dry_run_counts_matches_without_a_change(scene: Scene):
    await fail(scene, 2)
    for act in (scene.api.dead_letters.retry, scene.api.dead_letters.discard):
        told = await act(name="fail", dry_run=True)
        assert (told.matched, told.done, told.dry_run, told.next_after) == (2, 2, True, None)
    assert len((await scene.api.dead_letters.list()).letters) == 2


async def test_bulk_operations_resume_and_process_each_dead_letter_once(scene: Scene):
    made = await fail(scene, 5)
    first = await scene.api.dead_letters.retry(older_than=0, limit=2, payload={"edited": True})
    assert (first.matched, first.done) == (5, 2)
    second = await scene.api.dead_letters.retry(older_than=0, limit=2, after=first.next_after, payload={"edited": True})
    assert (second.matched, second.done) == (5, 2)
    last = await scene.api.dead_letters.retry(older_than=0, limit=2, after=second.next_after, payload={"edited": True})
    assert (last.done, last.next_after) == (1, None)
    states = [await scene.api.tasks.get(task_id) for task_id in made]
    assert [(task.state, task.payload) for task in states] == [("pending", {"edited": True})] * 5


async def test_dead_letters_are_changed_by_id(scene: Scene):
    one, two = await fail(scene, 2)
    assert (await scene.api.dead_letters.retry(ids=[one])).done == 1
    assert (await scene.api.dead_letters.discard(ids=[two])).done == 1
    assert [(await scene.api.tasks.get(each)).state for each in (one, two)] == ["pending", "canceled"]
    with pytest.raises(TaskNotFound, match="dead letter"):
        await scene.api.dead_letters.get(one)


async def test_invalid_or_empty_selections_are_refused(scene: Scene):
    letters = scene.api.dead_letters
    for options in ({}, {"everything": True, "name": "fail"}, {"ids": ["x"], "everything": True}):
        with pytest.raises(InvalidInput, match="Give ids, a filter"):
            await letters.discard(**options)
    with raises_code("nothing_matches"):
        await letters.retry(everything=True)
    with pytest.raises(InvalidInput, match="after"):
        await letters.retry(everything=True, after="1.2.x.4")
    with pytest.raises(InvalidInput, match="before"):
        await letters.list(before=-1)
    with pytest.raises(InvalidInput, match="U\\+0000"):
        await letters.list(name="a\0b")
    with pytest.raises(InvalidInput, match="U\\+0000"):
        await letters.retry(ids=["a\0b"])
    await fail(scene, 1)
    with pytest.raises(InvalidInput, match="limit"):
        await letters.retry(everything=True, limit=501)


async def test_a_token_for_some_lists_keeps_to_their_letters(scene: Scene):
    (mine,) = await fail(scene, 1, "night")
    (other,) = await fail(scene, 1)
    held = Operations(scene.engine, Access("ci", frozenset(Scope), ("night",))).dead_letters
    assert [letter.id for letter in (await held.list()).letters] == [mine]
    for refused in (held.retry, held.discard):
        with pytest.raises(TaskNotFound):
            await refused(ids=[other])
    with pytest.raises(TaskNotFound):
        await held.get(other)
    assert (await held.discard(everything=True)).done == 1
    assert [letter.id for letter in (await scene.api.dead_letters.list()).letters] == [other]
