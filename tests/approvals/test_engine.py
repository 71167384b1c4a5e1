"""Approvals as handlers and those who decide meet them, with workers, runs, restarts and webhooks."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.crash.scene import until
from tests.engines import ALL, SHARED, make_engine, url_of
from tests.limits import BOUND
from tests.receivers import Receiver

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine, RunFailed, TaskFailed, TaskSpec, Waiting
from treadle.api.approvals import Approval
from treadle.kernel.queue.why import Reason
from treadle.model.errors import Refused, StoreUnavailable
from treadle.model.names import APPROVAL, NOTIFY
from treadle.model.webhooks import verify
from treadle.settings import Settings

SECRET = "do-not-tell"


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def add_refund(engine: Engine, **options: Any) -> list[Any]:
    """A handler that asks first; what it returns is what it was told. The list has each entry's approval."""
    entered: list[Any] = []

    @engine.handler("refund")
    async def refund(payload: Any, ctx: Context) -> Any:
        entered.append(ctx.approval_decision)
        if ctx.approval_decision is None:
            return AwaitingApproval(ApprovalRequest.of("Refund?", context=payload, **options), checkpoint={"seen": True})
        return {"by": ctx.approval_decision["by"], "context": ctx.approval_decision["context"], "checkpoint": ctx.checkpoint}

    return entered


async def asked(engine: Engine, count: int = 1) -> list[Approval]:
    """The pending approvals, once there are so many."""
    async with asyncio.timeout(BOUND):
        while len(found := (await engine.approvals.list()).approvals) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


@pytest.mark.postgres
async def test_a_handler_is_suspended_for_an_approval_and_reentered_with_the_decision(url: str) -> None:
    engine = make_engine(url)
    entered = add_refund(engine, edits=True)
    async with engine, engine.worker() as host:
        task = await engine.enqueue("refund", {"amount": 5})
        (shown,) = await asked(engine)
        await until(lambda: host.worker.running == 0)
        assert (await engine.kernel.reads.get_task(task)).state == "awaiting_approval"
        await engine.approvals.decide(shown.id, "approve", actor="ada", edits={"amount": 4})
        result = await engine.result(task, timeout=BOUND)
        assert result == {"by": "ada", "context": {"amount": 4}, "checkpoint": {"seen": True}}
        assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task.id)] == [
            "ask",
            "approve",
            "succeed",
        ]
        assert (await engine.kernel.verify()).holds
    assert [each and each["by"] for each in entered] == [None, "ada"]


async def test_a_denied_task_fails_immediately_without_running_its_handler(url: str) -> None:
    engine = make_engine(url)
    entered = add_refund(engine)
    async with engine:
        async with engine.worker():
            task = await engine.enqueue("refund", retry=5)
            (shown,) = await asked(engine)
        # Nobody needs a worker to decide.
        await engine.approvals.decide(shown.id, "deny", actor="ada", reason="no")
        with pytest.raises(TaskFailed, match="approval denied by ada: no") as raised:
            await engine.result(task, timeout=BOUND)
    assert raised.value.error_code == "approval_denied"
    assert entered == [None]


async def test_an_approval_that_expires_fails_its_task(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine, expires=0.2)
    async with engine, engine.worker():
        with pytest.raises(TaskFailed, match="nobody decided 'Refund") as raised:
            await engine.result(await engine.enqueue("refund"), timeout=BOUND)
        assert raised.value.error_code == "approval_expired"
        assert (await engine.approvals.list()).approvals == []


async def test_an_expired_approval_is_requested_again_until_decided(url: str) -> None:
    engine = make_engine(url)
    entered = add_refund(engine, expires=0.3, on_expiry="ask_again")
    async with engine, engine.worker():
        task = await engine.enqueue("refund")
        (first,) = await asked(engine)
        async with asyncio.timeout(BOUND):
            while (latest := (await asked(engine))[0]).id == first.id:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert latest.previous_id is not None
        async with asyncio.timeout(BOUND):
            while True:
                try:
                    await engine.approvals.decide((await asked(engine))[0].id, "approve", actor="ada")
                    break
                except Refused as error:
                    if error.code not in ("decided_too_late", "already_decided"):
                        raise
                    continue  # it was asked again in between
        assert (await engine.result(task, timeout=BOUND))["by"] == "ada"
    assert [each and each["by"] for each in entered] == [None, "ada"]


