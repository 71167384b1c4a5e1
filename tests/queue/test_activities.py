"""The words under which lists count live tasks select those tasks in queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines import SHARED, make_engine, url_of

from treadle.engine.operations import Operations
from treadle.model.access import OPEN
from treadle.model.errors import InvalidInput, InvalidQuery
from treadle.model.states import TASK_ACTIVITIES


@pytest.mark.parametrize("store", SHARED)
async def test_each_count_of_a_list_has_a_query_for_its_tasks(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with make_engine(url_of(store, request, tmp_path)) as engine:
        api = Operations(engine, OPEN)
        first, _, delayed, late, paused, done = [
            await engine.enqueue("shop.Pay", {}, **options)
            for options in (
                {"limit_key": "till", "limit": 1},
                {"limit_key": "till"},
                {"delay": 3600},
                {"limit_key": "till", "delay": 3600},
                {},
                {},
            )
        ]
        await engine.kernel.queue.pause(paused.id)
        await engine.cancel(done.id)
        queue_id = (await engine.kernel.reads.get_task(first.id)).queue_id
        (claimed,) = await engine.kernel.store.tasks.claim([queue_id], "somebody", 60_000, 1)
        ready = await engine.enqueue("shop.Pay", {})
        (queue,) = (await api.lists.list()).lists[0].queues
        ids = {word: {task.id for task in (await api.tasks.list(where=f"activity = {word}")).tasks} for word in TASK_ACTIVITIES}
        assert {word: len(found) for word, found in ids.items()} == {word: getattr(queue, word) for word in TASK_ACTIVITIES}
        assert (ids["ready"], ids["running"]) == ({ready.id}, {claimed.id})
        assert paused.id in ids["blocked"]
        assert {delayed.id, late.id} == ids["waiting"]


@pytest.mark.parametrize("word", sorted(set(TASK_ACTIVITIES) - {"running"}))
async def test_a_word_that_is_not_a_state_leads_to_its_query(word: str) -> None:
    async with make_engine("memory://") as engine:
        api = Operations(engine, OPEN)
        with pytest.raises(InvalidQuery, match=f"activity = {word}"):
            await api.tasks.list(where=f"state = {word}")
        with pytest.raises(InvalidInput, match=f"activity = {word}"):
            await api.tasks.list(state=[word])
        with pytest.raises(InvalidQuery, match="ready, running, waiting, blocked"):
            await api.tasks.list(where="activity = sleeping")
