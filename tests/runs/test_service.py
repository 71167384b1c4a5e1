"""The runs service: start, pause, cancel, retry, rerun, fork, resume, and agents' calls on waiting steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.errors import raises_code
from tests.limits import BOUND
from tests.runs.driver import Hands, hands_on

from treadle import Context, Engine
from treadle.engine.operations import Operations
from treadle.kernel.store.units import RunGuard, Unit, Verdict
from treadle.model.access import OPEN
from treadle.model.errors import IllegalTransition, InvalidFlow, InvalidInput, Refused, RunCanceled, RunFailed, RunNotFound
from treadle.model.names import ADVANCE
from treadle.model.values import decode
from treadle.settings import Settings
from treadle.testing import ManualClock

NOBODY = "00000000-0000-7000-8000-000000000000"

SHOP = [
    (
        "shop.afl",
        """
namespace shop {
    event facet Check(item: String) => (ok: Boolean)
    event facet Pay(amount: Long) => (receipt: String)
    event facet Ship(receipt: String) => (parcel: String)
    workflow Checkout(item: String, amount: Long = 5) => (parcel: String, ok: Boolean) andThen {
        check = Check(item = $.item)
        pay = Pay(amount = $.amount)
        ship = Ship(receipt = pay.receipt)
        yield Checkout(parcel = ship.parcel, ok = check.ok)
    }
}
""",
    )
]
EACH = [
    (
        "each.afl",
        """
