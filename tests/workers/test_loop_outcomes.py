"""The state of a task after each outcome of its handler."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from tests.workers.harness import Workshop, until

from treadle.kernel.store.units import Finish, Requeue, Unit, UnitAnswer
from treadle.kernel.telemetry.events import StoreTrouble, TaskSettled
from treadle.model.errors import NonRetryable, StoreUnavailable
from treadle.model.outcomes import Failed, Paused, Problem, Retry, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.states import TaskState
from treadle.model.tasks import Claim, Task
from treadle.workers.context import Context


async def test_a_result_is_stored_and_the_task_completed(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any) -> Any:
        return {"double": payload["n"] * 2}

    task = await shop.run(payload={"n": 21})
    assert (task.state, task.result, task.attempt) == (TaskState.COMPLETED, '{"double":42}', 1)
    assert await shop.transitions(task.id) == ["succeed"]
    assert shop.worker.handled == 1


async def test_a_failure_is_final_without_a_retry_policy(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any) -> None:
        raise ValueError("no")

    task = await shop.run()
    assert (task.state, task.error_code) == (TaskState.FAILED, "handler_error")
    error = json.loads(task.error or "")
    assert (error["type"], error["message"]) == ("ValueError", "no")
    assert task.fingerprint
    assert shop.worker.failed == 1


async def test_retries_follow_after_exactly_1_2_and_4_seconds(shop: Workshop) -> None:
    starts: list[int] = []

    @shop.handler(retry=3)
    async def work(payload: Any, ctx: Context) -> None:
        starts.append(shop.clock.now())
        raise ValueError(f"attempt {ctx.attempt}")

    task = await shop.run()
    for count, delay in enumerate((1.0, 2.0, 4.0), start=2):
        assert (task.state, task.failures) == (TaskState.PENDING, count - 1)
        assert await shop.wake(delay - 0.001) == 0
        assert await shop.wake(0.001) == 1
        task = await shop.settled(task.id, count)
    assert [later - earlier for earlier, later in itertools.pairwise(starts)] == [1000, 2000, 4000]
    assert (task.state, task.attempt) == (TaskState.FAILED, 4)
    assert json.loads(task.error or "")["message"] == "attempt 4"
    assert await shop.transitions(task.id) == ["retry", "retry", "retry", "fail"]


async def test_the_tasks_policy_wins_over_the_handlers(shop: Workshop) -> None:
    @shop.handler(retry=5)
    async def work(payload: Any) -> None:
        raise ValueError

    assert (await shop.run(retry=0)).state == TaskState.FAILED
    task = await shop.run(retry=RetryPolicy.of(1, first=30))
    assert task.wake_at == shop.clock.now() + 30_000


async def test_a_retry_may_set_its_delay(shop: Workshop) -> None:
    @shop.handler(retry=1)
    async def work(payload: Any) -> Retry:
        return Retry(Problem("busy", "the service is busy"), after_for=90_000)

    task = await shop.run()
    assert task.wake_at == shop.clock.now() + 90_000
    assert await shop.wake(90) == 1
    assert (await shop.settled(task.id, 2)).error_code == "busy"


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_a_final_failure_is_not_retried(shop: Workshop, how: str) -> None:
    @shop.handler(retry=5)
    async def work(payload: Any) -> Any:
        if how == "return":
            return Failed(Problem("card_stolen", "no"))
        raise NonRetryable("no", "card_stolen")

    task = await shop.run()
    assert (task.state, task.error_code) == (TaskState.FAILED, "card_stolen")


async def test_an_unexpected_result_fails_with_the_name_of_its_type(shop: Workshop) -> None:
    @shop.handler(retry=5)
    async def work(payload: Any) -> Any:
        return {1, 2}

    task = await shop.run()
    assert (task.state, task.error_code) == (TaskState.FAILED, "unexpected_result")
    assert "set" in json.loads(task.error or "")["message"]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"x": float("nan")}, "invalid_payload"),
        ({"x": float("inf")}, "invalid_payload"),
        ({"x": "a\x00b"}, "invalid_payload"),
        ({"x": "\ud800"}, "invalid_payload"),
        ({"x": object()}, "invalid_payload"),
        ({"x": "y" * 3000}, "payload_too_large"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_task(make_shop: Any, result: Any, code: str) -> None:
    shop: Workshop = make_shop(result_limit=2000)

    @shop.handler(retry=5)
    async def work(payload: Any) -> Any:
        return result

    task = await shop.run()
    assert (task.state, task.error_code) == (TaskState.FAILED, code)


async def test_waiting_occupies_no_worker_and_restores_its_checkpoint(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any, ctx: Context) -> Any:
        pages = (ctx.checkpoint or {"pages": 0})["pages"] + 1
        return {"pages": pages} if pages == 3 else Waiting(60_000, {"pages": pages})

    task = await shop.run()
    assert (task.state, task.owner_id, task.wake_at) == (TaskState.PENDING, None, shop.clock.now() + 60_000)
    assert shop.worker.running == 0
    for count in (2, 3):
        assert await shop.wake(60) == 1
        task = await shop.settled(task.id, count)
    assert (task.state, task.result, task.attempt) == (TaskState.COMPLETED, '{"pages":3}', 1)
    assert await shop.transitions(task.id) == ["wait", "wait", "succeed"]


async def test_waiting_without_a_checkpoint_keeps_the_one_before(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any, ctx: Context) -> Any:
        return Waiting(1000, {"seen": True}) if ctx.checkpoint is None else Waiting(1000)

    task = await shop.run()
    await shop.wake(1)
    assert (await shop.settled(task.id, 2)).checkpoint == '{"seen":true}'


async def test_a_paused_task_continues_on_resume(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any, ctx: Context) -> Any:
        return Paused("look at this") if ctx.fencing_token == 1 else {}

    task = await shop.run()
    assert task.shown_state == TaskState.PAUSED
    assert await shop.wake(86_400) == 0
    await shop.queue.resume(task.id)
    task = await shop.settled(task.id, 2)
    assert task.state == TaskState.COMPLETED
    assert await shop.transitions(task.id) == ["pause", "resume", "succeed"]


async def test_a_task_past_its_deadline_fails_without_running(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any) -> None:
        raise AssertionError("must not run")

    task_id = await shop.enqueue(deadline=10)
    shop.clock.advance(10)
    shop.start()
    task = await shop.settled(task_id)
    assert (task.state, task.error_code) == (TaskState.FAILED, "deadline_exceeded")


async def test_a_task_that_kills_its_workers_ends_in_the_dead_letters(make_shop: Any) -> None:
    shop: Workshop = make_shop(lease_for=30_000)
    runs: list[int] = []

    @shop.handler(retry=100)
    async def work(payload: Any, ctx: Context) -> None:
        runs.append(ctx.attempt)

    task_id = await shop.enqueue()
    queue_ids = list(await shop.store.tasks.list_queues())
    for _ in range(5):
        assert len(await shop.store.tasks.claim(queue_ids, "a worker that dies", 30_000, 1)) == 1
        assert await shop.wake(30) == 1
    shop.start()
    task = await shop.settled(task_id)
    assert (task.state, task.error_code, task.takeovers) == (TaskState.FAILED, "takeovers_exhausted", 5)
    assert runs == []
    assert await shop.transitions(task_id) == ["expire"] * 5 + ["fail"]
    await shop.queue.retry(task_id)
    assert (await shop.settled(task_id, 2)).state == TaskState.COMPLETED
    assert runs == [7]


async def test_a_takeover_below_the_cap_is_retried(shop: Workshop) -> None:
    @shop.handler()
    async def work(payload: Any, ctx: Context) -> dict[str, Any]:
        return {"attempt": ctx.attempt, "token": ctx.fencing_token}

    task_id = await shop.enqueue()
    await shop.store.tasks.claim(list(await shop.store.tasks.list_queues()), "a worker that dies", 30_000, 1)
    assert await shop.wake(30) == 1
    shop.start()
    task = await shop.settled(task_id)
    assert task.result == '{"attempt":2,"token":2}'
    assert await shop.transitions(task_id) == ["expire", "succeed"]


async def test_log_lines_of_a_handler_are_stored(shop: Workshop) -> None:
    @shop.handler()
    def work(payload: Any, ctx: Context) -> None:
        ctx.log("hello", n=1)

    task = await shop.run()
    assert [(line.task_id, line.message) for line in shop.lines] == [(task.id, "hello")]


async def test_settlements_are_reported(shop: Workshop) -> None:
    @shop.handler(retry=1)
    async def work(payload: Any) -> None:
        raise ValueError("no")

    task = await shop.run()
    (settled,) = shop.events.of(TaskSettled)
    assert (settled.task_id, settled.name, settled.transition, settled.attempt) == (task.id, "work", "retry", 1)
    assert "no" in (settled.error or "")


async def test_a_finished_task_is_settled_once_the_store_is_available_again(shop: Workshop) -> None:
    calls: list[str] = []
    tries = itertools.count(1)

    @shop.handler()
    async def work(payload: Any, ctx: Context) -> None:
        calls.append(ctx.task_id)

    async def settle(task: Task, token: Claim, decided: Finish | Requeue) -> UnitAnswer:
        """As settling does that has to read before it commits."""
        if next(tries) < 4:
            raise StoreUnavailable("The store cannot be reached.")
        return await shop.committer.submit(Unit(token, decided))

    shop.services.settle = settle
    shop.start()
    task_id = await shop.enqueue()
    for count, delay in enumerate((0.1, 0.2, 0.4), start=1):
        await shop.events.heard(StoreTrouble, count, doing="settling")
        await until(lambda: shop.clock.sleeping > 0)
        shop.clock.advance(delay)
    assert (await shop.settled(task_id)).state == TaskState.COMPLETED
    assert calls == [task_id]
