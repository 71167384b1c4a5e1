"""Two engines on one store work on one run: everything is done once, nothing is lost, and conflicts leave nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.limits import BOUND
from tests.runs.driver import Hands, hands_on

from treadle.kernel.store.units import Verdict
from treadle.model.errors import StoreUnavailable
from treadle.model.names import ADVANCE
from treadle.model.values import decode

FLOW = [
    (
        "together.afl",
        """
namespace t {
    event facet Do(n: Long) => (out: Long)
    workflow All(items: Json) => (outs: Json) andThen foreach item in $.items {
        a = Do(n = $.item)
        b = Do(n = a.out + 1000)
        yield All(outs = [b.out])
    }
}
""",
    )
]


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"out": payload["n"]}


@pytest.mark.postgres
async def test_two_engines_do_a_foreach_once(url: str) -> None:
    calls: Counter[int] = Counter()
    by: Counter[int] = Counter()
    engines = [make_engine(url) for _ in range(2)]

    def register(number: int) -> None:
        @engines[number].handler("t.Do")
        async def do(payload: dict[str, Any]) -> dict[str, Any]:
            calls[payload["n"]] += 1
            by[number] += 1
            await asyncio.sleep(0)
            return answer("", payload)

    for number in range(2):
        register(number)
    async with engines[0], engines[1], engines[0].worker(concurrency=20), engines[1].worker(concurrency=20):
        run = await engines[0].start_run(FLOW, "All", {"items": list(range(300))})
        outputs = await engines[1].run_result(run, timeout=BOUND)
        assert outputs == {"outs": [number + 1000 for number in range(300)]}
        hands = Hands(engines[0])
        async with asyncio.timeout(BOUND):
            while live := await hands.live(run.id):  # advance tasks that find nothing to do
                assert {task.kind for task in live} == {ADVANCE}
                await engines[0].result(live[0].id)
        await hands.nothing_is_left(run.id)
    assert set(calls.values()) == {1}
    assert len(calls) == 600
    assert len(by) == 2


async def test_an_overtaken_advance_reloads_the_run(url: str) -> None:
    async with hands_on(url, "one") as one, hands_on(url, "two") as two:
        run = await one.engine.start_run(FLOW, "All", {"items": [1, 2, 3, 4]})
        mine, others = await one.claim(limit=2), await two.claim(limit=2)
        await one.settle(mine[0], answer("", await one.payload(mine[0])))  # now it knows the run
        await two.settle(others[0], answer("", await two.payload(others[0])))
        await one.settle(mine[1], answer("", await one.payload(mine[1])))
        await two.settle(others[1], answer("", await two.payload(others[1])))
        assert await one.inbox(run.id) == []
        await two.work(answer)
        assert await one.engine.run_result(run) == {"outs": [1001, 1002, 1003, 1004]}
        await one.nothing_is_left(run.id)


@pytest.mark.parametrize("lost", [False, True])
async def test_canceling_one_advancer_spares_the_others(url: str, lost: bool) -> None:
    """The commit of the one that is canceled may or may not have reached the store; those that waited behind it go on."""
    async with hands_on(url, "one") as one:
        run = await one.engine.start_run(FLOW, "All", {"items": [1, 2, 3]})
        tasks = await one.claim()
        store: Any = one.engine.kernel.store
        commit = store.commit
        at_gate, gate = asyncio.Event(), asyncio.Event()

        async def gated(units: Any) -> Any:
            at_gate.set()
            await gate.wait()
            if lost:
                raise StoreUnavailable("gone")
            return await commit(units)

        store.commit = gated
        settling = [asyncio.ensure_future(one.settle(task, {"out": decode(task.payload)["n"]})) for task in tasks]
        await at_gate.wait()
        settling[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling[0]
        store.commit = commit
        gate.set()
        answers = await asyncio.gather(*settling[1:])
        assert {each.verdict for each in answers} == {Verdict.DONE}
        await one.settle(tasks[0], {"out": decode(tasks[0].payload)["n"]})  # what it had to say is still worth saying
        await one.work(answer)
        assert await one.engine.run_result(run) == {"outs": [1001, 1002, 1003]}
        await one.nothing_is_left(run.id)


async def test_an_advance_overtaken_repeatedly_leaves_its_result_in_the_inbox(url: str) -> None:
    """Each commit of one process is overtaken by another one, so often that it gives up and leaves the result in the inbox."""
    async with hands_on(url, "one") as one, hands_on(url, "two") as two:
        run = await one.engine.start_run(FLOW, "All", {"items": list(range(8))})
        mine, others = await one.claim(limit=2), await two.claim(limit=6)
        store: Any = one.engine.kernel.store
        commit = store.commit
        overtaken = 0

        async def overtaking(units: Any) -> Any:
            nonlocal overtaken
            if others and any(unit.run is not None for unit in units):
                overtaken += 1
                task = others.pop()
                await two.settle(task, answer("", await two.payload(task)))
            return await commit(units)

        store.commit = overtaking
        answers = await asyncio.gather(*(one.settle(task, {"out": decode(task.payload)["n"]}) for task in mine))
        store.commit = commit
        assert {each.verdict for each in answers} == {Verdict.DONE}
        assert overtaken >= 3
        left = await one.inbox(run.id)
        assert len(left) == 2
        assert sum(task.kind == ADVANCE for task in await one.live(run.id)) == 2
        for task in others:
            await two.settle(task, answer("", await two.payload(task)))
        await two.work(answer)
        assert await one.engine.run_result(run) == {"outs": [number + 1000 for number in range(8)]}
        await one.nothing_is_left(run.id)


async def test_results_beyond_one_advance_are_processed_by_the_next(url: str) -> None:
    async with hands_on(url, "one") as one:
        run = await one.engine.start_run(FLOW, "All", {"items": list(range(400))})
        tasks = await one.claim(limit=400)
        await one.engine.runs.pause(run.id)
        await asyncio.gather(*(one.settle(task, {"out": decode(task.payload)["n"]}) for task in tasks))
        assert len(await one.inbox(run.id)) == 400
        held = await one.live(run.id)
        assert {task.kind for task in held} == {ADVANCE}
        assert len(held) <= 4  # one for each batch
        await one.engine.runs.resume(run.id)
        await one.work(answer, together=True)
        assert len((await one.engine.run_result(run))["outs"]) == 400
        await one.nothing_is_left(run.id)