namespace each {
    event facet Do(n: Long, by: Long) => (out: Long)
    workflow All(items: Json, by: Long = 2) => (outs: Json) andThen foreach item in $.items {
        it = Do(n = $.item, by = $.by)
        yield All(outs = [it.out])
    }
}
""",
    )
]


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "shop.Check":
            return {"ok": True}
        case "shop.Pay":
            return {"receipt": f"r{payload['amount']}"}
        case "shop.Ship":
            return {"parcel": f"p-{payload['receipt']}"}
        case _:
            return {"out": payload["n"] * payload["by"]}


@pytest.fixture(params=ALL)
async def hands(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hands]:
    """An engine on each store."""
    async with hands_on(url_of(request.param, request, tmp_path)) as made:
        yield made


@pytest.fixture
async def memory() -> AsyncIterator[Hands]:
    async with hands_on("memory://") as made:
        yield made


async def start(hands: Hands, **options: Any) -> str:
    return (await hands.engine.start_run(SHOP, "Checkout", {"item": "pen"}, **options)).id


async def step_id(hands: Hands, run_id: str, path: str) -> str:
    rows = await hands.engine.kernel.runs.list_steps(run_id)
    return next(row.id for row in rows if (row.path if row.is_step else row.place) == path)


async def outputs(hands: Hands, run_id: str) -> dict[str, Any]:
    return await hands.engine.run_result(run_id, timeout=BOUND)


async def transitions(hands: Hands, run_id: str) -> list[tuple[str, str | None]]:
    return [
        (transition.transition, transition.actor) for transition in await hands.engine.kernel.store.log.list_transitions(run_id)
    ]


# --- start ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"item \(String\) is missing"),
        ({"item": 3}, "item must be a String, not a number"),
        ({"item": "pen", "amount": "5"}, "amount must be a Long, not a string"),
        ({"item": "pen", "amount": True}, "amount must be a Long, not a boolean"),
        ({"item": None}, "item must be a String, not null"),
        ({"item": "pen", "amuont": 5}, "amuont is not a parameter; did you mean amount"),
        ({"amuont": 5}, r"item \(String\) is missing; amuont is not a parameter"),
    ],
)
async def test_inputs_of_other_types_are_named_and_not_stored(memory: Hands, given: dict[str, Any], said: str) -> None:
    with raises_code("invalid_inputs", match=said):
        await memory.engine.start_run(SHOP, "Checkout", given)
    assert await memory.engine.kernel.run_reads.list_runs() == []
    assert (await memory.engine.kernel.verify()).checked == 0


async def test_lenient_starts_accept_any_inputs(memory: Hands) -> None:
    run = await memory.engine.start_run(SHOP, "Checkout", {"amount": "x", "more": 1}, lenient=True, on_failure="finish")
    found = await memory.engine.kernel.runs.get_run(run.id)
    assert found.state == "running"
    assert await memory.engine.kernel.runs.inputs(found) == {"amount": "x", "more": 1}


async def test_bad_flows_and_workflows_are_refused(memory: Hands) -> None:
    engine = memory.engine
    with pytest.raises(InvalidFlow, match="Lnog"):
        await engine.start_run([("bad.afl", "facet A(x: Lnog)")], "A", {})
    with raises_code("workflow_not_found", match=r"shop\.Checkout"):
        await engine.start_run(SHOP, "Chekcout", {})
    two = [("two.afl", "namespace a { workflow W() andThen { } }\nnamespace b { workflow W() andThen { } }")]
    with raises_code("workflow_not_found", match=r"several workflows 'W'; give the qualified name: a\.W, b\.W\."):
        await engine.start_run(two, "W", {})
    with raises_code("workflow_not_found", match="Name the workflow"):
        await engine.start_run(two)
    with raises_code("flow_not_found"):
        await engine.start_run("nothing", "W")


HOURS = """
namespace work {
    event facet Hours(job: String) => (hours: Long, note: String)
    workflow Bill(job: String) => (hours: Json) andThen { h = Hours(job = $.job) yield Bill(hours = h.hours) }
}
"""


@pytest.mark.parametrize("how", ["sources", "published"])
async def test_a_result_of_another_type_is_merged_and_logged_and_fails_the_step_of_a_strict_flow(hands: Hands, how: str) -> None:
    runs = hands.engine.kernel.runs

    async def bill(result: dict[str, Any], *, strict: bool) -> tuple[str, Any, list[tuple[str, str]]]:
        flow: Any = [("work.afl", HOURS)]
        options = {"strict": strict}
        if how == "published":
            published = await hands.engine.kernel.flows.publish("work", flow, strict=strict)
            flow, options = published.flow_id, {}
        run = await hands.engine.start_run(flow, "Bill", {"job": "roof"}, **options)
        task = await hands.claim_one()
        await hands.settle(task, result)
        ended = await runs.get_run(run.id)
        await hands.engine.kernel.run_services.log_lines.flush()
        lines = [line for _, line in await hands.engine.kernel.run_reads.page_lines(run.id, 10)]
        shown = [(line.level, line.message) for line in lines if line.step_id == task.step_id]
        return ended.state, decode(ended.outputs) if ended.state == "completed" else decode(ended.error)["message"], shown

    assert await bill({"hours": 3.0, "note": ""}, strict=False) == ("completed", {"hours": 3}, [])
    assert await bill({"hours": 3.0, "note": ""}, strict=True) == ("completed", {"hours": 3}, [])
    wrong = "work.Hours` returned another result than declared: hours must be a Long, not a string; note (String) is missing"
    state, outputs, [(level, message)] = await bill({"hours": "3"}, strict=False)
    assert (state, outputs, level) == ("completed", {"hours": "3"}, "warning")
    assert message == f"Bill.h: the handler of `{wrong}"
    state, error, lines = await bill({"hours": "3"}, strict=True)
    assert (state, error, lines) == ("failed", f"Bill.h: handler failed: the handler of `{wrong} (the flow is strict)", [])


async def test_inputs_that_no_store_keeps_are_refused(memory: Hands) -> None:
    for value in (float("nan"), "a\x00b", object()):
        with pytest.raises(InvalidInput):
            await memory.engine.start_run(EACH, "All", {"items": [value]})
    assert await memory.engine.kernel.run_reads.list_runs() == []


@pytest.mark.postgres
async def test_an_idempotency_key_names_the_first_run(hands: Hands) -> None:
    first = await hands.engine.start_run(SHOP, "Checkout", {"item": "pen"}, idempotency_key="order-1")
    again = await hands.engine.start_run(SHOP, "Checkout", {"item": "pen"}, idempotency_key="order-1")
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert len(await hands.live(first.id)) == 2
    both = await asyncio.gather(
        *(hands.engine.start_run(SHOP, "Checkout", {"item": "pen"}, idempotency_key="order-2") for _ in range(5))
    )
    assert len({run.id for run in both}) == 1
    assert sum(run.created for run in both) == 1
    assert len(await hands.engine.kernel.run_reads.list_runs()) == 2
    await hands.work(answer)
    assert await outputs(hands, first.id) == {"parcel": "p-r5", "ok": True}
    await hands.nothing_is_left(first.id)


async def test_a_run_is_pinned_to_its_version(hands: Hands) -> None:
    engine = hands.engine
    first = await engine.kernel.flows.publish("shop", SHOP)
    old = await engine.start_run("shop", "Checkout", {"item": "pen"})
    changed = [(name, text.replace("parcel = ship.parcel", 'parcel = "new " ++ ship.parcel')) for name, text in SHOP]
    second = await engine.kernel.flows.publish("shop", changed)
    same = await engine.kernel.flows.publish("shop", changed)
    assert [first.version, second.version, same.version] == [1, 2, 2]
    new = await engine.start_run("shop", "Checkout", {"item": "pen"})
    pinned = await engine.start_run("shop", "Checkout", {"item": "pen"}, version=1)
    await hands.work(answer)
    assert [(await outputs(hands, run.id))["parcel"] for run in (old, new, pinned)] == ["p-r5", "new p-r5", "p-r5"]
    assert engine.kernel.flows.sources(await engine.kernel.flows.get_flow("shop")) == changed
    assert [version.version for version in await engine.kernel.flows.list_versions("shop")] == [2, 1]


async def test_two_namespaces_may_have_the_same_flow(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    async with hands_on(url, namespace="one") as one, hands_on(url, namespace="two") as two:
        await one.engine.kernel.flows.publish("shop", SHOP)
        with raises_code("flow_not_found"):
            await two.engine.start_run("shop", "Checkout", {"item": "pen"})
        await two.engine.kernel.flows.publish("shop", SHOP)
        run = await two.engine.start_run("shop", "Checkout", {"item": "pen"})
        with pytest.raises(RunNotFound):
            await one.engine.kernel.runs.get_run(run.id)
        with pytest.raises(RunNotFound):
            await one.engine.runs.cancel(run.id)
        with pytest.raises(RunNotFound):
            await one.engine.kernel.runs.continue_step(run.id, await step_id(two, run.id, "Checkout.pay"))
        again = await two.engine.runs.rerun(run.id)
        await two.work(answer)
        assert await outputs(two, again.id) == {"parcel": "p-r5", "ok": True}


# --- pause and resume ---


async def test_a_paused_run_keeps_results_and_continues_only_on_resume(hands: Hands) -> None:
    run_id = await start(hands)
    check, pay = sorted(await hands.claim(), key=lambda task: task.name)
    paused = await hands.engine.runs.pause(run_id, actor="ann")
    assert paused.state == "paused"
    assert (await hands.engine.kernel.runs.status(run_id)).status == "PAUSED"
    for task in (check, pay):  # both were under way: they count
        assert (await hands.settle(task, answer(task.name, await hands.payload(task)))).verdict is Verdict.DONE
    assert len(await hands.inbox(run_id)) == 2
    assert await hands.claim("handler", ADVANCE) == []
    assert all(task.shown_state == "paused" for task in await hands.live(run_id))
    states = await hands.states(run_id)
    assert (states["Checkout.check"], states["Checkout.pay"]) == ("EventTransmit", "EventTransmit")
    assert (await hands.engine.runs.pause(run_id)).state == "paused"  # twice is a no-op
    assert (await hands.engine.runs.resume(run_id, actor="bob")).state == "running"
    assert (await hands.engine.runs.resume(run_id)).state == "running"
    await hands.work(answer)
    assert await outputs(hands, run_id) == {"parcel": "p-r5", "ok": True}
    assert await transitions(hands, run_id) == [("start", None), ("pause", "ann"), ("resume", "bob"), ("succeed", None)]
    await hands.nothing_is_left(run_id)


async def test_a_retry_of_a_paused_run_stays_paused(memory: Hands) -> None:
    from treadle.kernel.queue.decide import settlement
    from treadle.model.outcomes import Problem, Retry
    from treadle.model.retry import RetryPolicy

    run_id = await start(memory)
    task = (await memory.claim())[0]
    await memory.engine.runs.pause(run_id)
    decided = settlement(task, Retry(Problem("boom", "again"), after_for=0), RetryPolicy(retries=1))
    await memory.engine.kernel.run_services.settler.settle(task, task.claim, decided)
    assert await memory.claim("handler", ADVANCE) == []
    await memory.engine.runs.resume(run_id)
    assert task.id in [each.id for each in await memory.claim()]


async def test_a_retry_mixin_repeats_the_handler_until_its_attempts_are_used_up() -> None:
    from treadle.kernel.queue.decide import decide
    from treadle.model.outcomes import RETRIED_FOR, Problem, Retry
    from treadle.model.retry import RetryPolicy

    flow = "event facet E() => (x: Long)\nworkflow W() => (x: Long) andThen {\n    e = E() with Retry(maxAttempts = 3, delay = 0)\n"
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock) as engine:
        hands, settler = Hands(engine), engine.kernel.run_services.settler
        run_id = (await engine.start_run([("w.afl", flow + "    yield W(x = e.x)\n}")], "W", {})).id
        for _ in range(2):
            task = await hands.claim_one()
            await settler.settle(task, task.claim, decide(task, Retry(Problem("boom", "again")), RetryPolicy(), lambda: 0.0))
        clock.advance(RETRIED_FOR / 1000)
        await engine.kernel.store.tasks.wake(1)
        last = await hands.claim_one()
        assert last.id == task.id
        await settler.settle(last, last.claim, decide(last, Retry(Problem("boom", "no")), RetryPolicy(), lambda: 0.0))
        await hands.advance()
        with pytest.raises(RunFailed, match="no"):
            await outputs(hands, run_id)


async def test_results_arriving_during_a_resume_are_processed(memory: Hands) -> None:
    """The advancer has seen the run paused; before it commits, the run is resumed."""
    run_id = await start(memory)
    tasks = await memory.claim()
    await memory.engine.runs.pause(run_id)
    store: Any = memory.engine.kernel.store
    find_run = store.runs.find
    seen = False

    async def find_then_resume(asked: str) -> Any:
        nonlocal seen
        found = await find_run(asked)
        if not seen:
            seen = True
            await memory.engine.runs.resume(run_id)
        return found

    store.runs.find = find_then_resume
    for task in tasks:
        await memory.settle(task, answer(task.name, await memory.payload(task)))
    store.runs.find = find_run
    await memory.work(answer)
    assert await outputs(memory, run_id) == {"parcel": "p-r5", "ok": True}
    await memory.nothing_is_left(run_id)


async def test_a_task_canceled_while_the_run_is_paused_is_processed_on_resume(memory: Hands) -> None:
    run_id = await start(memory)
    await memory.engine.runs.pause(run_id)
    task = next(task for task in await memory.live(run_id) if task.name == "shop.Check")
    await memory.engine.cancel(task.id, reason="not today")
    await memory.advance()
    await memory.engine.runs.resume(run_id)
    await memory.work(answer)
    with pytest.raises(RunFailed, match=r"Checkout\.check: handler failed: not today"):
        await outputs(memory, run_id)
    await memory.nothing_is_left(run_id)


async def test_a_paused_run_stores_results_but_refuses_to_advance(memory: Hands) -> None:
    run_id = await start(memory)
    await memory.engine.runs.pause(run_id)
    with pytest.raises(Refused, match="paused"):
        await memory.engine.kernel.runs.update_step(run_id, await step_id(memory, run_id, "Checkout.pay"), {"receipt": "x"})
    with pytest.raises(IllegalTransition):
        await memory.engine.runs.retry(run_id)
    assert await memory.engine.kernel.runs.continue_step(run_id, await step_id(memory, run_id, "Checkout.pay"), {"receipt": "kept"})
    assert (await memory.states(run_id))["Checkout.pay"] == "EventTransmit"
    await memory.engine.runs.resume(run_id)
    await memory.work(answer)
    assert (await outputs(memory, run_id))["parcel"] == "p-kept"


async def test_finished_runs_are_neither_paused_nor_resumed(memory: Hands) -> None:
    run_id = await start(memory)
    await memory.work(answer)
    with pytest.raises(IllegalTransition):
        await memory.engine.runs.pause(run_id)
    with pytest.raises(IllegalTransition):
        await memory.engine.runs.cancel(run_id)
    with pytest.raises(IllegalTransition):
        await memory.engine.runs.retry(run_id)
    with pytest.raises(IllegalTransition):
        await memory.engine.runs.resume(run_id)
    for act in (memory.engine.runs.pause, memory.engine.runs.resume, memory.engine.runs.cancel, memory.engine.runs.retry):
        with pytest.raises(RunNotFound):
            await act(NOBODY)


async def test_a_busy_run_can_be_paused(memory: Hands) -> None:
    """However often it is advanced between a look and a commit, an operator has not to try again and again."""
    run_id = await start(memory)
    store: Any = memory.engine.kernel.store
    commit = store.commit

    async def overtaken(units: Any) -> Any:
        version = (await store.runs.find(run_id)).version
        await commit([Unit(run=RunGuard(run_id, version))])
        return await commit(units)

    store.commit = overtaken
    assert (await memory.engine.runs.pause(run_id)).state == "paused"
    assert (await memory.engine.runs.resume(run_id)).state == "running"
    assert (await memory.engine.runs.cancel(run_id)).state == "canceled"


async def test_concurrent_resumes_have_one_winner(memory: Hands) -> None:
    run_id = await start(memory)
    await memory.engine.runs.pause(run_id)
    runs = await asyncio.gather(*(memory.engine.runs.resume(run_id) for _ in range(4)))
    assert {run.state for run in runs} == {"running"}
    assert [transition for transition, _ in await transitions(memory, run_id)] == ["start", "pause", "resume"]


# --- cancel ---


async def test_a_canceled_run_ends_its_tasks_and_refuses_late_results(hands: Hands) -> None:
    run_id = await start(hands)
    task = (await hands.claim())[0]
    run = await hands.engine.runs.cancel(run_id, actor="ann", reason="wrong order")
    assert (run.state, run.error["message"]) == ("canceled", "wrong order")
    assert await hands.live(run_id) == []
    assert (await hands.settle(task, {"ok": True})).verdict is Verdict.CLAIM_LOST
    assert (await hands.states(run_id))["Checkout.pay"] == "EventTransmit"  # steps stay as they were
    assert (await hands.engine.runs.cancel(run_id)).state == "canceled"
    with pytest.raises(RunCanceled, match="wrong order"):
        await outputs(hands, run_id)
    assert (await hands.engine.kernel.runs.status(run_id)).status == "CANCELED"
    assert await hands.engine.kernel.runs.continue_step(run_id, await step_id(hands, run_id, "Checkout.pay")) is False
    assert await hands.engine.kernel.runs.update_step(run_id, await step_id(hands, run_id, "Checkout.pay"), {"a": 1}) is False
    await hands.nothing_is_left(run_id)


async def test_canceling_a_run_stops_its_running_handler() -> None:
    """The handler does not go on, which `stopped` shows."""
    engine = make_engine("memory://")
    began, stopped = asyncio.Event(), asyncio.Event()

    @engine.handler("Pay")
    async def pay(payload: dict[str, Any], ctx: Context) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with engine, engine.worker():
        run = await engine.start_run(SHOP, "Checkout", {"item": "pen"})
        async with asyncio.timeout(BOUND):
            await began.wait()
            await engine.runs.cancel(run.id)
            await stopped.wait()


@pytest.mark.parametrize("how", ["cancel", "pause and cancel", "deadline"])
async def test_canceling_a_run_abandons_its_steps_in_place_and_they_are_shown_as_canceled(memory: Hands, how: str) -> None:
    """D84: the rows stay as they are, so that a fork continues from them."""
    run_id = await start(memory)
    await memory.settle(next(task for task in await memory.claim() if task.name == "shop.Check"), {"ok": True})
    rows = await memory.engine.kernel.runs.list_steps(run_id)
    if how == "pause and cancel":
        await memory.engine.runs.pause(run_id)
    await memory.engine.kernel.runs.cancel(run_id, code="deadline_exceeded" if how == "deadline" else "canceled")
    assert await memory.engine.kernel.runs.list_steps(run_id) == rows
    shown = (await Operations(memory.engine, OPEN).steps.list(run_id)).steps
    assert {step.path: step.state for step in shown if step.kind != "block"} == {
        "Checkout": "canceled",
        "Checkout.check": "completed",
        "Checkout.pay": "canceled",
    }
    forked = await memory.engine.runs.fork(run_id, await step_id(memory, run_id, "Checkout.pay"))
    assert {task.name for task in await memory.claim()} == {"shop.Pay"}
    assert (await memory.engine.kernel.runs.get_run(forked)).state == "running"


async def test_a_paused_run_can_be_canceled(memory: Hands) -> None:
    """No task of the run is left."""
    run_id = await start(memory)
    await memory.settle((await memory.claim())[0], {"ok": True})
    await memory.engine.runs.pause(run_id)
    await memory.engine.runs.cancel(run_id)
    await memory.nothing_is_left(run_id)


# --- retry and rerun ---


async def test_retrying_a_failed_step_keeps_completed_results(hands: Hands) -> None:
    run_id = await start(hands)
    done: list[str] = []
    for task in await hands.claim():
        done.append(task.name)
        await (hands.fail(task, "card declined") if task.name == "shop.Pay" else hands.settle(task, {"ok": True}))
    run = await hands.engine.kernel.runs.get_run(run_id)
    assert (run.state, decode(run.error)["message"]) == ("failed", "Checkout.pay: handler failed: card declined")
    run = await hands.engine.runs.retry(run_id, actor="ann")
    assert (run.state, run.error, run.failed_step_id, run.finished_at) == ("running", None, None, None)
    (task,) = await hands.live(run_id)
    assert task.name == "shop.Pay"
    await hands.work(answer)
    assert await outputs(hands, run_id) == {"parcel": "p-r5", "ok": True}
    assert await transitions(hands, run_id) == [("start", None), ("fail", None), ("retry", "ann"), ("succeed", None)]
    await hands.nothing_is_left(run_id)


async def test_an_immediately_failing_retry_is_logged_as_retry_and_failure(memory: Hands) -> None:
    flow = [("f.afl", "facet F(n: Long)\nworkflow W(n: Json) andThen { a = F(n = $.n + 1) }")]
    run = await memory.engine.start_run(flow, "W", {"n": "text"})
    assert (await memory.engine.kernel.runs.get_run(run.id)).state == "failed"
    assert (await memory.engine.runs.retry(run.id)).state == "failed"
    assert [transition for transition, _ in await transitions(memory, run.id)] == ["start", "fail", "retry", "fail"]
    assert (await memory.engine.kernel.verify()).problems == ()


async def test_only_failed_runs_and_steps_are_retried(memory: Hands) -> None:
    run_id = await start(memory)
    with pytest.raises(Refused, match="has not failed"):
        await memory.engine.runs.retry(run_id)
    with pytest.raises(Refused, match="has not failed"):
        await memory.engine.runs.retry(run_id, step=await step_id(memory, run_id, "Checkout.pay"))
    with raises_code("step_not_found"):
        await memory.engine.runs.retry(run_id, step=NOBODY)
    assert (await memory.engine.kernel.runs.get_run(run_id)).state == "running"


async def test_a_step_is_retried_while_others_continue(memory: Hands) -> None:
    run_id = await start(memory)
    for task in await memory.claim():
        if task.name == "shop.Check":
            await memory.fail(task)
    assert (await memory.engine.kernel.runs.get_run(run_id)).state == "running"
    await memory.engine.runs.retry(run_id, step=await step_id(memory, run_id, "Checkout.check"))
    (again,) = await memory.claim()
    assert again.name == "shop.Check"


async def test_a_rerun_is_a_new_run_with_the_same_inputs(memory: Hands) -> None:
    run_id = await start(memory, task_list="slow", priority=3)
    again = await memory.engine.runs.rerun(run_id)
    run = await memory.engine.kernel.runs.get_run(again.id)
    assert (run.parent_id, run.task_list, run.priority) == (run_id, "slow", 3)
    other = await memory.engine.runs.rerun(run_id, inputs={"item": "ink", "amount": 7})
    await memory.work(answer)
    assert (await outputs(memory, again.id))["parcel"] == "p-r5"
    assert (await outputs(memory, other.id))["parcel"] == "p-r7"


# --- fork ---


async def test_a_fork_keeps_results_that_do_not_depend_on_the_step(hands: Hands) -> None:
    run_id = await start(hands)
    await hands.work(answer)
    forked = await hands.engine.runs.fork(run_id, await step_id(hands, run_id, "Checkout.pay"))
    assert forked.id != run_id
    run = await hands.engine.kernel.runs.get_run(forked.id)
    old = await hands.engine.kernel.runs.get_run(run_id)
    assert (run.parent_id, run.root_id, run.trace_id, run.state, run.flow_id) == (
        run_id, old.root_id, old.trace_id, "running", old.flow_id,
    )  # fmt: skip
    (task,) = await hands.live(forked.id)
    assert task.name == "shop.Pay"
    states = await hands.states(forked.id)
    assert (states["Checkout.check"], states["Checkout.pay"]) == ("Complete", "EventTransmit")
    assert "Checkout.ship" not in states
    await hands.settle(await hands.claim_one(), {"receipt": "second"})
    await hands.work(answer)
    assert await outputs(hands, forked.id) == {"parcel": "p-second", "ok": True}
    assert await outputs(hands, run_id) == {"parcel": "p-r5", "ok": True}
    assert old == await hands.engine.kernel.runs.get_run(run_id)
    await hands.nothing_is_left(forked.id)


async def test_a_fork_can_change_inputs(memory: Hands) -> None:
    run_id = await start(memory)
    await memory.work(answer)
    pay = await step_id(memory, run_id, "Checkout.pay")
    forked = await memory.engine.runs.fork(run_id, pay, inputs={"amount": 9})
    assert await memory.engine.kernel.runs.inputs(await memory.engine.kernel.runs.get_run(forked.id)) == {
        "item": "pen",
        "amount": 9,
    }
    await memory.work(answer)
    assert (await outputs(memory, forked.id))["parcel"] == "p-r9"
    with raises_code("invalid_inputs"):
        await memory.engine.runs.fork(run_id, pay, inputs={"amount": "much"})
    with raises_code("step_not_found"):
        await memory.engine.runs.fork(run_id, NOBODY)
    with pytest.raises(RunNotFound):
        await memory.engine.runs.fork(NOBODY, pay)


async def test_forks_of_failed_canceled_and_running_runs_continue(memory: Hands) -> None:
    failed = await start(memory)
    for task in await memory.claim():
        await (memory.fail(task) if task.name == "shop.Pay" else memory.settle(task, {"ok": True}))
    canceled = await start(memory)
    await memory.settle(next(task for task in await memory.claim() if task.name == "shop.Check"), {"ok": False})
    await memory.engine.runs.cancel(canceled)
    running = await start(memory)
    forks = [
        (await memory.engine.runs.fork(run_id, await step_id(memory, run_id, "Checkout.pay"))).id
        for run_id in (failed, canceled, running)
    ]
    await memory.work(answer)
    assert [(await outputs(memory, fork))["ok"] for fork in forks] == [True, False, True]
    assert await outputs(memory, running) == {"parcel": "p-r5", "ok": True}
    for fork in forks:
        await memory.nothing_is_left(fork)


async def test_a_fork_from_one_item_repeats_that_item(memory: Hands) -> None:
    run = await memory.engine.start_run(EACH, "All", {"items": [1, 2, 3]})
    await memory.work(answer)
    assert await outputs(memory, run.id) == {"outs": [2, 4, 6]}
    forked = await memory.engine.runs.fork(run.id, await step_id(memory, run.id, "All[1].it"))
    (task,) = await memory.claim()
    await memory.settle(task, {"out": 40})
    assert await outputs(memory, forked.id) == {"outs": [2, 40, 6]}
    whole = await memory.engine.runs.fork(run.id, await step_id(memory, run.id, "All"), inputs={"by": 10})
    await memory.work(answer)
    assert await outputs(memory, whole.id) == {"outs": [10, 20, 30]}


# --- agents ---


async def test_continuing_a_step_twice_is_a_no_op(hands: Hands) -> None:
    run_id = await start(hands)
    pay = await step_id(hands, run_id, "Checkout.pay")
    held = next(task for task in await hands.claim() if task.name == "shop.Pay")
    assert await hands.engine.kernel.runs.continue_step(run_id, pay, {"receipt": "by hand"}) is True
    assert await hands.engine.kernel.runs.continue_step(run_id, pay, {"receipt": "again"}) is False
    assert await hands.engine.kernel.runs.fail_step(run_id, pay, "too late") is False
    assert await hands.engine.kernel.runs.update_step(run_id, pay, {"receipt": "too late"}) is False
    assert (await hands.settle(held, {"receipt": "its holder"})).verdict is Verdict.CLAIM_LOST
    await hands.work(answer)
    check = await step_id(hands, run_id, "Checkout.check")
    await hands.engine.kernel.runs.continue_step(run_id, check, {"ok": True})  # still not claimed by a live worker
    assert await outputs(hands, run_id) == {"parcel": "p-by hand", "ok": True}
    await hands.nothing_is_left(run_id)


async def test_a_waiting_step_can_be_failed(memory: Hands) -> None:
    run_id = await start(memory)
    assert await memory.engine.kernel.runs.fail_step(run_id, await step_id(memory, run_id, "Checkout.pay"), "no money") is True
    assert await memory.engine.kernel.runs.fail_step(run_id, await step_id(memory, run_id, "Checkout.pay"), "no money") is False
    await memory.work(answer)
    with pytest.raises(RunFailed, match=r"Checkout\.pay: handler failed: no money"):
        await outputs(memory, run_id)


async def test_partial_results_are_merged_and_the_step_keeps_waiting(hands: Hands) -> None:
    run_id = await start(hands)
    pay = await step_id(hands, run_id, "Checkout.pay")
    assert await hands.engine.kernel.runs.update_step(run_id, pay, {"receipt": "partial", "seen": 1}) is True
    assert await hands.engine.kernel.runs.update_step(run_id, pay, {"seen": 2}) is True
    row = await hands.engine.kernel.runs.get_step(run_id, pay)
    assert (row.returns, row.state.rpartition(".")[2]) == ({"receipt": "partial", "seen": 2}, "EventTransmit")
    assert len(await hands.live(run_id)) == 2
    assert await hands.engine.kernel.runs.continue_step(run_id, pay) is True
    await hands.work(answer)
    assert (await outputs(hands, run_id))["parcel"] == "p-partial"


async def test_only_waiting_event_steps_can_be_continued_failed_or_updated(memory: Hands) -> None:
    run_id = await start(memory)
    runs = memory.engine.kernel.runs
    for act in (runs.continue_step, lambda *of: runs.fail_step(*of, "no"), lambda *of: runs.update_step(*of, {})):
        with raises_code("step_not_found"):
            await act(run_id, NOBODY)
        with pytest.raises(InvalidInput, match="not a valid step id"):
            await act(run_id, "pay")
        for path in ("Checkout", "Checkout/block-0"):
            with pytest.raises(IllegalTransition, match="not an event step"):
                await act(run_id, await step_id(memory, run_id, path))
    other: Any = ["not", "a", "dict"]
    with pytest.raises(InvalidInput, match="list"):
        await runs.continue_step(run_id, await step_id(memory, run_id, "Checkout.pay"), other)
    with pytest.raises(InvalidInput, match="list"):
        await runs.update_step(run_id, await step_id(memory, run_id, "Checkout.pay"), other)


async def test_agents_and_a_worker_share_one_run(memory: Hands) -> None:
    """Claims, agents' results and operators' actions are serialised; none is lost in the batch of another."""
    run = await memory.engine.start_run(EACH, "All", {"items": list(range(20))})
    tasks = await memory.claim()
    steps = {task.id: task.step_id or "" for task in tasks}
    settled = [memory.settle(task, {"out": decode(task.payload)["n"]}) for task in tasks[:10]]
    said = [memory.engine.kernel.runs.continue_step(run.id, steps[task.id], {"out": -1}) for task in tasks[10:]]
    answers = await asyncio.gather(*(each for pair in zip(settled, said, strict=True) for each in pair))
    assert answers.count(True) == 10
    assert await memory.live(run.id) == []
    outs = (await outputs(memory, run.id))["outs"]
    assert sorted(outs) == sorted([decode(task.payload)["n"] for task in tasks[:10]] + [-1] * 10)
    await memory.nothing_is_left(run.id)


# --- resuming abandoned work ---


async def test_resume_processes_inbox_results_without_an_advance_task(memory: Hands) -> None:
    """An advance task is gone (it failed, and was discarded): resuming the run does its work."""
    run_id = await start(memory)
    tasks = await memory.claim()
    await memory.engine.runs.pause(run_id)
    for task in tasks:
        await memory.settle(task, answer(task.name, await memory.payload(task)))
    await memory.engine.runs.resume(run_id)
    for task in await memory.claim(ADVANCE):
        await memory.engine.kernel.store.commit([_drop(task)])
    assert await memory.live(run_id) == []
    assert len(await memory.inbox(run_id)) == 2
    await memory.engine.runs.resume(run_id)
    await memory.work(answer)
    assert await outputs(memory, run_id) == {"parcel": "p-r5", "ok": True}
    await memory.nothing_is_left(run_id)


async def test_resume_replaces_missing_tasks(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from tests.contract.databases import SqliteInline  # for a look around the store

    class Place:
        param = None
        node = request.node

    database = SqliteInline(Place(), tmp_path)  # type: ignore[arg-type]
    async with hands_on(f"sqlite:///{database.path}") as hands:
        run_id = await start(hands)
        database.execute("delete from tasks where run_id is not null")
        assert await hands.live(run_id) == []
        await hands.engine.runs.resume(run_id)
        assert {task.name for task in await hands.live(run_id)} == {"shop.Check", "shop.Pay"}
        before = await hands.live(run_id)
        await hands.engine.runs.resume(run_id)  # nothing to do
        assert await hands.live(run_id) == before
        transitions = await hands.engine.kernel.store.log.list_transitions(run_id)
        assert [(transition.transition, transition.actor) for transition in transitions] == [
            ("start", None),
            ("repair", "python"),
        ]
        await hands.work(answer)
        assert await outputs(hands, run_id) == {"parcel": "p-r5", "ok": True}
        await hands.nothing_is_left(run_id)


def _drop(task: Any) -> Any:
    from treadle.kernel.store.units import Finish, Unit

    return Unit(task.claim, Finish("succeed", "completed", result="{}"))