async def test_a_decision_in_another_process_takes_effect_immediately(shared_url: str) -> None:
    """Without the worker's own poll, which comes too late for this test."""
    there = make_engine(shared_url, poll_interval=3600)
    add_refund(there)
    async with make_engine(shared_url) as here, there, there.worker():
        task = await here.enqueue("refund")
        (shown,) = await asked(here)
        await here.approvals.decide(shown.id, "approve", actor="ada")
        await here.result(task, timeout=BOUND)


async def test_a_question_survives_its_worker(shared_url: str) -> None:
    first, second = make_engine(shared_url), make_engine(shared_url)
    add_refund(first)
    add_refund(second)
    async with first, first.worker():
        task = await first.enqueue("refund", {"n": 1})
        (shown,) = await asked(first)
    async with second, second.worker():
        await second.approvals.decide(shown.id, "approve", actor="ada")
        assert (await second.result(task, timeout=BOUND))["context"] == {"n": 1}


async def test_a_handler_may_request_two_approvals(url: str) -> None:
    engine = make_engine(url)

    @engine.handler("twice")
    async def twice(payload: Any, ctx: Context) -> Any:
        if len(ctx.approval_decisions) < 2:
            return AwaitingApproval(ApprovalRequest.of(f"Question {len(ctx.approval_decisions) + 1}?"))
        if ctx.checkpoint is None:
            return Waiting(1, checkpoint={"waited": True})
        return {"by": [each["by"] for each in ctx.approval_decisions]}

    async with engine, engine.worker():
        task = await engine.enqueue("twice")
        for number, actor in ((1, "ada"), (2, "bob")):
            (shown,) = await asked(engine)
            assert shown.title == f"Question {number}?"
            await engine.approvals.decide(shown.id, "approve", actor=actor)
        assert await engine.result(task, timeout=BOUND) == {"by": ["ada", "bob"]}


async def test_a_task_of_kind_approval_requests_and_returns_the_decision(url: str) -> None:
    async with make_engine(url) as engine, engine.worker():
        payload = ApprovalRequest.of("Ship it?", context={"v": 2}, edits=True).as_json()
        specs = [TaskSpec(name=APPROVAL, kind=APPROVAL, payload=each) for each in (payload, {"title": "x", "quorum": 0})]
        good, bad = await engine.enqueue_many(specs)
        (shown,) = await asked(engine)
        await engine.approvals.decide(shown.id, "approve", actor="ada", edits={"v": 3}, reason="go")
        result = await engine.result(good, timeout=BOUND)
        assert (result["decision"], result["by"], result["context"], result["reason"]) == ("approved", "ada", {"v": 3}, "go")
        with pytest.raises(TaskFailed, match="quorum must be a whole number") as raised:
            await engine.result(bad, timeout=BOUND)
        assert raised.value.error_code == "invalid_approval"


async def test_an_invalid_approval_request_fails_the_task(url: str) -> None:
    engine = make_engine(url)

    @engine.handler("odd")
    async def odd(payload: Any) -> Any:
        return AwaitingApproval("Refund?")  # type: ignore[arg-type]

    @engine.handler("empty")
    async def empty(payload: Any) -> Any:
        return AwaitingApproval(ApprovalRequest(title=""))

    async with engine, engine.worker():
        for name, said in (("odd", "takes an ApprovalRequest, not a str"), ("empty", "the title must have 1 to 1000 characters")):
            with pytest.raises(TaskFailed, match=said) as raised:
                await engine.result(await engine.enqueue(name), timeout=BOUND)
            assert raised.value.error_code == "unexpected_result"


async def test_why_names_the_approval(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine, deciders=["ada", "ops"], quorum=2, expires=3600)
    async with engine, engine.worker():
        task = await engine.enqueue("refund")
        (shown,) = await asked(engine)
        await engine.approvals.decide(shown.id, "approve", actor="ada")
        reason = await engine.why(task)
        assert reason.code == "approval"
        for part in (f"approval {shown.id} of 'Refund?'", "by ada, ops", "since 2", "1 of 2 votes", "expires 2"):
            assert part in reason.text


async def test_why_of_a_function_names_the_approval(url: str) -> None:
    engine = make_engine(url)

    @engine.function("order")
    async def order(payload: dict[str, Any], ctx: Any) -> Any:
        return await ctx.approval("Ship?", deciders=["ada"])

    async with engine, engine.worker():
        run = await engine.start_function("order")
        (shown,) = await asked(engine)
        reason = await settled(engine, run.id)
        assert reason.text.startswith(f"waits for a decision on approval (task {shown.task_id}): approval {shown.id} of 'Ship?'")
        assert reason.text.endswith(f"`treadle approvals deny {shown.id}` decides")


