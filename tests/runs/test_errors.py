"""Errors of runs: the whole path, what is caught, and an evaluator that breaks (D60)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.engines import make_engine
from tests.limits import BOUND
from tests.runs.driver import Hands, hands_on

from treadle.kernel.runs import advancer
from treadle.kernel.store.units import Verdict
from treadle.kernel.telemetry.events import LoopError
from treadle.model.errors import InvalidInput, RunFailed, StoreUnavailable
from treadle.model.names import ADVANCE
from treadle.model.values import decode

NESTED = [
    (
        "nested.afl",
        """
namespace n {
    event facet Pay(amount: Long) => (receipt: String)
    facet Order(amount: Long) => (receipt: String) andThen {
        pay = Pay(amount = $.amount)
        yield Order(receipt = pay.receipt)
    }
    workflow Shop(orders: Json) => (receipts: Json) andThen foreach order in $.orders {
        place = Order(amount = $.order)
        yield Shop(receipts = [place.receipt])
    }
    workflow Careful(orders: Json) => (receipts: Json) andThen foreach order in $.orders {
        place = Order(amount = $.order) catch { yield Order(receipt = "none: " ++ $.error ++ " (" ++ $.error_type ++ ")") }
        yield Careful(receipts = [place.receipt])
    }
    workflow Wrong(n: Json) andThen foreach item in $.n {
        a = Order(amount = $.item.missing)
    }
    workflow Scripted() andThen {
        s = Careless()
    }
    facet Careless() andThen script { result["x"] = 1 / 0 }
}
""",
    )
]


@pytest.fixture
async def hands() -> AsyncIterator[Hands]:
    async with hands_on("memory://") as made:
        yield made


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    if payload["amount"] < 0:
        raise ValueError("card declined")
    return {"receipt": f"r{payload['amount']}"}


async def test_the_message_has_the_whole_path_through_items_and_facets(hands: Hands) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1, -2, 3, -4]})
    await hands.work(answer)
    with pytest.raises(RunFailed, match=r"Shop\[1\]\.place\.pay: handler failed: card declined$") as failed:
        await hands.engine.run_result(run)
    row = await hands.engine.kernel.runs.get_step(run.id, failed.value.step_id or "")
    assert row.path == "Shop[1].place.pay"
    ended = await hands.states(run.id)
    assert {place: ended[place] for place in ("Shop[0].place", "Shop[1].place", "Shop[2].place", "Shop[3].place")} == {
        "Shop[0].place": "Complete", "Shop[1].place": "Error", "Shop[2].place": "Complete", "Shop[3].place": "Error",
    }  # fmt: skip
    assert ended["Shop/block-0"] == ended["Shop"] == "Error"


async def test_retrying_the_root_repeats_all_failed_steps(hands: Hands) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1, -2, 3, -4]})
    await hands.work(answer)
    root = next(row for row in await hands.engine.kernel.runs.list_steps(run.id) if row.parent_id is None)
    await hands.engine.runs.retry(run.id, step=root.id)
    assert len(await hands.live(run.id)) == 2
    await hands.work(lambda name, payload: {"receipt": f"second {payload['amount']}"})
    assert await hands.engine.run_result(run) == {"receipts": ["r1", "second -2", "r3", "second -4"]}
    await hands.nothing_is_left(run.id)


async def test_a_caught_error_does_not_fail_the_run(hands: Hands) -> None:
    run = await hands.engine.start_run(NESTED, "Careful", {"orders": [1, -2]})
    await hands.work(answer)
    assert await hands.engine.run_result(run) == {"receipts": ["r1", "none: card declined (ValueError)"]}


async def test_errors_of_expressions_have_their_path(hands: Hands) -> None:
    run = await hands.engine.start_run(NESTED, "Wrong", {"n": [{"missing": 1}, {}]})
    await hands.work(answer)
    with pytest.raises(RunFailed, match=r"Wrong\[1\]\.a: .*missing"):
        await hands.engine.run_result(run)


async def test_errors_of_scripts_have_their_path() -> None:
    engine = make_engine("memory://")
    async with engine, engine.worker():
        run = await engine.start_run(NESTED, "Scripted", {})
        with pytest.raises(RunFailed, match=r"Scripted\.s: script failed: .*division by zero"):
            await engine.run_result(run, timeout=BOUND)


async def test_a_handler_that_returns_no_dict_fails_its_step() -> None:
    engine = make_engine("memory://")

    @engine.handler("n.Pay")
    async def pay(payload: dict[str, Any]) -> Any:
        return ["no", "dict"]

    async with engine, engine.worker():
        run = await engine.start_run(NESTED, "Shop", {"orders": [1]})
        with pytest.raises(RunFailed, match=r"Shop\[0\]\.place\.pay: handler failed: .*list"):
            await engine.run_result(run, timeout=BOUND)


async def test_a_misspelt_return_fails_its_reader_and_a_fork_repeats_the_step(hands: Hands) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1]})
    task = await hands.claim_one()
    await hands.settle(task, {"recipt": "r1"})
    failed = await hands.engine.kernel.run_reads.get_run(run)
    assert failed.state == "failed"
    assert "step `pay` has no `receipt`: `n.Pay` declares it, but nothing gave it a value" in (failed.error or "")
    forked = await hands.engine.runs.fork(run, task.step_id or "")
    await hands.settle(await hands.claim_one(), {"receipt": "r1", "further": 1})
    assert await hands.engine.run_result(forked, timeout=BOUND) == {"receipts": ["r1"]}


async def test_a_misspelt_return_fails_the_step_of_a_strict_flow_which_can_be_retried(hands: Hands) -> None:
    source = """
    event facet Pay(n: Long) => (receipt: String)
    workflow Shop() => (receipt: String) andThen { pay = Pay(n = 1) yield Shop(receipt = pay.receipt) }
    """
    run = await hands.engine.start_run([("strict.afl", source)], "Shop", strict=True)
    await hands.settle(await hands.claim_one(), {"recipt": "r1"})
    failed = await hands.engine.kernel.run_reads.get_run(run)
    assert "returned another result than declared: receipt (String) is missing; recipt is not declared" in (failed.error or "")
    await hands.engine.runs.retry(run)
    await hands.settle(await hands.claim_one(), {"receipt": "r1", "further": 1})
    assert await hands.engine.run_result(run, timeout=BOUND) == {"receipt": "r1"}


async def test_continuing_a_step_with_a_misspelt_return_is_refused(hands: Hands) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1]})
    (task,) = await hands.live(run.id)
    for result in ({"recipt": "r1"}, {"receipt": "r1", "further": 1}):
        with pytest.raises(InvalidInput, match="It returns receipt: String"):
            await hands.engine.kernel.runs.continue_step(run, task.step_id or "", result)
    assert await hands.engine.kernel.runs.continue_step(run, task.step_id or "", {"receipt": "r1"})
    assert await hands.engine.run_result(run, timeout=BOUND) == {"receipts": ["r1"]}


# --- an evaluator that breaks ---


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The evaluator raises, whatever it is asked."""
    calls: list[int] = []

    def fail(*_: Any) -> Any:
        calls.append(1)
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(advancer, "advance", fail)
        yield calls


