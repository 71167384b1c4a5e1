"""Tasks with several limit keys: the decision to admit them, and their enqueueing, reasons and order through an engine."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines import SHARED, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.model.errors import InvalidInput
from treadle.settings import Settings
from treadle.stores.rules.admission import Waiting, admission

KEYS = ["api", "ada", "bob"]


@given(
    st.lists(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), max_size=12),
    st.fixed_dictionaries({key: st.integers(0, 4) for key in KEYS}),
)
def test_admission_takes_all_keys_or_none_and_leaves_no_room_that_a_task_could_use(keys: Any, rooms: Any) -> None:
    tasks = [Waiting(1, str(n), "", one[0], "\n".join(one) if len(one) > 1 else None) for n, one in enumerate(keys)]
    left = {("", key): float(room) for key, room in rooms.items()}
    admitted, parked = admission(tasks, left)
    for key, room in rooms.items():
        assert left["", key] == room - sum(key in task.keys for task in admitted) >= 0
    for task in tasks:
        full = [key for key in task.keys if left["", key] < 1]
        assert task in admitted or full
        waits_for = dict(parked).get(task.id, task.key)
        assert task in admitted or waits_for in full


@pytest.fixture(params=SHARED)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return Engine(url_of(request.param, request, tmp_path), settings=Settings())


async def test_work_with_several_keys_obeys_all_limits_and_all_of_it_ends(engine: Engine) -> None:
    running: dict[str, int] = dict.fromkeys(KEYS, 0)
    most = {"api": 3, "ada": 2, "bob": 1}

    @engine.handler("call")
    async def call(payload: dict[str, Any]) -> None:
        for key in payload["keys"]:
            running[key] += 1
        assert all(running[key] <= most[key] for key in KEYS), running
        await asyncio.sleep(0)
        for key in payload["keys"]:
            running[key] -= 1

    for key, limit in most.items():
        engine.declare.limit(key, max=limit)
    choices = [list(one) for size in (1, 2, 3) for one in itertools.combinations(KEYS, size)]
    async with engine, engine.worker(), engine.worker():
        tasks = [await engine.enqueue("call", {"keys": keys}, limit_key=keys) for keys in choices * 6]
        for task in tasks:
            await engine.result(task, timeout=BOUND)


async def test_why_names_the_key_without_room(engine: Engine) -> None:
    engine.declare.limit("api", max=5)
    engine.declare.limit("ada", max=1)
    async with engine:
        await engine.kernel.trigger_services.declarations.sync(engine.declare)
        first, second = [await engine.enqueue("call", limit_key=["api", "ada"]) for _ in range(2)]
        task = await engine.tasks.get(second.id)
        assert (task.limit_key, task.limit_keys, task.blocked_by) == ("ada", ["ada", "api"], ["over_limit"])
        reason = await engine.why(second.id)
        assert "ada" in reason.text
        assert first.id in reason.text
        assert (await engine.tasks.get(first.id)).blocked_by == []


@pytest.mark.parametrize("options", [{"limit_key": []}, {"limit_key": ["a", ""]}, {"limit_key": ["a", "b"], "limit": 2}])
async def test_invalid_keys_are_refused(options: dict[str, Any]) -> None:
    async with Engine("memory://") as engine:
        with pytest.raises(InvalidInput):
            await engine.enqueue("call", **options)


async def test_one_key_in_a_list_is_one_key() -> None:
    async with Engine("memory://") as engine:
        handle = await engine.enqueue("call", limit_key=["ada", "ada"], limit=1)
        assert (await engine.tasks.get(handle.id)).limit_keys == ["ada"]