async def settled(engine: Engine, run_id: str) -> Reason:
    """Why the run waits, once its function has let go of its worker."""
    async with asyncio.timeout(BOUND):
        while (reason := await engine.why(run_id)).code != "suspended":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return reason


FLOW = """
namespace shop {
    event facet refund(amount: Long) => (by: String)

    workflow Order() => (by: String) andThen {
        a = refund(amount = 5)
        yield Order(by = a.by)
    }
}
"""


async def test_an_event_handler_of_a_run_can_request_an_approval(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine)
    async with engine, engine.worker():
        runs = [await engine.start_run([("shop.afl", FLOW)], "shop.Order") for _ in range(2)]
        pending = await asked(engine, 2)
        assert {each.run_id for each in pending} == {run.id for run in runs}
        reason = await engine.kernel.run_reads.why(pending[0].run_id or "")
        assert (reason.code, f"approval {pending[0].id} of 'Refund?'" in reason.text) == ("approval", True)
        by_run = {each.run_id: each.id for each in pending}
        await engine.approvals.decide(by_run[runs[0].id], "approve", actor="ada")
        assert await engine.run_result(runs[0], timeout=BOUND) == {"by": "ada"}
        await engine.approvals.decide(by_run[runs[1].id], "deny", actor="ada")
        with pytest.raises(RunFailed, match="approval denied by ada"):
            await engine.run_result(runs[1], timeout=BOUND)
        assert (await engine.kernel.verify()).holds


async def test_canceling_a_run_cancels_its_approvals(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine)
    async with engine, engine.worker():
        run = await engine.start_run([("shop.afl", FLOW)], "shop.Order")
        (shown,) = await asked(engine)
        await engine.runs.cancel(run.id)
        assert (await engine.approvals.get(shown.id)).state == "canceled"
        assert (await engine.kernel.verify()).holds


async def test_a_step_that_waits_for_an_approval_is_not_continued_past_it(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine)
    async with engine, engine.worker():
        run = await engine.start_run([("shop.afl", FLOW)], "shop.Order")
        (shown,) = await asked(engine)
        step_id = (await engine.kernel.reads.get_task(shown.task_id)).step_id or ""
        with pytest.raises(Exception, match="waits for an approval"):
            await engine.kernel.runs.continue_step(run.id, step_id, {"by": "eve"})
        await engine.approvals.decide(shown.id, "approve", actor="ada")
        assert await engine.run_result(run, timeout=BOUND) == {"by": "ada"}


# --- webhooks ---


def telling(url: str, **settings: Any) -> Engine:
    return Engine(url, settings=Settings(**{"webhook_secret": SECRET} | settings))


async def notification(engine: Engine) -> Any:
    """The one task that notifies, once it has ended or waits to be tried again."""
    async with asyncio.timeout(BOUND):
        while True:
            found = await engine.kernel.reads.list_tasks(kind=NOTIFY)
            if found and (found[0].finished or found[0].failures):
                return found[0]
            await asyncio.sleep(0.01)


async def test_a_signed_webhook_reports_an_approval(url: str) -> None:
    with Receiver() as receiver:
        engine = telling(url, approval_webhook=f"{receiver.url}/hook?token=abc")
        add_refund(engine, deciders=["ada"], expires=3600)
        async with engine, engine.worker():
            await engine.enqueue("refund", {"amount": 5})
            (shown,) = await asked(engine)
            (body,) = await asyncio.to_thread(receiver.wait_for, 1, BOUND)
            sent = await notification(engine)
        path, headers, raw = receiver.requests[0]
    assert path == "/hook?token=abc"
    assert (body["event"], body["id"]) == ("approval.requested", sent.id)
    assert (body["approval"]["id"], body["approval"]["context"]) == (shown.id, {"amount": 5})
    assert headers["Idempotency-Key"] == sent.id
    at = int(headers["Treadle-Signature"].removeprefix("t=").partition(",")[0])
    assert verify(SECRET, headers["Treadle-Signature"], raw, at)
    assert not verify("other", headers["Treadle-Signature"], raw, at)
    assert sent.state == "completed"


async def test_a_rejected_webhook_is_sent_again_with_the_same_id(url: str) -> None:
    with Receiver() as receiver:
        receiver.answers = [500, 302]
        engine = telling(url, approval_webhook=receiver.url)
        add_refund(engine)
        async with engine, engine.worker():
            await engine.enqueue("refund")
            await asyncio.to_thread(receiver.wait_for, 1, BOUND)
            task = await notification(engine)
            assert "answered 500 to approval.requested" in task.error
            await asyncio.to_thread(receiver.wait_for, 3, BOUND)
        assert [path for path, _, _ in receiver.requests] == ["/", "/", "/"]  # the redirect was not followed
        assert len({headers["Idempotency-Key"] for _, headers, _ in receiver.requests}) == 1


