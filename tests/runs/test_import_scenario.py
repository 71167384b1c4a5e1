"""A day of an operator: 20 items of which 13 fail twice, a worker is killed, a person approves, and one retry repairs the run."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.commands import Treadle
from tests.engines import make_engine, url_of
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import Engine
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.model.errors import RunFailed

FLOW = """
namespace imports {
    event facet Confirm(count: Long) => (by: String)
    event facet Load(n: Long) => (rows: Long)
    workflow Import(files: Json) => (by: String, rows: Json) andThen {
        confirm = Confirm(count = 20)
        yield Import(by = confirm.by)
    } andThen foreach file in $.files {
        load = Load(n = $.file)
        yield Import(rows = [load.rows])
    }
}
"""

HANDLERS = """
import os, pathlib, signal
from treadle import ApprovalRequest, AwaitingApproval, Engine

engine = Engine()

@engine.handler("imports.Confirm")
async def confirm(payload, ctx):
    if ctx.approval_decision is None:
        return AwaitingApproval(ApprovalRequest(title="Import 20 files?"))
    return {"by": ctx.approval_decision["by"]}

@engine.handler("imports.Load", retry=1)
async def load(payload):
    n = payload["n"]
    with open("calls", "a") as calls:
        calls.write(f"{n}\\n")
    made = pathlib.Path("calls").read_text().split().count(str(n))
    if n == 19 and made == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if n < 13 and made <= 2:
        raise ValueError("the file is locked")
    return {"rows": n}
"""


async def approve(engine: Engine) -> None:
    """Decide the approval as soon as it is there."""
    while not (open_now := (await engine.kernel.approvals.list()).approvals):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await engine.kernel.approvals.decide(open_now[0].id, "approve", actor="ada")


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
async def test_one_retry_repairs_an_import_after_failures_a_kill_and_an_approval(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    url = url_of(kind, request, tmp_path)
    treadle = Treadle(tmp_path, url, {"TREADLE_LEASE": "2"})
    worker = ("worker", "--handlers", "jobs", "--json", "--concurrency", "1")
    async with asyncio.timeout(BOUND), make_engine(url) as engine:
        files = list(range(20))
        run = await engine.start_run([("imports.afl", FLOW)], "Import", {"files": files}, on_failure="finish")
        with treadle.started(*worker) as first:
            assert await asyncio.to_thread(first.process.wait, BOUND) == -signal.SIGKILL
        with treadle.started(*worker):
            await approve(engine)
            with pytest.raises(RunFailed, match="the file is locked"):
                await engine.run_result(run)
            which = DeadLetterFilter()
            assert (await engine.kernel.store.dead_letters.count(which))[:2] == (13, 13)
            (group,) = (await engine.kernel.dead_letters.groups()).groups
            assert (group.name, group.count, group.of_runs) == ("imports.Load", 13, 13)
            await engine.runs.retry(run.id, actor="ada")
            assert await engine.run_result(run) == {"by": "ada", "rows": files}
        assert (await engine.kernel.store.dead_letters.count(which))[0] == 0
        assert Counter(map(int, (tmp_path / "calls").read_text().split())) == {
            n: 3 if n < 13 else 2 if n == 19 else 1 for n in files
        }
        transitions = [transition.transition for transition in await engine.kernel.run_reads.list_transitions(run.id)]
        assert transitions == ["start", "fail", "retry", "succeed"]
        assert (await engine.kernel.verify()).problems == ()
