"""Waiting for results: one look for all, none for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.limits import BOUND
from tests.unit.workers.harness import Events, taken, turns

from treadle.kernel.store.system import SystemClock
from treadle.kernel.telemetry.events import LoopError, StoreTrouble
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import Task
from treadle.wiring.results import Results


class Shelf:
    """Finished tasks."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.asked: list[int] = []
        self.trouble: Exception | None = None

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        self.asked.append(len(task_ids))
        if self.trouble:
            raise self.trouble
        return [taken(id=task_id, finished_at=1) for task_id in task_ids if task_id in self.there]


class Bench:
    def __init__(self) -> None:
        self.shelf, self.events = Shelf(), Events()
        self.results = Results(self.shelf.find_finished, SystemClock(), self.events)

    def finish(self, *task_ids: str) -> None:
        self.shelf.there.update(task_ids)
        self.results.finished(task_ids)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_what_is_there_already_is_found_at_once(bench: Bench) -> None:
    bench.shelf.there = {"a"}
    assert (await bench.results.wait("a")).id == "a"


async def test_all_who_wait_share_one_look_and_are_told_when_it_ends_here(bench: Bench) -> None:
    waiting = [asyncio.ensure_future(bench.results.wait(name)) for name in ("a", "b", "a")]
    await turns()
    assert bench.shelf.asked[-1] == 2
    bench.finish("a", "b")
    assert [task.id for task in await asyncio.gather(*waiting)] == ["a", "b", "a"]


async def test_what_ends_elsewhere_is_found_too(bench: Bench) -> None:
    waiting = asyncio.ensure_future(bench.results.wait("a"))
    await turns()
    bench.shelf.there = {"a"}
    assert (await asyncio.wait_for(waiting, BOUND)).id == "a"


async def test_when_the_last_one_has_gone_nobody_looks_any_more(bench: Bench) -> None:
    patient, impatient = (asyncio.ensure_future(bench.results.wait("a")) for _ in range(2))
    await turns()
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    assert "a" in bench.results._awaited
    patient.cancel()
    await asyncio.gather(patient, return_exceptions=True)
    assert bench.results._poller is not None
    await asyncio.wait_for(bench.results._poller, BOUND)
    looks = len(bench.shelf.asked)
    assert not bench.results._awaited
    bench.shelf.there = {"a"}
    assert (await bench.results.wait("a")).id == "a"
    assert len(bench.shelf.asked) == looks + 1


async def test_however_many_wait_each_is_looked_for(bench: Bench) -> None:
    names = [f"t{number}" for number in range(2500)]
    waiting = {name: asyncio.ensure_future(bench.results.wait(name)) for name in names}
    await turns()
    bench.finish(names[-1])
    assert (await asyncio.wait_for(waiting.pop(names[-1]), BOUND)).id == names[-1]
    assert max(bench.shelf.asked) <= 1000
    await bench.results.close()
    ends = await asyncio.gather(*waiting.values(), return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}


@pytest.mark.parametrize(("trouble", "told"), [(StoreUnavailable("away"), StoreTrouble), (ValueError("odd"), LoopError)])
async def test_trouble_is_survived(bench: Bench, trouble: Exception, told: type) -> None:
    bench.shelf.trouble = trouble
    waiting = asyncio.ensure_future(bench.results.wait("a"))
    await bench.events.heard(told)
    bench.shelf.trouble = None
    bench.finish("a")
    assert (await asyncio.wait_for(waiting, BOUND)).id == "a"
