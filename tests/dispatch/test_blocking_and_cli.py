"""Dispatch for code without an event loop, from the command line, and the example in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.scenes import until
from tests.commands import Treadle
from tests.dispatch.scenes import issue
from tests.engines import ALL, SHARED, url_of
from tests.limits import BOUND

from treadle import Engine
from treadle.agents import Persistence, WrongThread
from treadle.dispatch import AgentCoordinator, BlockingCoordinator, TaskState, TaskStatus
from treadle.engine.codecs import Zlib
from treadle.model.values import decode_error
from treadle.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
def test_the_blocking_facade_behaves_the_same(kind, request, tmp_path):
    with Persistence(url_of(kind, request, tmp_path), settings=Settings()) as store, BlockingCoordinator(store) as coordinator:
        task_id = coordinator.enqueue(issue(5), priority=1)
        assert coordinator.dequeue("worker-1").id == task_id
        coordinator.update_status(task_id, "failed", "boom")
        coordinator.retry(task_id)
        found = coordinator.get_task(task_id)
        assert (found.status, found.attempts) == (TaskStatus.PENDING, 1)
        coordinator.cancel(task_id, reason="enough")
        other = coordinator.enqueue(issue(6))
        threads: list[str] = []

        def solve(task: TaskState) -> dict[str, int]:
            with pytest.raises(WrongThread):
                store.run(_wrong(coordinator))
            threads.append(task.metadata["worker_id"])
            return {"n": task.issue.number}

        coordinator.start(solve, worker_id="worker-2")
        until(lambda: coordinator.get_task(other).status is TaskStatus.COMPLETED)
        coordinator.stop()
        assert threads == ["worker-2"]
        assert [line.message for line in coordinator.get_logs(other)] == ["Task completed successfully"]
        assert [task.id for task in coordinator.get_all_tasks()] == [other, task_id]
        assert coordinator.desired_workers().desired == 0


async def _wrong(coordinator: BlockingCoordinator) -> None:
    coordinator.get_all_tasks()


@pytest.mark.parametrize("kind", SHARED)
async def test_jobs_are_encoded_by_a_codec_like_everything_else(kind, request, tmp_path):
    url = url_of(kind, request, tmp_path)
    async with Engine(url, settings=Settings(), codec=Zlib()) as engine, AgentCoordinator(engine) as coordinator:
        task_id = await coordinator.enqueue(issue(title="a secret"), metadata={"by": "ann"})
        await coordinator.dequeue("worker-1")
        await coordinator.update_status(task_id, "failed", "a secret reason")
        found = await coordinator.get_task(task_id)
        assert (found.issue.title, found.error, found.metadata) == (
            "a secret",
            "a secret reason",
            {"by": "ann", "worker_id": "worker-1"},
        )
    async with Engine(url, settings=Settings()) as plain:
        stored = await plain.kernel.store.tasks.find(task_id)
        assert all(text.startswith("@code:zlib:") for text in (stored.payload, stored.checkpoint))
        assert decode_error(stored.error)["code"] == "unreadable_value"


@pytest.mark.parametrize("kind", SHARED)
def test_the_example_runs(kind, request, tmp_path):
    folder = tmp_path / "dispatch"
    shutil.copytree(ROOT / "examples" / "dispatch", folder)
    treadle = Treadle(folder, url_of(kind, request, tmp_path))
    environment = {**os.environ, "TREADLE_STORE": treadle.store}  # noqa: TID251

    def ingest(*arguments: str) -> str:
        command = [sys.executable, "ingest.py", "issue.json", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=BOUND)
        return done.stdout.strip()

    first = ingest()
    assert ingest() == first
    second = ingest("delivery-2")
    assert second != first
    agent = subprocess.Popen([sys.executable, "agent.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        for task_id in (first, second):
            until(lambda task_id=task_id: treadle.json("tasks", "show", task_id)["state"] == "completed", BOUND)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(BOUND) == 0
        agent.stdout.close()
    shown = treadle.json("tasks", "show", first)
    assert shown["result"] == {"branch": "fix-17"}
    said = [line["message"] for line in shown["lines"]]
    assert said == [
        "working on weavers/loom#17: The shuttle gets stuck",
        "the first idea did not pass the tests",
        "working on weavers/loom#17: The shuttle gets stuck",
        "Task completed successfully",
    ]
    desired = treadle.json("lists", "desired", "dispatch")
    assert (desired["desired"], desired["ready"], desired["running"]) == (0, 0, 0)


def test_the_command_line_shows_the_desired_workers_of_a_list(tmp_path: Path):
    treadle = Treadle(tmp_path)
    for _ in range(3):
        treadle.json("enqueue", "greet")
    found = treadle.json("lists", "desired", "--min", "2", "--concurrency", "1")
    assert (found["task_list"], found["name"], found["desired"], found["ready"], found["service_for"]) == (
        "default",
        None,
        2,
        3,
        None,
    )
    assert treadle.json("lists", "desired", "default", "--handler", "other")["desired"] == 0
    people = treadle("lists", "desired")
    assert (people.code, people.out.startswith("1: 3 ready")) == (0, True)
    for bad, code in (
        (("nosuch",), "list_not_found"),
        (("--target", "0"), "invalid_policy"),
        (("--min", "5", "--max", "2"), "invalid_input"),
        (("--concurrency", "0"), "invalid_policy"),
    ):
        refused = treadle("lists", "desired", *bad, "--json")
        assert json.loads(refused.err.splitlines()[-1])["error"]["code"] == code
