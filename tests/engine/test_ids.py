"""Every call that names a task or a run takes its id, the beginning of it, `last`, or a record that has it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.engines import make_engine

from treadle import Engine, ExternalProductionHandle
from treadle.model.access import OPEN
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import TreadleError

SERVICES = {name for name, each in vars(Engine).items() if isinstance(each, property)} - {"metrics"} | {
    *("dead_letters", "external_jobs", "functions", "lists", "recovery", "remote_workers", "run_reads", "sessions", "tokens")
}
"""Services of an engine or its kernel."""
GROUPS = ["", *sorted(SERVICES)]
NAMES = {
    "task": "task",
    "task_id": "task",
    "job_id": "job",
    "run": "run",
    "run_id": "run",
    "work": "run",
    "approval_id": "approval",
}
NEW_IDS = {
    ("runs", "prepare"),
    ("functions", "start"),
    ("functions", "prepare"),
    ("functions", "finished"),
    ("external_jobs", "find_called"),
    ("run_reads", "shown"),
    ("run_reads", "unrecorded"),
    ("run_reads", "work_at"),
}
"""Calls whose parameter is the id of a new run, or is supplied by the engine or a service."""
EXACT: set[Any] = {"remote_workers", ("", "events")}
"""Calls of workers that hold the task, and a stream that reads nothing when it is made: they take complete ids."""
WORKER = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"
GIVEN: dict[str, Any] = {
    "access": OPEN,
    "worker_id": WORKER,
    "claim_version": 1,
    "request": ApprovalRequest(title="t"),
    "message": "m",
    "lines": [{"message": "m"}],
    "results": {},
    "wait_for": 1,
    "handle": ExternalProductionHandle("job", 60),
    "name": "s",
    "decision": "approve",
    "actor": "ada",
    "step_id": WORKER,
    "step_ids": [WORKER],
    "step": WORKER,
    "partial": {},
    "limit": 5,
}


def _calls() -> Iterator[tuple[str, str, str]]:
    engine = Engine("memory://")
    for group in GROUPS:
        kind = Engine if not group else type(_service(engine, group))
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if (
                not name.startswith(("_", "authorize_")) and (group, name) not in NEW_IDS
            ):  # the guard calls what begins with `permit_`
                for each in inspect.signature(method).parameters.values():
                    if each.name in NAMES and each.annotation not in ("Task", "Run"):
                        yield group, name, each.name


def _service(engine: Engine, group: str) -> Any:
    return engine if not group else getattr(engine.kernel, group, None) or getattr(engine, group)


CALLS = sorted(_calls())


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with make_engine("memory://") as opened:
        yield opened


async def _target(engine: Engine, kind: str) -> Any:
    if kind == "task":
        return await engine.enqueue("none", timeout=1)
    return await engine.start_function("none", version=1)


async def _outcome(call: Callable[..., Awaitable[Any]], options: dict[str, Any]) -> str:
    try:
        found = call(**options)
        return type(await found if inspect.isawaitable(found) else found).__name__
    except (TreadleError, TimeoutError) as error:
        return f"{type(error).__name__} {getattr(error, 'code', '')}"


@pytest.mark.parametrize(("group", "name", "parameter"), CALLS, ids=".".join)
async def test_a_call_takes_an_id_or_a_record(engine: Engine, group: str, name: str, parameter: str) -> None:
    method = getattr(_service(engine, group), name)
    outcomes = []
    ways: list[Callable[[Any], Any]] = [lambda record: record.id, lambda record: record]
    if (group, name) not in EXACT and group not in EXACT:
        ways += [lambda record: record.id[:-2], lambda _: "last"]
    for make in ways:
        options = {
            each.name: GIVEN[each.name]
            for each in inspect.signature(method).parameters.values()
            if each.default is each.empty and each.kind is not each.VAR_KEYWORD and each.name != parameter
        }
        if "timeout" in inspect.signature(method).parameters:
            options["timeout"] = 0.01
        outcomes.append(await _outcome(method, options | {parameter: make(await _target(engine, NAMES[parameter]))}))
    assert len(set(outcomes)) == 1, outcomes
    assert "invalid_input" not in outcomes[0]


async def test_a_task_and_a_run_that_were_read_name_themselves(engine: Engine) -> None:
    task = await engine.kernel.reads.get_task(await engine.enqueue("none"))
    assert (await engine.kernel.reads.get_task(task)).id == task.id
    run = await engine.kernel.run_reads.get_run(await engine.start_function("none", version=1))
    assert (await engine.kernel.run_reads.get_run(run)).id == run.id
    assert await engine.signal(run, "s")