async def test_an_evaluator_that_breaks_loses_no_result(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    hands.engine.kernel.run_services.advancer._emit = told.append
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1, 2, 3]})
    tasks = await hands.claim()
    with broken(monkeypatch):
        for task in tasks:
            answered = await hands.settle(task, answer(task.name, await hands.payload(task)))
            assert answered.verdict is Verdict.DONE
        ended = [await hands.engine.kernel.reads.get_task(task.id) for task in tasks]
        assert [(task.state, decode(task.result)["receipt"]) for task in ended] == [
            ("completed", f"r{decode(task.payload)['amount']}") for task in tasks
        ]
        assert len(await hands.inbox(run.id)) == 3
        assert (await hands.engine.kernel.runs.get_run(run.id)).state == "running"
        assert await hands.advance() == 3
    failed = await hands.engine.kernel.reads.list_tasks(states=("failed",), kind=ADVANCE)
    assert [(task.kind, task.error_code, "a bug" in (task.error or "")) for task in failed] == [
        (ADVANCE, "evaluator_error", True)
    ] * 3
    assert sum(isinstance(event, LoopError) and "a bug" in event.error for event in told) == 6
    assert len(await hands.inbox(run.id)) == 3
    reason = await hands.engine.kernel.run_reads.why(run.id)
    assert reason.code == "not_advanced"
    assert "a bug" in reason.text
    assert "runs resume" in reason.text


@pytest.mark.parametrize("way", ["the task", "the run"])
async def test_results_left_by_a_failing_evaluator_are_processed_later(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1, 2, 3]})
    tasks = await hands.claim()
    with broken(monkeypatch):
        for task in tasks:
            await hands.settle(task, answer(task.name, await hands.payload(task)))
        await hands.advance()
    if way == "the run":
        await hands.engine.runs.resume(run.id)
    else:
        for task in await hands.engine.kernel.reads.list_tasks(states=("failed",), kind=ADVANCE):
            await hands.engine.retry(task.id)
        assert await hands.advance() == 3
    assert await hands.engine.run_result(run) == {"receipts": ["r1", "r2", "r3"]}
    await hands.nothing_is_left(run.id)


async def test_a_large_foreach_continues_on_resume_after_a_failed_expansion(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": list(range(1200))})
    with broken(monkeypatch):
        await hands.advance()
    assert await hands.claim(ADVANCE) == []
    await hands.work(answer)
    assert (await hands.engine.kernel.runs.get_run(run.id)).state == "running"
    await hands.engine.runs.resume(run.id)
    await hands.work(answer)
    assert len((await hands.engine.run_result(run))["receipts"]) == 1200
    await hands.nothing_is_left(run.id)


async def test_an_evaluator_error_is_raised_to_the_operator(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [-1]})
    await hands.work(answer)
    with broken(monkeypatch), pytest.raises(RuntimeError, match="a bug"):
        await hands.engine.runs.retry(run.id)
    await hands.engine.runs.retry(run.id)


async def test_a_transient_read_error_loses_no_result(hands: Hands) -> None:
    """A decision made under a claim is committed when the store is back, without running the handler again."""
    run = await hands.engine.start_run(NESTED, "Shop", {"orders": [1, 2]})
    tasks = await hands.claim()
    hands.engine.kernel.run_services.advancer.views.forget(run.id)
    store: Any = hands.engine.kernel.store
    find_run, load_steps = store.runs.find, store.runs.load_steps

    async def unreachable(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    store.runs.find = unreachable
    assert (await hands.settle(tasks[0], {"receipt": "one"})).verdict is Verdict.DONE
    store.runs.find, store.runs.load_steps = find_run, unreachable
    assert (await hands.settle(tasks[1], {"receipt": "two"})).verdict is Verdict.DONE
    store.runs.load_steps = load_steps
    assert {task.kind for task in await hands.live(run.id)} == {ADVANCE}
    await hands.work(answer)
    assert sorted((await hands.engine.run_result(run))["receipts"]) == ["one", "two"]
    await hands.nothing_is_left(run.id)
