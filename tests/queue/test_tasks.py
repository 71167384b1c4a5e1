"""Tasks through `Engine`, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND

from treadle import Context, Engine, NonRetryable, RetryPolicy, TaskCanceled, TaskFailed, TaskSpec
from treadle.kernel.store.units import Finish
from treadle.model.clock import as_text
from treadle.model.errors import IllegalTransition, InvalidInput, RetriesUsedUp
from treadle.workers.lease_renewer import LeaseRenewer


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    """An open engine with a few handlers; no worker runs."""
    made = make_engine(url)

    @made.handler("echo")
    async def echo(payload: Any) -> Any:
        return payload

    @made.handler("broken")
    async def broken(payload: Any) -> None:
        raise NonRetryable("it is broken", "broken_for_good")

    @made.handler("flaky", retry=RetryPolicy.of(2, first=0.01))
    def flaky(payload: Any, ctx: Context) -> dict[str, Any]:
        if ctx.attempt < 3:
            raise ConnectionError("try again")
        return {"attempt": ctx.attempt}

    async with made:
        yield made


@pytest.mark.postgres
async def test_a_task_is_stored_run_and_its_result_returned(engine: Engine) -> None:
    task = await engine.enqueue("echo", {"greeting": "grüß dich \N{ROCKET}", "n": [1, 2.5, None, True, {"a": {}}]})
    assert task.created
    async with engine.worker():
        result = await engine.result(task, timeout=BOUND)
        assert result == {"greeting": "grüß dich \N{ROCKET}", "n": [1, 2.5, None, True, {"a": {}}]}
        assert await engine.result(task.id) == result
    stored = await engine.kernel.reads.get_task(task)
    assert (stored.state, stored.attempt, stored.failures) == ("completed", 1, 0)


async def test_a_worker_that_waits_is_woken_by_a_new_task(engine: Engine) -> None:
    async with engine.worker():
        for number in range(20):
            task = await engine.enqueue("echo", {"n": number})
            assert await engine.result(task, timeout=BOUND) == {"n": number}


async def test_failures_are_retried_and_counted(engine: Engine) -> None:
    async with engine.worker():
        task = await engine.enqueue("flaky")
        assert await engine.result(task, timeout=BOUND) == {"attempt": 3}
    assert (await engine.kernel.reads.get_task(task)).failures == 2
    assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task.id)] == [
        "retry",
        "retry",
        "succeed",
    ]


async def test_waiting_for_a_failing_task_raises_its_error(engine: Engine) -> None:
    async with engine.worker():
        task = await engine.enqueue("broken")
        with pytest.raises(TaskFailed, match="it is broken") as failed:
            await engine.result(task, timeout=BOUND)
    assert (failed.value.error_code, failed.value.task_id) == ("broken_for_good", task.id)
    assert (await engine.why(task)).code == "finished_failed"


async def test_a_timeout_of_the_wait_does_not_end_the_task(engine: Engine) -> None:
    task = await engine.enqueue("echo")
    with pytest.raises(TimeoutError):
        await engine.result(task, timeout=0.01)
    assert (await engine.kernel.reads.get_task(task)).state == "pending"


async def test_many_tasks_are_stored_in_order(engine: Engine) -> None:
    specs = [TaskSpec(name="echo", payload={"n": number}) for number in range(1201)]
    tasks = await engine.enqueue_many(specs)
    assert [task.id for task in tasks] == sorted(task.id for task in tasks)
    async with engine.worker(concurrency=500):
        async with asyncio.timeout(BOUND):
            results = await asyncio.gather(*(engine.result(task) for task in tasks))
    assert [result["n"] for result in results] == list(range(1201))
    assert (await engine.kernel.verify()).holds


async def test_a_live_unique_key_gives_the_task_that_has_it(engine: Engine) -> None:
    first = await engine.enqueue("echo", {"n": 1}, unique_key="invoice-7")
    again = await engine.enqueue("echo", {"n": 2}, unique_key="invoice-7")
    assert (again.id, again.created) == (first.id, False)
    other = await engine.enqueue("echo", {"n": 3}, unique_key="invoice-8")
    assert other.created
    in_one_go = await engine.enqueue_many([TaskSpec(name="echo", unique_key=key) for key in ("new", "invoice-7", "new")])
    assert [task.created for task in in_one_go] == [True, False, False]
    assert in_one_go[2].id == in_one_go[0].id
    async with engine.worker():
        assert await engine.result(first, timeout=BOUND) == {"n": 1}
    assert (await engine.enqueue("echo", unique_key="invoice-7")).created


async def test_callers_that_race_for_a_key_get_the_same_task(engine: Engine) -> None:
    tasks = await asyncio.gather(*(engine.enqueue("echo", unique_key="one") for _ in range(20)))
    assert len({task.id for task in tasks}) == 1
    assert sum(task.created for task in tasks) == 1


@pytest.mark.parametrize("how", ["delay", "at"])
async def test_a_task_with_a_delay_waits_for_it(engine: Engine, how: str) -> None:
    now = await engine.kernel.store.now()
    if how == "delay":
        task = await engine.enqueue("echo", delay=timedelta(milliseconds=300))
        later = await engine.enqueue("echo", delay=3600)
    else:
        task = await engine.enqueue("echo", at=datetime.fromtimestamp((now + 300) / 1000, UTC))
        later = await engine.enqueue("echo", at=datetime.fromtimestamp(now / 1000 + 3600, UTC))
    assert (await engine.why(task)).code == "delayed"
    async with engine.worker():
        await engine.result(task, timeout=BOUND)
        assert (await engine.kernel.reads.get_task(task)).claimed_at >= now + 300
        assert (await engine.kernel.reads.get_task(later)).state == "pending"
    assert f"not due before {as_text((await engine.kernel.reads.get_task(later)).wake_at)}" in (await engine.why(later)).text


async def test_smaller_priorities_run_first(engine: Engine) -> None:
    order: list[int] = []

    @engine.handler("note")
    async def note(payload: Any) -> None:
        order.append(payload["priority"])

    tasks = [await engine.enqueue("note", {"priority": each}, priority=each) for each in (3, -1, 2, 0, 1)]
    async with engine.worker(concurrency=1):
        for task in tasks:
            await engine.result(task, timeout=BOUND)
    assert order == [-1, 0, 1, 2, 3]


async def test_a_worker_serves_the_lists_it_is_given(engine: Engine) -> None:
    mail = await engine.enqueue("echo", task_list="mail")
    default = await engine.enqueue("echo")
    async with engine.worker(task_lists="mail"):
        await engine.result(mail, timeout=BOUND)
        assert (await engine.kernel.reads.get_task(default)).claim_version == 0
        assert (await engine.why(default)).code == "no_worker"
    assert [task.id for task in await engine.kernel.reads.list_tasks(kind="handler", task_list="mail")] == [mail.id]


async def test_a_task_that_waits_can_be_canceled_and_retried(engine: Engine) -> None:
    task = await engine.enqueue("echo", {"n": 1})
    await engine.cancel(task, actor="ann", reason="no longer needed")
    with pytest.raises(TaskCanceled, match="no longer needed"):
        await engine.result(task)
    await engine.cancel(task)
    await engine.retry(task, actor="ann", payload={"n": 2})
    async with engine.worker():
        assert await engine.result(task, timeout=BOUND) == {"n": 2}
    assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task.id)] == [
        "cancel",
        "requeue",
        "succeed",
    ]
    assert (await engine.kernel.verify()).holds


async def test_canceling_a_running_task_stops_it_immediately(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lease renewer, which looks for cancels by others."""
    monkeypatch.setattr(LeaseRenewer, "tick", lambda renewer: None)
    started, stopped = asyncio.Event(), asyncio.Event()

    @engine.handler("long")
    async def long(payload: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with engine.worker():
        task = await engine.enqueue("long")
        waiting = asyncio.ensure_future(engine.result(task, timeout=BOUND))
        await asyncio.wait_for(started.wait(), BOUND)
        assert (await engine.why(task)).code == "running"
        await engine.cancel(task)
        await asyncio.wait_for(stopped.wait(), BOUND)
        with pytest.raises(TaskCanceled):
            await waiting


async def test_a_failed_task_is_in_the_dead_letters_until_it_is_retried(engine: Engine) -> None:
    async with engine.worker():
        task = await engine.enqueue("flaky", retry=0)
        with pytest.raises(TaskFailed):
            await engine.result(task, timeout=BOUND)
        assert [each.id for each in await engine.kernel.reads.list_tasks(kind="handler", states=("failed",))] == [task.id]
        await engine.retry(task)
        with pytest.raises(TaskFailed):
            await engine.result(task, timeout=BOUND)
        await engine.retry(task)
        assert await engine.result(task, timeout=BOUND) == {"attempt": 3}


async def test_a_failed_task_is_tried_again_by_its_own_policy_until_that_is_used_up(engine: Engine) -> None:
    task = await engine.enqueue("broken", retry=RetryPolicy.of(2, first=0.01))
    async with engine.worker():
        for failures in (1, 2):
            with pytest.raises(TaskFailed):
                await engine.result(task, timeout=BOUND)
            await engine.kernel.queue.try_again(task.id, actor="ann")
            assert (await engine.kernel.reads.get_task(task)).failures == failures
        with pytest.raises(TaskFailed):
            await engine.result(task, timeout=BOUND)
        with pytest.raises(RetriesUsedUp, match="retried 2 time"):
            await engine.kernel.queue.try_again(task.id)
        assert (await engine.kernel.reads.get_task(task)).state == "failed"
        await engine.retry(task)
        assert (await engine.kernel.reads.get_task(task)).failures == 0
        with pytest.raises(TaskFailed):
            await engine.result(task, timeout=BOUND)
    assert (await engine.kernel.verify()).holds


async def test_ending_a_held_task_stops_its_handler_and_is_idempotent(engine: Engine) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @engine.handler("long")
    async def long(payload: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    done = Finish("succeed", "completed", result='{"by":"ann"}', actor="ann")
    async with engine.worker():
        task = await engine.enqueue("long")
        await asyncio.wait_for(started.wait(), BOUND)
        await engine.kernel.queue.end(task.id, done)
        assert await engine.result(task, timeout=BOUND) == {"by": "ann"}
        await asyncio.wait_for(stopped.wait(), BOUND)
        await engine.kernel.queue.end(task.id, done)
        with pytest.raises(IllegalTransition):
            await engine.kernel.queue.end(task.id, Finish("fail", "failed", actor="ann"))


async def test_enqueueing_an_existing_id_is_a_no_op(engine: Engine) -> None:
    spec = TaskSpec(name="echo", payload={"n": 1}, id=engine.kernel.ids.new_id())
    assert [(await engine.enqueue_many([spec]))[0].id for _ in range(2)] == [spec.id] * 2
    async with engine.worker():
        await engine.result(spec.id or "", timeout=BOUND)
    await engine.enqueue_many([spec])
    assert [(task.id, task.state) for task in await engine.kernel.reads.list_tasks(kind="handler")] == [(spec.id, "completed")]
    with pytest.raises(InvalidInput):
        await engine.enqueue_many([TaskSpec(name="echo", id="no id")])


async def test_a_paused_task_waits_for_an_operator(engine: Engine) -> None:
    task = await engine.enqueue("echo")
    await engine.pause(task)
    assert (await engine.why(task)).code == "paused"
    assert [each.id for each in await engine.kernel.reads.list_tasks(kind="handler", states=("paused",))] == [task.id]
    async with engine.worker():
        probe = await engine.enqueue("echo")
        await engine.result(probe, timeout=BOUND)
        assert (await engine.kernel.reads.get_task(task)).claim_version == 0
        await engine.resume(task)
        await engine.result(task, timeout=BOUND)


async def test_tasks_are_listed_newest_first_page_by_page(engine: Engine) -> None:
    tasks = await engine.enqueue_many([TaskSpec(name="echo" if number % 2 else "broken") for number in range(10)])
    ids = [task.id for task in reversed(tasks)]
    page = await engine.kernel.reads.list_tasks(kind="handler", limit=4)
    assert [task.id for task in page] == ids[:4]
    assert [task.id for task in await engine.kernel.reads.list_tasks(kind="handler", limit=100, before_id=page[-1].id)] == ids[4:]
    assert [task.id for task in await engine.kernel.reads.list_tasks(kind="handler", name="echo")] == ids[0::2]
    async with engine.worker():
        for task in tasks[1::2]:
            await engine.result(task, timeout=BOUND)
        assert {task.name for task in await engine.kernel.reads.list_tasks(kind="handler", states=("completed",))} == {"echo"}


async def test_a_task_past_its_deadline_fails_instead_of_running(engine: Engine) -> None:
    task = await engine.enqueue("echo", deadline=0.001)

    deadline_at = (await engine.kernel.reads.get_task(task)).deadline_at
    assert deadline_at is not None
    async with asyncio.timeout(BOUND):
        while await engine.kernel.store.now() <= deadline_at:  # noqa: ASYNC110 - time is what is waited for
            await asyncio.sleep(0.001)
    async with engine.worker():
        with pytest.raises(TaskFailed) as failed:
            await engine.result(task, timeout=BOUND)
    assert failed.value.error_code == "deadline_exceeded"


async def test_log_lines_and_servers_are_listed(engine: Engine) -> None:
    @engine.handler("talkative")
    def talkative(payload: Any, ctx: Context) -> None:
        ctx.log("half way", pages=3)
        ctx.progress(0.5, "half")

    task = await engine.enqueue("talkative")
    async with engine.worker(name="tester") as host:
        await engine.result(task, timeout=BOUND)
        (shown,) = await engine.kernel.reads.list_servers()
        assert (shown.id, shown.name, shown.state) == (host.owner_id, "tester", "running")
        assert "talkative" in shown.handlers
    assert [line.message for line in await engine.kernel.reads.list_lines(task.id)] == ["half way"]
    (shown,) = await engine.kernel.reads.list_servers()
    assert (shown.state, shown.handled) == ("stopped", 1)


async def test_namespaces_do_not_see_one_another(url: str) -> None:
    if url == "memory://":
        pytest.skip("A database in memory belongs to one engine.")
    async with make_engine(url) as ours, make_engine(url, namespace="theirs") as theirs:
        task = await ours.enqueue("echo")
        assert await theirs.kernel.reads.list_tasks(kind="handler") == []
        ran: list[str] = []

        @theirs.handler("echo")
        async def echo(payload: Any, ctx: Context) -> None:
            ran.append(ctx.task_id)

        async with theirs.worker():
            own = await theirs.enqueue("echo")
            await theirs.result(own, timeout=BOUND)
        assert ran == [own.id]
        assert (await ours.kernel.reads.get_task(task)).claim_version == 0
