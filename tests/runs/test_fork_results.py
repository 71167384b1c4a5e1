"""A step with a wrong result is repeated in a fork: its dependents are repeated, the rest is kept, nothing happens twice unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.functions.driver import function_scene
from tests.functions.test_first import cancel_losers
from tests.mcp.test_tools import at_work
from tests.runs.driver import hands_on
from tests.runs.test_fork import FLOW as EVERYTHING
from tests.runs.test_fork import answer, finished

from treadle import Canceled, Engine
from treadle.engine.operations import Operations
from treadle.evaluator import State
from treadle.kernel.store.queries import RunFilter
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput, Refused

FLOW = """namespace shop {
    event facet Price(count: Long) => (total: Double)
    event facet Stock(count: Long) => (left: Long)
    event facet Charge(total: Double) => (receipt: String)
    event facet Ship(receipt: String) => (parcel: String)
    workflow Buy(count: Long) => (parcel: String, left: Long) andThen {
        priced = Price(count = $.count)
        stock = Stock(count = $.count)
        paid = Charge(total = priced.total)
        sent = Ship(receipt = paid.receipt)
        yield Buy(parcel = sent.parcel, left = stock.left)
    }
}
"""
RESULTS: dict[str, dict[str, Any]] = {
    "shop.Price": {"total": 1.0},
    "shop.Stock": {"left": 3},
    "shop.Charge": {"receipt": "r"},
    "shop.Ship": {"parcel": "p"},
}


def shop() -> tuple[Engine, list[str]]:
    engine, called = Engine("memory://"), list[str]()
    for name in RESULTS:
        engine.handler(name)(handler_of(name, called))
    return engine, called


def handler_of(name: str, called: list[str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def handle(payload: dict[str, Any]) -> dict[str, Any]:
        called.append(name)
        return {"receipt": f"r{payload['total']}"} if name == "shop.Charge" else RESULTS[name]

    return handle


async def test_a_fork_of_any_call_with_its_own_result_has_the_same_result_without_calling_it() -> None:
    async with hands_on("memory://") as hands:
        run_id, outputs = await finished(hands)
        run = await hands.engine.kernel.runs.get_run(run_id)
        api = Operations(hands.engine, Access("ann", frozenset(Scope))).runs
        program = await hands.engine.kernel.flows.program(run.flow_id)
        done = 0
        for row in await hands.engine.kernel.runs.list_steps(run_id):
            facet = program.find_facet(row.facet or "")
            if facet is None or not facet.is_event or not row.is_step or row.state is not State.STATEMENT_COMPLETE or row.error:
                continue
            result = {"out": row.params["n"] * 3}
            made = (await api.preview_fork(run.id, row.id, with_result=True)).calls
            assert row.path not in [each.path for each in made]
            new_id = (await api.fork(run.id, row.id, result=result, replace=True)).id
            live = [task.step_id for task in await hands.live(new_id)]
            again = {each.place: each for each in await hands.engine.kernel.runs.list_steps(new_id)}
            assert again[row.place].id not in live, row.place
            await hands.work(answer)
            assert await hands.engine.run_result(new_id) == outputs, row.place
            await hands.nothing_is_left(new_id)
            done += 1
        assert done > 8, EVERYTHING


async def test_a_model_previews_the_calls_and_forks_with_the_right_result() -> None:
    engine, called = shop()
    async with at_work(engine) as call:
        async with engine.worker():
            bought = await call("afl_execute_workflow", source=FLOW, inputs={"count": 2}, wait_for=30)
            assert bought["outputs"] == {"parcel": "p", "left": 3}
            steps = {each["path"]: each["id"] for each in (await call("run_steps", run_id=bought["run_id"]))["steps"]}
            called.clear()
            fork = {"run_id": bought["run_id"], "step": steps["Buy.priced"]}
            seen = await call("run_fork_preview", **fork, with_result=True)
            assert seen["cancels"] is False
            assert [(each["path"], each["name"], each["state"]) for each in seen["calls"]] == [
                ("Buy.paid", "shop.Charge", "completed"),
                ("Buy.sent", "shop.Ship", "completed"),
            ]
            whole = await call("run_fork_preview", **fork)
            assert [each["path"] for each in whole["calls"]] == ["Buy.priced", "Buy.paid", "Buy.sent"]
            wrong = await call.refused("run_fork", **fork, result={"totl": 2.5})
            assert "did you mean total?" in wrong["error"]
            assert (await call("run_list"))["runs"][1:] == []
            done = await call("run_fork", **fork, result={"total": 2.5}, replace=True)
            again = await call("run_fork", **fork, result={"total": 2.5}, replace=True)
            assert again["run_id"] == done["run_id"]
            assert (await call("run_outputs", run_id=done["run_id"], wait_for=30))["finished"]
        charged = (await call("run_steps", run_id=done["run_id"], values=True))["steps"]
        assert {each["path"]: each["returns"] for each in charged}["Buy.paid"] == {"receipt": "r2.5"}
        assert called == ["shop.Charge", "shop.Ship"]
        assert (await call("run_show", run_id=bought["run_id"]))["state"] == "completed"


async def test_only_the_replacing_fork_continues_and_a_refused_fork_leaves_the_old_run_running() -> None:
    async with hands_on("memory://") as hands:
        engine = hands.engine
        service = Operations(engine, Access("ann", frozenset(Scope)))
        run = await engine.start_run([("shop.afl", FLOW)], None, {"count": 2})
        while tasks := await hands.claim(limit=1):
            if tasks[0].name == "shop.Charge":
                break
            await hands.settle(tasks[0], RESULTS[tasks[0].name])
        with pytest.raises(Refused, match="has not ended"):
            await service.runs.fork(run.id, "Buy.paid", replace=True)
        seen = await service.runs.preview_fork(run.id, "Buy.priced", with_result=True)
        assert (seen.cancels, seen.calls, (await service.runs.get(run.id)).state) == (True, [], "running")
        done = await service.runs.fork(run.id, "Buy.priced", result={"total": 2.5}, replace=True)
        old = await service.runs.get(run.id)
        assert (old.state, done.id in old.error["message"]) == ("canceled", True)
        await hands.work(lambda name, payload: RESULTS[name])
        assert await engine.run_result(done.id) == {"parcel": "p", "left": 3}
        await hands.nothing_is_left(done.id)


async def test_a_fork_repeats_a_step_of_a_function_by_its_code() -> None:
    engine, taken = Engine("memory://"), list[str]()

    def take(what: str) -> int:
        taken.append(what)
        return len(taken)

    @engine.function("trip")
    async def trip(payload: dict[str, Any], ctx: Any) -> str:
        first = await ctx.step(take, "first", name="first")
        await ctx.step(take, "second", name="second")
        return f"{first}"

    async with engine, engine.worker():
        service = Operations(engine, Access("ann", frozenset(Scope)))
        run_id = (await engine.start_function("trip", {})).id
        assert (await service.runs.outputs(run_id, wait_for=30)).outputs == {"result": "1"}
        steps = {each.name: each.id for each in (await service.steps.list(run_id)).steps}
        with pytest.raises(InvalidInput, match="takes no result"):
            await service.runs.fork(run_id, steps["second"], result={})
        seen = await service.runs.preview_fork(run_id, steps["second"])
        assert [each.path for each in seen.calls] == ["second"]
        done = await service.runs.fork(run_id, steps["second"])
        assert (await service.runs.outputs(done.id, wait_for=30)).outputs == {"result": "1"}
        assert taken == ["first", "second", "second"]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_replacing_fork_of_a_live_function_ends_it_without_cleanup_and_one_run_continues_it(
    monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    async def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    async with function_scene() as scene:
        engine = scene.engine

        @engine.function("book")
        async def book(payload: dict[str, Any], ctx: Any) -> None:
            await ctx.step(note, "reserve", name="reserve")
            try:
                await ctx.step(note, "price", name="price")
                await ctx.wait_for("end")
            except Canceled:
                await ctx.step(note, "undo", name="undo")
                raise

        started = await engine.start_function("book")
        process = scene.process()
        await process.quiet()
        price = next(each for each in await engine.kernel.functions.recorded(started.id) if each.name == "price")
        api = Operations(engine, Access("ann", frozenset(Scope))).runs
        if dies:  # after the new run is stored
            run = await engine.kernel.runs.get_run(started.id)
            with monkeypatch.context() as patch:
                patch.setattr(engine.kernel.runs, "cancel", die)
                with pytest.raises(KeyboardInterrupt):
                    await api.fork(run.id, price.id, replace=True)
        new_id = (await api.fork(started.id, price.id, replace=True)).id
        for _ in range(3):
            await process.quiet()
            await cancel_losers(process)
        states = {each.id: each.state for each in await engine.kernel.store.runs.list_matching(RunFilter(), 10)}
        assert states == {started.id: "canceled", new_id: "running"}
        assert done == ["reserve", "price", "price"]