async def test_a_webhook_of_an_approval_is_used_only_if_allowed(url: str) -> None:
    with Receiver() as receiver, Receiver() as other:
        engine = telling(url, approval_webhook=other.url, webhook_allow=(f"{receiver.url}/hooks",))
        for name, place in (("good", f"{receiver.url}/hooks/a"), ("bad", f"{receiver.url}/hooks-of-others?secret=1")):

            @engine.handler(name)
            async def ask(ctx: Context, place: str = place) -> Any:
                return AwaitingApproval(ApprovalRequest.of("Refund?", notify=place))

        async with engine, engine.worker():
            await engine.enqueue("good")
            await asyncio.to_thread(receiver.wait_for, 1, BOUND)
            assert (await notification(engine)).state == "completed"
            await engine.enqueue("bad")
            await asked(engine, 2)
            async with asyncio.timeout(BOUND):
                while not (failed := await engine.kernel.reads.list_tasks(kind=NOTIFY, states=("failed",))):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert failed[0].error_code == "webhook_not_allowed"
            assert "secret=1" not in (failed[0].error or "")
        assert [path for path, _, _ in receiver.requests] == ["/hooks/a"]
        assert other.requests == []


async def test_no_webhook_is_sent_unsigned(url: str) -> None:
    with Receiver() as receiver:
        engine = telling(url, approval_webhook=receiver.url, webhook_secret="")
        add_refund(engine)
        async with engine, engine.worker():
            await engine.enqueue("refund")
            task = await notification(engine)
        assert (task.state, task.error_code, receiver.requests) == ("failed", "webhook_unsigned", [])


async def test_secrets_are_in_no_log_and_no_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine = telling(url, approval_webhook="http://user:pass@127.0.0.1:9/hook?token=abc")
    add_refund(engine)
    async with engine, engine.worker():
        await engine.enqueue("refund")
        task = await notification(engine)
    assert "http://127.0.0.1:9/hook could not be reached" in task.error
    for secret in (SECRET, "pass@", "token=abc"):
        assert secret not in caplog.text
        assert secret not in task.error
        assert secret not in repr(engine.kernel.settings)


async def test_without_a_webhook_no_notification_is_created(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine)
    async with engine, engine.worker():
        await engine.enqueue("refund")
        await asked(engine)
        assert await engine.kernel.reads.list_tasks(kind=NOTIFY) == []


# --- at the edges ---


async def test_an_approval_requested_during_cancellation_is_canceled_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(url)
    add_refund(engine)
    async with engine, engine.worker():
        run = await engine.start_run([("shop.afl", FLOW)], "shop.Order")
        (shown,) = await asked(engine)
        looks = 0

        async def closing(canceled: Any) -> Any:
            """The first look comes before the question, the second after it."""
            nonlocal looks
            looks += 1
            return () if looks == 1 else await engine.approvals.rows_for_run(canceled)

        monkeypatch.setattr(engine.kernel.runs._advancer, "_cancel_rows", closing)
        await engine.runs.cancel(run.id)
        assert (await engine.approvals.get(shown.id)).state == "canceled"


async def test_an_unreadable_approval_is_processed_later(url: str) -> None:
    engine = make_engine(url)
    add_refund(engine, expires=0.1)
    async with engine, engine.worker() as host:
        failures = [StoreUnavailable("not now")]

        async def process_due(task: Any, token: Any) -> Any:
            if failures:
                raise failures.pop()
            return await engine.approvals.process_due(task, token)

        host.worker.services.process_due = process_due
        task = await engine.enqueue("refund")
        with pytest.raises(TaskFailed) as raised:
            await engine.result(task, timeout=BOUND)
        assert raised.value.error_code == "approval_expired"
        assert [transition.transition for transition in await engine.kernel.reads.list_transitions(task.id)] == [
            "ask",
            "release",
            "fail",
        ]
        assert (await engine.kernel.verify()).holds


def test_without_an_event_loop(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'treadle.db'}")
    add_refund(engine)
    with engine.blocking() as e:
        e.start_worker()
        task = e.enqueue("refund", {"n": 1})
        deadline = e.run(engine.kernel.store.now()) + BOUND * 1000
        while not (pending := e.approvals.list().approvals):
            assert e.run(engine.kernel.store.now()) < deadline
        e.approvals.decide(pending[0].id, "approve", actor="ada")
        assert e.result(task, timeout=BOUND)["by"] == "ada"
