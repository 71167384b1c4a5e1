"""Asking for tasks and waiting for results: one statement for all callers, none for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.limits import BOUND
from tests.workers.harness import Events, taken, turns

from treadle.engine.results import Waiters
from treadle.kernel.store.process import SystemClock
from treadle.kernel.telemetry.events import LoopError, StoreTrouble
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import Task


class Shelf:
    """Tasks, some of them finished."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.unfinished: set[str] = set()
        self.asked: list[int] = []
        self.trouble: Exception | None = None
        self.held: asyncio.Event | None = None

    async def find(self, task_ids: Sequence[str]) -> list[Task]:
        if self.held is not None:
            await self.held.wait()
        live = [taken(id=task_id) for task_id in task_ids if task_id in self.unfinished]
        return [*live, *await self.find_finished(task_ids)]

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        self.asked.append(len(task_ids))
        if self.trouble:
            raise self.trouble
        return [taken(id=task_id, finished_at=1) for task_id in task_ids if task_id in self.there]


class Bench:
    def __init__(self) -> None:
        self.shelf, self.events = Shelf(), Events()
        self.results = Waiters(self.shelf.find, self.shelf.find_finished, SystemClock(), self.events)

    def finish(self, *task_ids: str) -> None:
        self.shelf.there.update(task_ids)
        self.results.finished(task_ids)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_finished_task_is_returned_immediately(bench: Bench) -> None:
    bench.shelf.there = {"a"}
    assert (await bench.results.wait("a")).id == "a"


async def test_waiters_share_one_read_and_wake_when_the_task_ends_locally(bench: Bench) -> None:
    waiting = [asyncio.ensure_future(bench.results.wait(name)) for name in ("a", "b", "a")]
    await turns()
    assert bench.shelf.asked[-1] == 2
    bench.finish("a", "b")
    assert [task.id for task in await asyncio.gather(*waiting)] == ["a", "b", "a"]


async def test_a_task_that_ends_in_another_process_is_found(bench: Bench) -> None:
    waiting = asyncio.ensure_future(bench.results.wait("a"))
    await turns()
    bench.shelf.there = {"a"}
    assert (await asyncio.wait_for(waiting, BOUND)).id == "a"


async def test_polling_stops_with_the_last_waiter(bench: Bench) -> None:
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


async def test_every_waiter_of_a_large_batch_is_looked_up(bench: Bench) -> None:
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
async def test_store_errors_do_not_end_the_wait(bench: Bench, trouble: Exception, told: type) -> None:
    bench.shelf.trouble = trouble
    waiting = asyncio.ensure_future(bench.results.wait("a"))
    await bench.events.heard(told)
    bench.shelf.trouble = None
    bench.finish("a")
    assert (await asyncio.wait_for(waiting, BOUND)).id == "a"


async def test_concurrent_lookups_share_a_statement(bench: Bench) -> None:
    bench.shelf.there, bench.shelf.unfinished = {"a"}, {"b"}
    found = await asyncio.gather(*(bench.results.find(name) for name in ("a", "b", "c", "a")))
    assert [task and (task.id, task.finished) for task in found] == [("a", True), ("b", False), None, ("a", True)]
    assert bench.shelf.asked == [3]
    assert await bench.results.find("c") is None
    assert bench.shelf.asked == [3, 1]


async def test_canceling_one_lookup_spares_the_others(bench: Bench) -> None:
    bench.shelf.there = {"a"}
    impatient, patient = (asyncio.ensure_future(bench.results.find("a")) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    found = await patient
    assert found is not None
    assert found.id == "a"
    assert impatient.cancelled()


async def test_every_requested_id_of_a_large_batch_is_found(bench: Bench) -> None:
    bench.shelf.there = {f"t{number}" for number in range(2500)}
    found = await asyncio.gather(*(bench.results.find(name) for name in sorted(bench.shelf.there)))
    assert [task and task.id for task in found] == sorted(bench.shelf.there)
    assert bench.shelf.asked == [1000, 1000, 500]


async def test_an_error_is_raised_to_all_current_callers_only(bench: Bench) -> None:
    bench.shelf.trouble = StoreUnavailable("away")
    ends = await asyncio.gather(*(bench.results.find(name) for name in "ab"), return_exceptions=True)
    assert [type(end) for end in ends] == [StoreUnavailable, StoreUnavailable]
    bench.shelf.trouble = None
    assert await bench.results.find("a") is None


@pytest.mark.parametrize("later", range(4))
async def test_closing_cancels_pending_lookups(bench: Bench, later: int) -> None:
    bench.shelf.held = asyncio.Event()
    asking = asyncio.ensure_future(bench.results.find("a"))
    for _ in range(later + 1):
        await asyncio.sleep(0)
    await bench.results.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, BOUND)
