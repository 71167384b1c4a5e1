"""Handlers in a process of their own: they can be killed, and nothing they do harms the worker."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers import isolated
from tests.workers.harness import context

from treadle.model.outcomes import Failed, Outcome, Retry, Succeeded, Waiting
from treadle.model.tasks import LogLine
from treadle.workers.call import call
from treadle.workers.context import Context, make_handler
from treadle.workers.executor import SystemExecutor


@pytest.fixture
def executor() -> Iterator[SystemExecutor]:
    made = SystemExecutor(1)
    yield made
    made.close()


async def outcome_of(function: Callable[..., Any], executor: SystemExecutor, ctx: Context | None = None, **options: Any) -> Outcome:
    return await call(make_handler("work", function, isolation="process", **options), ctx or context(), executor)


async def test_an_isolated_handler_reports_log_lines_and_progress(executor: SystemExecutor) -> None:
    lines: list[LogLine] = []
    ctx = context(lines, attempt=2)
    outcome = await outcome_of(isolated.where, executor, ctx)
    assert isinstance(outcome, Succeeded)
    assert outcome.result["pid"] != os.getpid()
    assert (outcome.result["payload"], outcome.result["attempt"]) == ({"n": 1}, 2)
    assert [(line.message, line.level, json.loads(line.details or "")) for line in lines] == [
        ("from afar", "warning", {"pid": outcome.result["pid"]})
    ]
    assert json.loads(ctx.progress_text or "") == {"fraction": 0.5, "message": "half"}
    assert ctx.progressed


async def test_isolated_and_in_process_handlers_have_the_same_outcomes(executor: SystemExecutor) -> None:
    names = ("slowly", "waiting", "broken", "picky", "final", "leave", "a_list", "not_a_number", "own_type", "trapped")
    outcomes = dict(
        zip(names, await asyncio.gather(*(outcome_of(getattr(isolated, name), executor) for name in names)), strict=True)
    )
    assert outcomes["slowly"] == Succeeded({"async": True})
    assert outcomes["waiting"] == Waiting(500, {"page": 2})
    assert outcomes["own_type"] == Succeeded({"a": {"b": 1}})
    problems = {name: (o.problem.code, o.problem.type) for name, o in outcomes.items() if isinstance(o, Retry)}
    assert problems == {
        "broken": ("handler_error", "ValueError"),
        "picky": ("handler_error", "Picky"),
        "leave": ("handler_error", "SystemExit"),
    }
    failures = {name: o.problem.code for name, o in outcomes.items() if isinstance(o, Failed)}
    assert failures == {
        "final": "card_stolen",
        "a_list": "unexpected_result",
        "not_a_number": "invalid_payload",
        "trapped": "invalid_payload",
    }
    broken = outcomes["broken"]
    assert isinstance(broken, Retry)
    assert "isolated.py" in (broken.problem.traceback or "")


async def test_the_death_of_a_process_is_reported_with_its_signal(executor: SystemExecutor) -> None:
    outcome = await outcome_of(isolated.die, executor)
    assert isinstance(outcome, Retry)
    assert outcome.problem.code == "process_died"
    assert "-9" in outcome.problem.message


async def test_a_handler_that_cannot_be_imported_fails_immediately(executor: SystemExecutor) -> None:
    outcome = await outcome_of(lambda payload: None, executor)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == "not_importable"


def pid_in(file: Path) -> int:
    """The number that a child writes there; blocks until it is there."""
    for _ in range(round(BOUND * 100)):
        if file.exists() and (text := file.read_text()):
            return int(text)
        time.sleep(0.01)  # the interval between two looks
    raise TimeoutError(file)


def is_alive(pid: int) -> bool:
    """Whether it does anything; what has ended and was not asked about yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid: int) -> None:
    """Blocks until the process has ended."""
    for _ in range(round(BOUND * 100)):
        if not is_alive(pid):
            return
        time.sleep(0.01)  # the interval between two looks
    raise TimeoutError(f"{pid} goes on")


async def test_canceling_kills_the_process(executor: SystemExecutor, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    ctx = context(payload=json.dumps({"file": str(file)}))
    running = asyncio.ensure_future(outcome_of(isolated.hang, executor, ctx, timeout=BOUND))
    pid = await asyncio.to_thread(pid_in, file)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pid)


async def test_a_timeout_kills_the_process(executor: SystemExecutor, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    ctx = context(payload=json.dumps({"file": str(file)}))
    timeout = 1.0
    while not file.exists():  # a busy machine may need longer to start it
        outcome = await outcome_of(isolated.hang, executor, ctx, timeout=timeout)
        assert isinstance(outcome, Retry)
        assert outcome.problem.code == "timeout"
        timeout *= 2
    assert not is_alive(pid_in(file))


async def test_child_processes_of_a_handler_are_killed_with_it(executor: SystemExecutor, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    ctx = context(payload=json.dumps({"file": str(file)}))
    running = asyncio.ensure_future(outcome_of(isolated.hang_with_a_child, executor, ctx, timeout=60))
    pid = await asyncio.to_thread(pid_in, file)
    assert is_alive(pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.to_thread(gone, pid)
