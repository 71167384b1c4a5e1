"""Remote workers do the steps of workflows, and what they write is encoded where there is a codec."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.engine.codecs import Zlib
from treadle.model.errors import ClaimLost, RunFailed
from treadle.model.values import decode
from treadle.settings import Settings

FLOW = """
namespace shop {
  event facet Charge(order: String) => (receipt: String)
  workflow Buy(order: String) => (receipt: String) andThen {
    paid = Charge(order = $.order)
    again = Charge(order = paid.receipt)
    yield Buy(receipt = again.receipt)
  }
}
"""


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.mark.postgres
async def test_the_steps_of_a_run_are_done_through_two_processes(url: str) -> None:
    async with make_engine(url) as one, make_engine(url) as other:
        run = await one.start_run([("shop.afl", FLOW)], "shop.Buy", {"order": "o-1"})
        worker_id = (await one.kernel.remote_workers.register("till", handlers=["shop.*"])).id
        (first,) = await one.kernel.remote_workers.claim(worker_id, wait_for=60)
        assert first.payload["order"] == "o-1"
        said = (worker_id, first.task.id, first.claim_version)
        await other.kernel.remote_workers.partial(*said, {"receipt": "soon"})
        (step,) = [row for row in await one.kernel.runs.list_steps(run.id) if row.id == first.task.step_id]
        assert step.returns == {"receipt": "soon"}
        await other.kernel.remote_workers.complete(*said, {"receipt": "r-1"})
        await one.kernel.remote_workers.complete(*said, {"receipt": "r-1"})
        (second,) = await other.kernel.remote_workers.claim(worker_id, wait_for=60)
        assert second.payload["order"] == "r-1"
        await one.kernel.remote_workers.complete(worker_id, second.task.id, second.claim_version, {"receipt": "r-2"})
        assert await other.run_result(run.id, timeout=BOUND) == {"receipt": "r-2"}
        with pytest.raises(ClaimLost):
            await one.kernel.remote_workers.fail(*said, "too late")


async def test_claims_waiting_in_two_processes_receive_tasks_enqueued_by_a_third(url: str) -> None:
    async with make_engine(url) as one, make_engine(url) as two, make_engine(url) as third:
        waiting = []
        for engine in (one, two):
            for number in range(10):
                worker = await engine.kernel.remote_workers.register(f"w-{number}", handlers=["job"])
                waiting.append(asyncio.ensure_future(engine.kernel.remote_workers.claim(worker.id, wait_for=60)))
        ids = [(await third.enqueue("job", {"n": number})).id for number in range(20)]
        claimed = await asyncio.wait_for(asyncio.gather(*waiting), BOUND)
        assert sorted(each.task.id for found in claimed for each in found) == sorted(ids)


async def test_a_step_that_a_remote_worker_fails_fails_its_run(tmp_path: Path) -> None:
    async with make_engine("memory://") as engine:
        run = await engine.start_run([("shop.afl", FLOW)], "shop.Buy", {"order": "o-1"})
        worker_id = (await engine.kernel.remote_workers.register("till", handlers=["Charge"])).id
        (first,) = await engine.kernel.remote_workers.claim(worker_id, wait_for=60)
        await engine.kernel.remote_workers.fail(worker_id, first.task.id, first.claim_version, "card refused", "refused")
        with pytest.raises(RunFailed, match="card refused"):
            await engine.run_result(run.id, timeout=BOUND)


async def test_reports_of_a_remote_worker_are_encoded_at_rest(tmp_path: Path) -> None:
    path = tmp_path / "encoded.db"
    async with Engine(f"sqlite:///{path}", settings=Settings(), codec=Zlib(0)) as engine:
        worker_id = (await engine.kernel.remote_workers.register("till", handlers=["job"])).id
        task_id = (await engine.enqueue("job", {"secret": "gooseberry"})).id
        (claimed,) = await engine.kernel.remote_workers.claim(worker_id)
        assert claimed.payload == {"secret": "gooseberry"}
        said = (worker_id, task_id, claimed.claim_version)
        await engine.kernel.remote_workers.progress(*said, 0.5, "half a gooseberry")
        await engine.kernel.remote_workers.partial(*said, {"half": "gooseberry"})
        assert decode((await engine.kernel.reads.get_task(task_id)).progress)["message"] == "half a gooseberry"
    with contextlib.closing(sqlite3.connect(path)) as database:
        (texts,) = database.execute("select payload, progress, checkpoint from tasks where id = ?", (task_id,))
        for text in texts:
            assert text.startswith("@code:")
