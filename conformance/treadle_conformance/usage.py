"""Budgets: money is set aside before a request and settled after it, once, and never more than there is."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from treadle.kernel.store.process import SystemIds
from treadle.kernel.store.units import PutRun, Unit
from treadle.model.names import HANDLER
from treadle.model.runs import Run
from treadle.model.usage import Budget, Usage, total
from treadle_conformance.task_steps import new_task

IDS = SystemIds()
RUN, STEP, TASK = IDS.new_id(), IDS.new_id(), IDS.new_id()


def a_request(number: int = 1, attempt: int = 1, micros: int = 100, **fields: Any) -> Usage:
    values = {"id": IDS.new_id(), "run_id": RUN, "step_id": STEP, "task_id": TASK, "model": "m", "reserved_micros": micros}
    return Usage(**values | {"attempt": attempt, "request_no": number} | fields)


async def test_reserved_and_settled_usage_counts_against_the_budget(store, clock):
    await store.usage.set_budget(RUN, 150)
    answer = await store.usage.reserve(a_request(), None)
    assert answer.budget == Budget(150, 100)
    row = answer.usage
    assert (row.state, row.cost_micros, row.at) == ("reserved", 100, clock.now())
    refused = await store.usage.reserve(a_request(2), None)
    assert (refused.usage, refused.budget) == (None, Budget(150, 100))
    settled = msgspec.structs.replace(
        row, cost_micros=30, input_tokens=7, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2
    )
    assert await store.usage.settle(settled)
    assert await store.usage.find_budget(RUN) == Budget(150, 30)
    assert (await store.usage.reserve(a_request(2), None)).budget == Budget(150, 130)
    first, second = await store.usage.list_requests(RUN)
    assert (first.state, first.input_tokens, first.output_tokens, first.cache_read_tokens) == ("settled", 7, 5, 3)
    spent = total([first, second])
    assert (spent.requests, spent.cost_micros, spent.unsettled) == (2, 130, 1)


async def test_the_same_request_is_one_row_and_is_charged_once(store):
    first = await store.usage.reserve(a_request(), 1000)
    again = await store.usage.reserve(a_request(), 1000)
    assert again == first
    settled = msgspec.structs.replace(first.usage, cost_micros=40)
    assert [await store.usage.settle(settled), await store.usage.settle(settled)] == [True, False]
    assert await store.usage.find_budget(RUN) == Budget(1000, 40)


async def test_the_next_attempt_takes_over_a_crashed_reservation(store):
    first = await store.usage.reserve(a_request(micros=100), 120)
    second = await store.usage.reserve(a_request(attempt=2, micros=110), 120)
    assert (second.usage.id, second.usage.attempt, second.usage.interrupted) == (first.usage.id, 2, 1)
    assert second.budget == Budget(120, 110)
    assert len(await store.usage.list_requests(RUN)) == 1


async def test_concurrent_reservations_of_two_stores_never_overspend(database, store):
    other = store if store.url == "memory://" else await database.open_store()
    await store.usage.set_budget(RUN, 250)
    requests = [a_request(number) for number in range(1, 9)]
    answers = await asyncio.gather(*((store, other)[n % 2].usage.reserve(request, None) for n, request in enumerate(requests)))
    assert sum(answer.usage is not None for answer in answers) == 2
    assert await store.usage.find_budget(RUN) == Budget(250, 200)


async def test_a_run_without_a_limit_is_counted(store):
    assert await store.usage.find_budget(RUN) is None
    answer = await store.usage.reserve(a_request(), None)
    assert answer.budget == Budget(None, 100)


async def test_a_budget_is_taken_back_only_while_it_is_unspent(store):
    await store.usage.set_budget(RUN, 500)
    await store.usage.forget_budget(RUN)
    assert await store.usage.find_budget(RUN) is None
    await store.usage.reserve(a_request(), 500)
    await store.usage.forget_budget(RUN)
    assert await store.usage.find_budget(RUN) == Budget(500, 100)


async def test_the_ready_tasks_of_one_run_are_taken_and_no_others(store):
    run = Run(id=RUN, namespace="default", flow_id="f", workflow="w", inputs="{}", root_id=RUN)
    mine, other = new_task(run_id=RUN), new_task()
    await store.commit([Unit(tasks=(mine, other), rows=(PutRun(run),))])
    assert await store.tasks.claim_of_run(RUN, "other", "me", 30_000, 10) == []
    assert await store.tasks.claim_of_run(RUN, HANDLER, "me", 30_000, 10) == [mine.id]
    task = await store.tasks.find(mine.id)
    assert (task.owner_id, task.claim_version, task.shown_state) == ("me", 1, "running")
    assert await store.tasks.claim_of_run(RUN, HANDLER, "me", 30_000, 10) == []


async def test_deleting_a_run_deletes_its_usage(store, database):
    if store.url == "memory://":
        pytest.skip("nobody can get around the store in memory")
    await store.usage.reserve(a_request(), None)
    run = Run(id=RUN, namespace="default", flow_id="f", workflow="w", inputs="{}", root_id=RUN)
    await store.commit([Unit(rows=(PutRun(run),))])
    database.execute("delete from runs")
    assert (await store.usage.list_requests(RUN), await store.usage.find_budget(RUN)) == ([], None)
