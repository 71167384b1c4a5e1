"""Forks from every row of runs that use everything the language has: with the same answers they come to the same outputs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.runs.driver import Hands, hands_on, run_script

from treadle.evaluator import StepKind
from treadle.model.names import HANDLER, SCRIPT

FLOW = [
    (
        "all.afl",
        """
namespace f {
    event facet Get(n: Long) => (out: Long, more: Long = 0)
    event facet Risky(n: Long) => (out: Long)
    event facet Rich(n: Long) => (out: Long, note: String)
        andThen {
            side = Get(n = $.n + 100)
            yield Rich(note = "side " ++ side.out)
        }
    facet Base(k: Long) => (v: Long) andThen {
        b = Get(n = $.k)
        yield Base(v = b.out)
    }
    facet Aliased(n: Long) => (out: Long) with Base(k = $.n) as base with Base(k = $.base.v) as second andThen {
        c = Get(n = $.base.v + $.second.v)
        yield Aliased(out = c.out)
    }
    facet Scripted(n: Long) => (out: Long) script { result["n"] = params["n"] * 2 } andThen {
        c = Get(n = $.n)
        yield Scripted(out = c.out)
    } andThen script { result["half"] = params["n"] // 2 }
    facet Linked(src: Get) => (out: Long) andThen {
        l = Get(n = $.src.out)
        yield Linked(out = l.out)
    }
    workflow Everything(items: Json, n: Long) => (sum: Json, last: Long, note: String, caught: String, which: String, linked: Long)
    andThen {
        first = Get(n = $.n)
        rich = Rich(n = first.out)
        alias = Aliased(n = first.out)
        made = Scripted(n = 3)
        link = Linked(src = first)
        risky = Risky(n = 1) catch {
            fallback = Get(n = 7)
            yield Risky(out = fallback.out)
        }
        yield Everything(last = alias.out + made.out + made.half, note = rich.note, caught = risky.out ++ " " ++ risky.error,
            linked = link.out)
    } andThen foreach item in $.items {
        one = Get(n = $.item)
        two = Base(k = one.out) andThen {
            deep = Get(n = one.out + $.k)
            yield Base(v = deep.out)
        }
        yield Everything(sum = [two.v])
    } andThen when {
        case $.n > 5 => {
            big = Get(n = 50)
            yield Everything(which = "big " ++ big.out)
        }
        case _ => { yield Everything(which = "small") }
    }
}
""",
    )
]
INPUTS = {"items": [1, 2, 3], "n": 9}


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    if name == "f.Risky":
        raise ValueError("too risky")
    return {"out": payload["n"] * 3}


async def finished(hands: Hands) -> tuple[str, dict[str, Any]]:
    run = await hands.engine.start_run(FLOW, None, INPUTS)
    await hands.work(answer)
    return run.id, await hands.engine.run_result(run)


async def test_a_fork_from_any_row_has_the_same_result() -> None:
    async with hands_on("memory://") as hands:
        run_id, outputs = await finished(hands)
        assert set(outputs) == {"sum", "last", "note", "caught", "which", "linked"}
        rows = await hands.engine.kernel.runs.list_steps(run_id)
        assert {row.kind for row in rows} == set(StepKind) - {StepKind.SCHEMA}
        for row in rows:
            forked = await hands.engine.runs.fork(run_id, row.id)
            assert (await hands.engine.kernel.runs.get_run(forked.id)).state == "running" or not await hands.live(forked.id)
            await hands.work(answer)
            assert await hands.engine.run_result(forked) == outputs, row.place
            again = {each.place: each for each in await hands.engine.kernel.runs.list_steps(forked.id)}
            assert again.keys() == {each.place for each in rows}, row.place
            for each in rows:
                copy = again[each.place]
                same = (copy.state, copy.open, copy.failed, copy.expanded, copy.total, copy.facet, copy.depth)
                assert same == (each.state, each.open, each.failed, each.expanded, each.total, each.facet, each.depth), each.place
                assert copy.run_id == forked.id
            await hands.nothing_is_left(forked.id)


async def test_a_fork_from_any_row_of_a_run_in_any_state_has_the_same_result() -> None:
    """The run is stopped after each commit; forks from what is there then."""
    async with hands_on("memory://") as hands:
        _, outputs = await finished(hands)
        run = await hands.engine.start_run(FLOW, None, INPUTS)
        stops = 0
        while tasks := await hands.claim(HANDLER, SCRIPT, limit=1):
            stops += 1
            rows = await hands.engine.kernel.runs.list_steps(run.id)
            forks = [(await hands.engine.runs.fork(run.id, row.id), row.place) for row in rows[stops % 5 :: 5]]
            (task,) = tasks
            payload = await hands.payload(task)
            try:
                await hands.settle(task, run_script(payload) if task.kind == SCRIPT else answer(task.name, payload))
            except ValueError as error:
                await hands.fail(task, str(error), "ValueError")
            for forked, place in forks:
                await drain_only(hands, forked.id)
                assert await hands.engine.run_result(forked) == outputs, place
        assert stops > 15
        assert await hands.engine.run_result(run) == outputs


async def drain_only(hands: Hands, run_id: str) -> None:
    """Work on one run alone: the tasks of the others stay as they are."""
    others = [run for run in await hands.engine.kernel.run_reads.list_runs(states=("running",), limit=1000) if run.id != run_id]
    for run in others:
        await hands.engine.runs.pause(run.id)
    await hands.work(answer)
    for run in others:
        await hands.engine.runs.resume(run.id)


async def test_a_fork_does_not_execute_kept_steps_again() -> None:
    async with hands_on("memory://") as hands:
        run_id, outputs = await finished(hands)
        rows = {row.place: row for row in await hands.engine.kernel.runs.list_steps(run_id)}
        asked: list[int] = []

        def remember(name: str, payload: dict[str, Any]) -> dict[str, Any]:
            asked.append(payload["n"])
            return answer(name, payload)

        for place, expected in {
            "Everything/block-1/foreach-1/one": [2, 12],  # 2 -> 6, then deep: 6 + 6
            "Everything/block-1/foreach-1/two/block-0/deep": [12],
            "Everything/block-0/risky/catch-1/fallback": [7],
            "Everything/block-0/link": [27],
            "Everything/block-2/when-case-0/big": [50],
            "Everything/block-0/rich/block-0/side": [127],
            "Everything/block-0/alias/second/block-0/b": [81, 324],
        }.items():
            asked.clear()
            forked = await hands.engine.runs.fork(run_id, rows[place].id)
            await hands.work(remember)
            assert asked == expected, place
            assert await hands.engine.run_result(forked) == outputs


@pytest.mark.parametrize("place", ["Everything/block-0/first", "Everything/block-0/rich"])
async def test_a_failed_item_outside_the_fork_stays_failed(place: str) -> None:
    async with hands_on("memory://") as hands:

        def fail_big(name: str, payload: dict[str, Any]) -> dict[str, Any]:
            if payload["n"] == 50:
                raise ValueError("too big")
            return answer(name, payload)

        run = await hands.engine.start_run(FLOW, None, INPUTS)
        await hands.work(fail_big)
        rows = {row.place: row for row in await hands.engine.kernel.runs.list_steps(run.id)}
        forked = await hands.engine.runs.fork(run.id, rows[place].id)
        await hands.work(answer)
        found = await hands.engine.kernel.runs.status(forked.id)
        assert (found.status, found.error) == ("ERROR", "Everything.big: handler failed: too big")
        await hands.engine.runs.retry(forked.id)
        await hands.work(answer)
        assert (await hands.engine.kernel.runs.status(forked.id)).status == "COMPLETED"
        await hands.nothing_is_left(forked.id)
