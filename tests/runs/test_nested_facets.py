"""Nested facets: a run costs per row the same however large it is, counted in rows and calls of the store; and limits stop it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from bench.nested import Program, fan, tree
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND
from tests.runs.driver import hands_on

from treadle import Engine
from treadle.evaluator import Limits
from treadle.kernel.store.units import PutSteps
from treadle.model.errors import Refused, RunFailed

SLICE = 200
"""Rows per advance in these tests, so that small runs need many."""


class Counts:
    """Rows read and written by the advances of an engine, and its calls of the store."""

    def __init__(self, engine: Engine) -> None:
        self.reads = self.writes = self.calls = 0
        store: Any = engine.kernel.store
        load, commit = store.runs.load_steps, store.commit

        async def load_steps(*given: Any, **options: Any) -> Any:
            found = await load(*given, **options)
            self.calls, self.reads = self.calls + 1, self.reads + len(found)
            return found

        async def commit_units(units: Any) -> Any:
            self.calls += 1
            self.writes += sum(len(row.steps) for unit in units for row in unit.rows if isinstance(row, PutSteps))
            return await commit(units)

        store.runs.load_steps, store.commit = load_steps, commit_units


def cut(engine: Engine, rows: int = SLICE) -> None:
    """Let an advance make fewer rows."""
    engine.kernel.run_services.advancer.views._limits = Limits(rows=rows)


async def count(program: Program, urls: list[str]) -> tuple[int, Counts]:
    """Run it to its end, its advances by the engines in turns; the number of its rows, and what the engines counted in all."""
    async with AsyncExitStack() as stack:
        hands = [await stack.enter_async_context(hands_on(url)) for url in urls]
        counts = [Counts(each.engine) for each in hands]
        for each in hands:
            cut(each.engine)
        run = await hands[0].engine.start_run([("nested.afl", program.source)], "Nested", program.inputs)
        turn = 0
        while tasks := await hands[turn % len(hands)].claim("afl.advance"):
            for task in tasks:
                await hands[turn % len(hands)].settle(task)
            turn += 1
        assert await hands[0].engine.run_result(run, timeout=BOUND) == program.outputs
        total = counts[0]
        for other in counts[1:]:
            total.reads, total.writes, total.calls = (
                total.reads + other.reads,
                total.writes + other.writes,
                total.calls + other.calls,
            )
        return (await hands[0].engine.kernel.runs.get_run(run.id)).steps, total


@pytest.mark.parametrize("program", [tree(10), fan(10)], ids=["tree", "fan"])
async def test_a_row_is_written_once_and_hardly_read(program: Program) -> None:
    rows, counts = await count(program, ["memory://"])
    slices = rows // SLICE + 1
    assert counts.writes <= rows + 40 * slices
    assert counts.reads == 0  # the process knows what it has written
    assert counts.calls <= 3 * slices


@pytest.mark.parametrize("program", [tree(10), fan(10)], ids=["tree", "fan"])
async def test_two_alternating_processes_read_only_open_rows_and_their_neighbours(program: Program, tmp_path: Path) -> None:
    rows, counts = await count(program, [f"sqlite:///{tmp_path / 'treadle.db'}"] * 2)
    slices = rows // SLICE + 1
    assert counts.writes <= rows + 40 * slices
    assert counts.reads <= 100 * slices
    assert counts.calls <= 8 * slices


WIDE = """
namespace wide {
    event facet Do(n: Long) => (n: Long)
    workflow All(items: Json) andThen foreach i in $.items { s = Do(n = $.i) }
}
"""


async def test_a_process_reads_no_rows_of_a_wide_foreach_that_it_has_written() -> None:
    items = 1_200
    async with hands_on("memory://") as hands:
        counts = Counts(hands.engine)
        run = await hands.engine.start_run([("wide.afl", WIDE)], "wide.All", {"items": list(range(items))})
        while tasks := await hands.claim("afl.advance"):
            for task in tasks:
                await hands.settle(task)
        while tasks := await hands.claim():
            await asyncio.gather(*(hands.settle(task, {"n": 1}) for task in tasks))
        await hands.engine.run_result(run, timeout=BOUND)
        assert counts.writes >= 4 * items  # each item and its step, when they begin and when they end
        assert counts.reads == 0


# --- limits ---

ENDLESS = """
namespace endless {
    event facet Wait(n: Long) => (n: Long)
    facet There(n: Long) andThen { w = Wait(n = $.n) a = Back(n = $.n) b = Back(n = $.n) }
    facet Back(n: Long) andThen { a = There(n = $.n) b = There(n = $.n) } catch { c = There(n = 0) }
    workflow Late() andThen { w = Wait(n = 1) s = Wait(n = 2) b = Back(n = w.n) } catch { c = Back(n = 0) }
    workflow Early() andThen { b = Back(n = 0) }
    workflow Other() => (n: Long) andThen { w = Wait(n = 7) yield Other(n = w.n) }
}
"""
SOURCES = [("endless.afl", ENDLESS)]
NAMED = "steps are nested more than 100 deep; does `endless.(Back|There)` call itself endlessly through `endless.(Back|There)`"


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_an_endless_recursion_fails_only_its_run_and_its_tasks(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with hands_on(url_of(kind, request, tmp_path)) as hands:
        engine = hands.engine
        early = await engine.start_run(SOURCES, "Early")
        with pytest.raises(RunFailed, match=NAMED):
            await engine.run_result(early, timeout=BOUND)
        other = await engine.start_run(SOURCES, "Other")
        late = await engine.start_run(SOURCES, "Late")
        (first,) = [task for task in await hands.claim() if task.run_id == late.id and (await hands.payload(task))["n"] == 1]
        assert len(await hands.live(late.id)) == 2
        await hands.settle(first, {"n": 1})
        with pytest.raises(RunFailed, match=NAMED) as failed:
            await engine.run_result(late, timeout=BOUND)
        assert len(str(failed.value)) < 500
        assert await hands.live(late.id) == []
        assert len(await hands.live(other.id)) == 1
        run = await engine.kernel.runs.get_run(late.id)
        assert run.steps < 250
        with pytest.raises(Refused, match="stopped at a limit; start it again"):
            await engine.kernel.runs.retry(late.id)


async def test_the_limits_of_a_run_are_settings() -> None:
    async with make_engine("memory://", run_depth=3, run_rows=1000) as engine:
        deep = await engine.start_run([("tree.afl", tree(3).source)], "Nested")
        with pytest.raises(RunFailed, match="nested more than 3 deep; the latest calls `F0`"):
            await engine.run_result(deep, timeout=BOUND)
    async with make_engine("memory://", run_rows=1000) as engine, engine.worker():
        many = await engine.start_run([("tree.afl", tree(10).source)], "Nested")
        with pytest.raises(RunFailed, match="the run has more than 1000 rows"):
            await engine.run_result(many, timeout=BOUND)
