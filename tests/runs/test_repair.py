"""A run that cannot succeed starts nothing new; one retry repairs the whole run; its failures leave the dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import url_of
from tests.runs.driver import Hands, hands_on
from tests.sizes import POSTGRES

from treadle.engine.operations import Operations
from treadle.kernel.queue.decide import failure, settlement
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.kernel.store.units import CancelRunTasks, Unit
from treadle.kernel.store.value_store import ValueLost
from treadle.model.access import Access, Scope
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import InvalidInput, Refused, UnreadableValue
from treadle.model.outcomes import AwaitingApproval, Paused, Problem, Retry
from treadle.model.retry import RetryPolicy
from treadle.model.runs import Run
from treadle.model.tasks import Task

FLOW = [
    (
        "shop.afl",
        """
namespace shop {
    event facet Pay(n: Long) => (receipt: String)
    event facet Ask(n: Long) => (receipt: String)
    workflow Import(items: Json) => (receipts: Json) andThen foreach item in $.items {
        pay = Pay(n = $.item)
        twice = Pay(n = pay.receipt ++ "!")
        yield Import(receipts = [twice.receipt])
    }
    workflow Careful(items: Json) => (receipts: Json) andThen foreach item in $.items {
        pay = Pay(n = $.item) catch { yield Pay(receipt = "none") }
        yield Careful(receipts = [pay.receipt])
    }
    workflow Careless(n: Long) => (receipt: String) andThen {
        pay = Pay(n = $.n) catch { other = Pay(n = -1) yield Pay(receipt = other.receipt) }
        yield Careless(receipt = pay.receipt)
    }
    workflow Asked(n: Long) => (receipt: String) andThen {
        ask = Ask(n = $.n)
        pay = Pay(n = $.n)
        yield Asked(receipt = ask.receipt ++ pay.receipt)
    }
}
""",
    )
]


@pytest.fixture
async def hands() -> AsyncIterator[Hands]:
    async with hands_on("memory://") as made:
        yield made


@pytest.fixture(params=["memory", POSTGRES])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hands]:
    async with hands_on(url_of(request.param, request, tmp_path)) as made:
        yield made


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"receipt": f"r{payload['n']}"}


async def dead(hands: Hands) -> int:
    return (await hands.engine.kernel.store.dead_letters.count(DeadLetterFilter()))[0]


async def item(hands: Hands, task: Task) -> int:
    return int((await hands.payload(task))["n"])


def receipts(count: int, kept: int) -> dict[str, Any]:
    return {"receipts": ["rkept!" if n == kept else f"rr{n}!" for n in range(count)]}


async def start(hands: Hands, workflow: str, inputs: dict[str, Any], **options: Any) -> str:
    return (await hands.engine.start_run(FLOW, workflow, inputs, **options)).id


@pytest.mark.postgres
async def test_once_a_run_cannot_succeed_no_step_starts_and_one_retry_completes_it(both: Hands) -> None:
    hands = both
    run_id = await start(hands, "Import", {"items": [0, 1, 2, 3]})
    first, second = await hands.claim(limit=2)
    await hands.fail(first, "card declined")
    reason = await hands.engine.kernel.run_reads.why(run_id)
    assert reason.code == "will_fail"
    assert reason.text.startswith(f"will fail: Import[{await item(hands, first)}].pay: handler failed: card declined; ")
    await hands.advance()
    assert await hands.claim() == []  # those that were ready are withdrawn
    await hands.settle(second, {"receipt": "kept"})
    run = await hands.engine.kernel.runs.get_run(run_id)
    assert run.state == "failed"
    assert "card declined" in (run.error or "")
    assert await dead(hands) == 1
    await hands.nothing_is_left(run_id)
    await hands.engine.runs.retry(run_id, actor="ann")
    assert await dead(hands) == 0
    await hands.work(answer)
    assert await hands.engine.run_result(run_id) == receipts(4, await item(hands, second))
    assert [transition.transition for transition in await hands.engine.kernel.run_reads.list_transitions(run_id)] == [
        "start",
        "fail",
        "retry",
        "succeed",
    ]
    await hands.nothing_is_left(run_id)


async def test_why_of_a_failing_run_adds_its_current_wait(hands: Hands) -> None:
    run_id = await start(hands, "Import", {"items": [0, 1]})
    first, _ = await hands.claim(limit=2)
    await hands.fail(first, "declined")
    await hands.advance()
    reads = hands.engine.kernel.run_reads
    begin = f"will fail: Import[{await item(hands, first)}].pay: handler failed: declined; now: "
    found = await reads.why(run_id)
    assert found.code == "will_fail"
    assert found.text.startswith(f"{begin}waits for ")
    await hands.engine.runs.pause(run_id)
    found = await reads.why(run_id)
    assert (found.code, found.text) == ("paused", f"{begin}paused; resume it with `treadle runs resume {run_id}`")
    await hands.engine.runs.resume(run_id)
    await hands.engine.kernel.store.commit([Unit(rows=(CancelRunTasks(run_id, "ann", "{}"),))])
    found = await reads.why(run_id)
    assert (found.code, found.text) == ("stuck", f"{begin}it has no live task; repair it with `treadle runs resume {run_id}`")


async def test_a_withdrawn_step_is_shown_as_canceled_with_its_end(hands: Hands) -> None:
    run_id = await start(hands, "Import", {"items": [0, 1, 2]})
    first, _ = await hands.claim(limit=2)
    await hands.fail(first)
    await hands.advance()
    run = await hands.engine.kernel.runs.pause(run_id)
    steps, _ = await hands.engine.kernel.run_services.reads.page_steps(run)
    withdrawn = [step for step in steps if step.row.error is not None and step.row.error.stopped and step.row.is_step]
    assert [step.state for step in withdrawn] == ["canceled"]
    assert all(step.ended_at is not None and step.took_for is not None for step in withdrawn)


async def test_a_run_may_finish_its_other_branches(hands: Hands) -> None:
    run_id = await start(hands, "Import", {"items": [0, 1]}, on_failure="finish")
    first, second = await hands.claim()
    await hands.fail(first)
    assert (await hands.engine.kernel.run_reads.why(run_id)).code == "will_fail"
    await hands.settle(second, {"receipt": "kept"})
    await hands.work(answer)
    assert (await hands.engine.kernel.runs.get_run(run_id)).state == "failed"
    assert (await hands.states(run_id))[f"Import[{await item(hands, second)}].twice"] == "Complete"
    with pytest.raises(InvalidInput, match="stop or finish"):
        await start(hands, "Import", {"items": []}, on_failure="wait")


async def test_the_settings_name_workflows_that_finish_after_a_failure() -> None:
    async with hands_on("memory://", finish_on_failure=("shop.Imp*",)) as hands:
        await start(hands, "Import", {"items": [0, 1]})
        first, second = await hands.claim()
        await hands.fail(first)
        await hands.settle(second, {"receipt": "x"})
        assert len(await hands.claim()) == 1


async def test_the_retry_of_a_run_while_it_still_fails_continues_it(hands: Hands) -> None:
    run_id = await start(hands, "Import", {"items": [0, 1, 2]})
    first, second = await hands.claim(limit=2)
    await hands.fail(first)
    await hands.engine.runs.retry(run_id)  # the inboxes of what was withdrawn are not processed yet
    await hands.settle(second, {"receipt": "kept"})
    await hands.work(answer)
    assert await hands.engine.run_result(run_id) == receipts(3, await item(hands, second))
    assert await dead(hands) == 0
    await hands.nothing_is_left(run_id)


async def test_failures_that_a_catch_handles_never_enter_the_dead_letters(both: Hands) -> None:
    run_id = await start(both, "Careful", {"items": [0, 1]})
    first, second = await both.claim()
    await both.fail(first)
    await both.settle(second, {"receipt": "one"})
    assert sorted((await both.engine.run_result(run_id))["receipts"]) == ["none", "one"]
    assert await dead(both) == 0
    task = await both.engine.kernel.reads.get_task(first.id)
    assert task.state == "failed"


async def test_a_retry_after_a_failed_catch_repeats_the_step_itself(hands: Hands) -> None:
    run_id = await start(hands, "Careless", {"n": 1})
    await hands.fail(await hands.claim_one())
    assert await dead(hands) == 0
    await hands.fail(await hands.claim_one())
    assert (await hands.engine.kernel.runs.get_run(run_id)).state == "failed"
    assert await dead(hands) == 1
    await hands.engine.runs.retry(run_id)
    assert await dead(hands) == 0
    await hands.work(answer)
    assert await hands.engine.run_result(run_id) == {"receipt": "r1"}


@pytest.mark.parametrize("problem", [Problem("not_started", "no"), Problem("failed", "no", "not_started")])
@pytest.mark.parametrize("by_agent", [False, True])
async def test_a_handler_may_use_the_code_of_steps_that_did_not_start(hands: Hands, problem: Problem, by_agent: bool) -> None:
    run_id = await start(hands, "Asked", {"n": 1})
    tasks = {task.name: task for task in await hands.claim()}
    pay = tasks["shop.Pay"]
    if by_agent:
        assert await hands.engine.kernel.runs.fail_step(run_id, pay.step_id or "", problem)
    else:
        await hands.engine.kernel.run_services.settler.settle(pay, pay.claim, failure(problem))
    await hands.settle(tasks["shop.Ask"], {"receipt": "kept"})
    await hands.advance()
    run = await hands.engine.kernel.runs.get_run(run_id)
    assert (run.state, "Asked.pay" in (run.error or "")) == ("failed", True)
    (row,) = [row for row in await hands.engine.kernel.runs.list_steps(run_id) if row.name == "pay"]
    assert row.status == "failed"
    await hands.nothing_is_left(run_id)
    await hands.engine.runs.retry(run_id, step=row.id)
    await hands.work(answer)
    assert await hands.engine.run_result(run_id) == {"receipt": "keptr1"}


async def test_dead_letters_of_runs_are_retried_as_runs(hands: Hands) -> None:
    runs = [await start(hands, "Import", {"items": [n, n + 1]}, on_failure="finish") for n in (0, 10)]
    for task in await hands.claim():
        await hands.fail(task)
    letters = hands.engine.kernel.dead_letters
    would = await letters.retry(name="shop.Pay", dry_run=True)
    assert (would.matched, would.done, would.of_runs) == (4, 4, 4)
    done = await letters.retry(name="shop.Pay", actor="ann")
    assert (done.matched, done.done, done.of_runs, done.passed_over) == (4, 4, 4, 0)
    assert await dead(hands) == 0
    await hands.work(answer)
    for run_id in runs:
        assert (await hands.engine.kernel.runs.get_run(run_id)).state == "completed"
        assert [
            transition.actor
            for transition in await hands.engine.kernel.run_reads.list_transitions(run_id)
            if transition.transition == "retry"
        ] == ["ann"]


@pytest.mark.parametrize("error", [UnreadableValue("damaged"), ValueLost("0" * 64), InvalidInput("no"), Refused("no")])
@pytest.mark.parametrize("by_id", [False, True])
async def test_a_run_that_cannot_be_read_does_not_stop_the_retry_of_others(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, error: Exception, by_id: bool
) -> None:
    broken, sound = [await start(hands, "Import", {"items": [n]}) for n in (0, 10)]
    tasks = await hands.claim()
    for task in tasks:
        await hands.fail(task)
    letters = hands.engine.kernel.dead_letters
    retry_run = letters._retry_run

    async def retry(run_id: str, actor: str) -> object:
        if run_id == broken:
            raise error
        return await retry_run(run_id, actor)

    monkeypatch.setattr(letters, "_retry_run", retry)
    api = Operations(hands.engine, Access("ann", frozenset(Scope))).dead_letters
    done = await (api.retry(ids=[task.id for task in tasks]) if by_id else api.retry(everything=True))
    assert (done.matched, done.done, done.of_runs, done.passed_over) == (2, 1, 1, 1)
    assert (await hands.engine.kernel.runs.get_run(sound)).state == "running"
    with pytest.raises(type(error)):
        await api.retry(ids=[task.id for task in tasks if task.run_id == broken])


@pytest.mark.parametrize("first_fails", [True, False])
async def test_a_failure_during_the_retry_of_a_dead_letter_is_not_hidden(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, first_fails: bool
) -> None:
    """It remains a dead letter if the retry came first; else it is retried, too."""
    run_id = await start(hands, "Import", {"items": [0, 1, 2]}, on_failure="finish")
    first, *late = await hands.claim(limit=2)
    if first_fails:
        await hands.fail(first)
    runs = hands.engine.kernel.runs
    retry = runs.retry

    async def retry_and_fail(*arguments: Any, **options: Any) -> Any:
        try:
            return await retry(*arguments, **options)
        finally:
            if late:
                await hands.fail(late.pop())

    monkeypatch.setattr(runs, "retry", retry_and_fail)
    await runs.retry_dead(run_id)
    assert await dead(hands) == first_fails
    assert len(await hands.claim()) == 2


async def test_another_payload_is_not_for_dead_letters_of_runs(hands: Hands) -> None:
    await start(hands, "Import", {"items": [0]})
    await hands.fail(await hands.claim_one())
    letters = hands.engine.kernel.dead_letters
    with pytest.raises(Refused, match="without another payload"):
        await letters.retry(name="shop.Pay", payload={"n": 2})
    assert await dead(hands) == 1


async def ask(hands: Hands, run_id: str) -> Any:
    """The two tasks of the workflow, of which the first now waits for a person."""
    tasks = {task.name: task for task in await hands.claim()}
    asked = tasks["shop.Ask"]
    decided = settlement(asked, AwaitingApproval(ApprovalRequest(title="Pay?")), RetryPolicy())
    await hands.engine.kernel.run_services.settler.settle(asked, asked.claim, decided)
    return tasks["shop.Pay"]


async def test_open_approval_requests_of_a_run_that_cannot_succeed_are_withdrawn(both: Hands) -> None:
    run_id = await start(both, "Asked", {"n": 1})
    pay = await ask(both, run_id)
    (approval,) = ((await both.engine.kernel.approvals.list()).approvals)[:1]
    await both.fail(pay)
    await both.advance()
    assert (await both.engine.kernel.approvals.get(approval.id)).state == "canceled"
    assert (await both.engine.kernel.runs.get_run(run_id)).state == "failed"
    await both.nothing_is_left(run_id)
    await both.engine.runs.retry(run_id)
    await both.work(answer)
    assert await both.engine.run_result(run_id) == {"receipt": "r1r1"}


async def test_a_pending_approval_or_retry_is_withdrawn_when_the_run_fails(hands: Hands) -> None:
    for outcome in (AwaitingApproval(ApprovalRequest(title="Pay?")), Retry(Problem("busy", "busy"), 3_600_000)):
        run_id = await start(hands, "Asked", {"n": 1})
        tasks = {task.name: task for task in await hands.claim()}
        await hands.fail(tasks["shop.Pay"])
        await hands.advance()
        asked = tasks["shop.Ask"]
        decided = settlement(asked, outcome, RetryPolicy(3))
        await hands.engine.kernel.run_services.settler.settle(asked, asked.claim, decided)
        await hands.advance()
        assert (await hands.engine.kernel.runs.get_run(run_id)).state == "failed"
        await hands.nothing_is_left(run_id)


@pytest.mark.parametrize("meanwhile", ["paused", "failed", "crashed"])
async def test_no_approval_of_a_run_that_cannot_succeed_stays_open(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """A step asks while the run is paused, or just before it fails, or its worker dies before it withdraws the request."""
    run_id = await start(hands, "Asked", {"n": 1})
    tasks = {task.name: task for task in await hands.claim()}
    pay, asked = tasks["shop.Pay"], tasks["shop.Ask"]
    advancer, runs = hands.engine.kernel.run_services.advancer, hands.engine.kernel.runs
    withdraw = advancer.withdraw

    async def no_rows(run: Run) -> tuple[()]:
        return ()

    async def fail_first(run_id: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(advancer, "_withdraw_rows", no_rows)  # read before the step asked
            await hands.fail(pay)
            await hands.advance()
        assert (await runs.get_run(run_id)).state == "failed"
        await withdraw(run_id)

    async def crash(run_id: str) -> None:
        return

    if meanwhile != "failed":
        await hands.fail(pay)
        await hands.advance()
    if meanwhile == "paused":
        await runs.pause(run_id)
    with monkeypatch.context() as patch:
        if meanwhile != "paused":
            patch.setattr(advancer, "withdraw", fail_first if meanwhile == "failed" else crash)
        decided = settlement(asked, AwaitingApproval(ApprovalRequest(title="Pay?")), RetryPolicy())
        await hands.engine.kernel.run_services.settler.settle(asked, asked.claim, decided)
    await runs.resume(run_id)
    await hands.advance()
    assert (await runs.get_run(run_id)).state == "failed"
    assert [each.state for each in (await hands.engine.kernel.approvals.list(every=True)).approvals] == ["canceled"]
    await hands.nothing_is_left(run_id)


async def test_why_shows_the_reason_of_a_pause(hands: Hands) -> None:
    run_id = await start(hands, "Careless", {"n": 1})
    task = await hands.claim_one()
    decided = settlement(task, Paused("the bank is closed"), RetryPolicy())
    await hands.engine.kernel.run_services.settler.settle(task, task.claim, decided)
    assert "paused: the bank is closed; resume" in (await hands.engine.kernel.reads.why(task.id)).text
    assert "paused: the bank is closed" in (await hands.engine.kernel.run_reads.why(run_id)).text
