"""Section 10 of the agent SDK between processes: many agents, each task handled once; a dead one's work is taken over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.agents.scenes import until
from tests.engines import SHARED, url_of
from tests.fork_server import ROOT, ForkedProcess, start
from tests.limits import BOUND

from treadle.agents import AgentPoller, AgentPollerConfig, Evaluator, ExecutionStatus, Persistence, ServerState
from treadle.settings import Settings

ITEMS = """
namespace work {
    event facet Item(n: Long) => (n: Long)
    workflow Drain(items: [Long]) andThen foreach i in $.items {
        s = Item(n = $.i)
    }
}
"""


@contextmanager
def a_process(mode: str, url: str, file: Path, **environment: str) -> Iterator[ForkedProcess]:
    """A process of agents, which ends when its stdin does."""
    stdin, ends = os.pipe()
    process = start(
        "tests.agents.drainer",
        [mode, url, str(file)],
        cwd=ROOT,
        environment={**os.environ, **environment},  # noqa: TID251
        stdin=stdin,
        stderr=2,
    )
    os.close(stdin)
    try:
        yield process
    finally:
        os.close(ends)
        try:
            process.wait(BOUND)
        finally:
            process.kill()
        if process.stdout is not None:
            process.stdout.close()


def drain(mode: str, url: str, tmp_path: Path, count: int, bound: float = BOUND) -> None:
    """Four processes with two agents each; every item is handled exactly once, and the run completes."""
    files = [tmp_path / f"{number}.log" for number in range(4)]
    with Persistence(url, settings=Settings()) as store, ExitStack() as stack:
        evaluator = Evaluator(store)
        for process in [stack.enter_context(a_process(mode, url, file)) for file in files]:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        run_id = evaluator.execute(ITEMS, {"items": list(range(count))}).workflow_id
        until(lambda: evaluator.status(run_id).status is ExecutionStatus.COMPLETED, bound)
        stack.close()
        assert store.run(store.engine.kernel.verify()).problems == ()
    handled = [int(line) for file in files for line in file.read_text().split()]
    assert sorted(handled) == list(range(count))
    assert sum(file.stat().st_size > 0 for file in files) > 1


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
def test_eight_pollers_in_four_processes_handle_each_task_once(kind, request, tmp_path):
    """`drain` asserts that no task is handled twice and none is left."""
    drain("poll", url_of(kind, request, tmp_path), tmp_path, 120)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", SHARED)
def test_eight_pollers_in_four_processes_drain_10_000_tasks_each_handled_once(kind, request, tmp_path):
    """`drain` asserts that no task is handled twice and none is left."""
    drain("poll", url_of(kind, request, tmp_path), tmp_path, 10_000, 1500)


@pytest.mark.parametrize("kind", SHARED)
def test_claim_task_must_give_each_task_to_exactly_one_caller_in_any_process(kind, request, tmp_path):
    """`drain` asserts that no task is claimed twice and none is left."""
    drain("claim", url_of(kind, request, tmp_path), tmp_path, 60)


@pytest.mark.parametrize("kind", SHARED)
def test_a_killed_server_is_shown_as_lost_and_its_work_is_taken_over(kind, request, tmp_path):
    url, file = url_of(kind, request, tmp_path), tmp_path / "hang.log"
    with Persistence(url, settings=Settings()) as store:
        evaluator = Evaluator(store)
        run_id = evaluator.execute(ITEMS, {"items": [7]}).workflow_id
        with a_process("hang", url, file) as process:
            until(lambda: file.exists() and file.read_text() == "7\n")
            process.kill()
            process.wait()
        (server,) = store.list_servers()
        until(lambda: store.get_server(server.uuid).state == ServerState.LOST)
        assert store.run(store.engine.kernel.store.tasks.expire_leases_of([server.uuid])) == 1
        poller = AgentPoller(store, evaluator, AgentPollerConfig())
        attempts: list[int] = []
        poller.register("Item", lambda payload: attempts.append(payload["_attempt"]) or {"n": payload["n"]})
        until(lambda: poller.poll_once() == 1)
        assert attempts == [2]
        assert evaluator.resume(run_id).status is ExecutionStatus.COMPLETED
