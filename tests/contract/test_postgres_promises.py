"""Promises of the PostgreSQL store beyond the contract."""

from __future__ import annotations

import pytest

from treadle.testing.contract.limits import admitted, put_limited
from treadle.testing.contract.signals import Heard
from treadle.testing.contract.task_steps import WORK, in_order

pytestmark = pytest.mark.parametrize("database", ["postgres"], indirect=True)


async def test_a_wake_finds_room_that_nobody_used(database, store):
    tasks = await put_limited(store, 4, limit=2)
    database.execute("update tasks set hold = 1")
    woken = await store.wake(10)
    assert len(woken.lane_ids) == 1
    assert sorted(await admitted(store)) == sorted(in_order(tasks[:2]))


async def test_a_subscriber_in_another_process_hears_too(database, store):
    second = await database.open_store()
    lane_id = (await store.lane_ids([WORK]))[WORK]
    heard = Heard()
    stop = await second.subscribe(heard)
    await store.notify([lane_id])
    await heard.until(lane_id)
    stop()
