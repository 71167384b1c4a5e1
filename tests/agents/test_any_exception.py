"""Every exception that user code raises fails its own step with its type, whatever its kind, and the loop continues."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.scenes import ONE, add, one, started, until
from tests.agents.test_runner_service import a_service
from tests.engines import make_engine
from tests.goals.artifacts import bundle, objective, workorder
from tests.limits import BOUND
from tests.llm.scene import FLOW as DESK
from tests.llm.scene import GOOD, TARGET, settings_for
from tests.workers.harness import context
from tests.workers.isolated import RAISED, raise_named

from treadle import Engine, ExternalProductionHandle, RenderEvent, RunFailed, Specialist, StepFailed, TaskFailed
from treadle.agents import (
    Agent,
    AgentPoller,
    Evaluator,
    ExecutionStatus,
    MemoryStore,
    Persistence,
    RegistryRunner,
    TaskState,
    ToolRegistry,
)
from treadle.goals.gates import Gates
from treadle.goals.topology import GateSpec
from treadle.llm import ClaudeAgentRunner
from treadle.model.outcomes import Retry
from treadle.model.values import decode
from treadle.testing.llm import MessagesServer, uses
from treadle.workers.call import call
from treadle.workers.context import make_handler
from treadle.workers.executor import SystemExecutor

each = pytest.mark.parametrize("kind", RAISED)
Start = Callable[..., Agent]


async def raise_async(payload: dict[str, Any]) -> None:
    raise_named(payload)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with make_engine("memory://") as made:
        yield made


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as made:
        yield made


# workers


async def error_of(engine: Engine, task_id: str) -> dict[str, Any]:
    """Return the error of a task that failed in its first claim."""
    task = await engine.kernel.store.tasks.find(task_id)
    assert task is not None
    assert task.claim_version == 1
    error: dict[str, Any] = decode(task.error)
    return error


@each
@pytest.mark.parametrize("isolation", ["loop", "thread", "process"])
async def test_a_task_fails_in_one_attempt_and_the_worker_continues(engine: Engine, kind: str, isolation: str) -> None:
    engine.handler("fails", isolation=isolation, retry=None)(raise_async if isolation == "loop" else raise_named)
    engine.handler("works")(lambda payload: {"fine": True})
    async with engine.worker():
        failing = await engine.enqueue("fails", {"kind": kind})
        with pytest.raises(TaskFailed):
            await engine.result(failing, timeout=BOUND)
        assert await engine.result(await engine.enqueue("works"), timeout=BOUND) == {"fine": True}
    assert (await error_of(engine, failing.id))["type"] == kind


@each
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_step_of_a_function_fails_with_its_type(engine: Engine, kind: str, is_async: bool) -> None:
    step = raise_async if is_async else raise_named
    seen: list[str | None] = []

    @engine.function("steps")
    async def steps(payload: dict[str, Any], ctx: Any) -> None:
        for operation in (ctx.step(step, payload, name="s"), ctx.effect("pay", lambda: step(payload), {})):
            try:
                await operation
            except StepFailed as error:
                seen.append(error.type)
        await ctx.gather(ctx.step(step, payload, name="t"), raise_async(payload))

    @engine.function("raises")
    async def raises(payload: dict[str, Any], ctx: Any) -> None:
        raise_named(payload)

    async with engine.worker():
        for name in ("steps", "raises"):
            run = await engine.start_function(name, {"kind": kind})
            with pytest.raises(RunFailed):
                await engine.run_result(run, timeout=BOUND)
    assert seen == [kind, kind]


@each
@pytest.mark.parametrize("method", ["start", "poll"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_specialist_fails_or_is_polled_again(engine: Engine, kind: str, method: str, is_async: bool) -> None:
    polls: list[str] = []

    def start(payload: dict[str, Any]) -> ExternalProductionHandle:
        if method == "start":
            raise RAISED[kind]
        return ExternalProductionHandle("job", 0.01, "on it")

    def poll(external_job_id: str) -> Any:
        polls.append(external_job_id)
        if len(polls) == 1:
            raise RAISED[kind]
        return RenderEvent({"url": "x"})

    class Service(Specialist):
        if is_async:

            async def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
                return start(payload)

            async def poll(self, external_job_id: str) -> Any:
                return poll(external_job_id)

        else:

            def start(self, payload: dict[str, Any]) -> ExternalProductionHandle:
                return start(payload)

            def poll(self, external_job_id: str) -> Any:
                return poll(external_job_id)

    engine.specialist("render", Service())
    async with engine.worker():
        task = await engine.enqueue("render")
        if method == "poll":
            await engine.result(task, timeout=BOUND)
            assert len(polls) == 2
            return
        with pytest.raises(TaskFailed):
            await engine.result(task, timeout=BOUND)
    error = await error_of(engine, task.id)
    assert (error["code"], error["type"]) == ("specialist_raised", kind)


@each
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_gate_fails_the_attempt_of_its_role(kind: str, is_async: bool, tmp_path: Path) -> None:
    gates, executor = Gates(), SystemExecutor(1)

    async def asked(bundle: Any) -> bool:
        raise RAISED[kind]

    def blocking(bundle: Any) -> bool:
        raise RAISED[kind]

    gates.add(make_handler("mine", asked if is_async else blocking))

    async def role(payload: Any) -> None:
        await gates.judge((GateSpec("it", "mine", {}, None),), bundle(), objective(), workorder(), tmp_path, executor)

    outcome = await call(make_handler("role", role), context(), executor)
    executor.close()
    assert isinstance(outcome, Retry)
    assert outcome.problem.type == kind


# agents


def poller_of(store: Persistence, tmp_path: Path) -> AgentPoller:
    poller = AgentPoller(store, Evaluator(store))
    poller.register("x.Sync", raise_named)
    poller.register_async("x.Async", raise_async)
    return poller


def registry_runner_of(store: Persistence, tmp_path: Path) -> RegistryRunner:
    text = "from tests.workers.isolated import raise_named\n\ndef handle(payload):\n    raise_named(payload)\n\n"
    text += "async def later(payload):\n    raise_named(payload)\n"
    (tmp_path / "any_exception.py").write_text(text)
    runner = RegistryRunner(store, Evaluator(store))
    runner.register_handler("x.Sync", "any_exception")
    runner.register_handler("x.Async", "any_exception", "later")
    return runner


def service_of(store: Persistence, tmp_path: Path) -> Agent:
    tools = ToolRegistry()
    tools.register("x.Sync", raise_named)
    tools.register("x.Async", raise_async)
    return a_service(store, tools)


AGENTS = [poller_of, registry_runner_of, service_of]


def check_failed(store: Persistence, ids: list[str], kind: str) -> None:
    for task_id in ids:
        task = store.get_task(task_id)
        assert task.state == TaskState.FAILED
        assert task.error["message"].startswith((kind, "empty"))


@pytest.mark.postgres
@each
@pytest.mark.parametrize("make", AGENTS)
def test_poll_once_returns_and_the_tasks_failed(persistence: Persistence, tmp_path: Path, make: Start, kind: str) -> None:
    agent = make(persistence, tmp_path)
    ids = [add(persistence, name, kind=kind) for name in ("x.Sync", "x.Async")]
    assert agent.poll_once() == 2
    check_failed(persistence, ids, kind)


@pytest.mark.parametrize("make", AGENTS)
def test_start_continues_after_all_of_them(memory: MemoryStore, tmp_path: Path, make: Start) -> None:
    with started(make(memory, tmp_path)):
        for kind in RAISED:
            ids = [add(memory, name, kind=kind) for name in ("x.Sync", "x.Async")]
            until(lambda ids=ids: all(memory.get_task(task_id).state == TaskState.FAILED for task_id in ids))
            check_failed(memory, ids, kind)


def test_ctrl_c_during_poll_once_releases_the_task_and_is_raised(memory: MemoryStore) -> None:
    def press(payload: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(BOUND)

    poller = AgentPoller(memory, Evaluator(memory))
    poller.register("x.Slow", press)
    ids = [add(memory, "x.Slow") for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        poller.poll_once()
    assert [memory.get_task(task_id).state for task_id in ids] == [TaskState.PENDING] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@each
@pytest.mark.parametrize("method", ["continue_step", "resume"])
def test_an_evaluator_that_raises_does_not_end_the_cycle(memory: MemoryStore, kind: str, method: str) -> None:
    if kind == "KeyboardInterrupt":
        pytest.skip("in the main thread it is Ctrl-C")

    class Own(Evaluator):
        pass

    def raising(*_: Any, **__: Any) -> None:
        raise RAISED[kind]

    run_id, _ = one(Evaluator(memory))
    setattr(Own, method, raising)
    poller = AgentPoller(memory, Own(memory))
    poller.register("Pay", lambda payload: {"id": "r", "status": "s"})
    assert poller.poll_once() == 1
    assert Evaluator(memory).resume(run_id).outputs == {"receipt": "r"}


# models


@each
@pytest.mark.parametrize("tool", [raise_named, raise_async])
def test_a_tool_fails_its_step_and_the_llm_runner_returns(memory: MemoryStore, kind: str, tool: Any) -> None:
    tools = ToolRegistry(default=lambda payload: tool({"kind": kind}))
    result = ClaudeAgentRunner(Evaluator(memory), memory, tool_registry=tools).run("billing.One", {"total": 1.0}, ONE)
    assert result.status == ExecutionStatus.ERROR
    (task,) = memory.get_tasks_by_facet("billing.Pay")
    assert (task.state, task.error["type"]) == (TaskState.FAILED, kind)


@each
@pytest.mark.parametrize("tool", [raise_named, raise_async])
def test_the_error_of_a_tool_is_sent_to_the_model(server: MessagesServer, kind: str, tool: Any) -> None:
    server.script(uses(("Lookup", {"kind": kind})), uses((TARGET, GOOD)))
    tools = ToolRegistry()
    tools.register("Lookup", tool)
    with Persistence("memory://", settings=settings_for(server)) as persistence:
        runner = ClaudeAgentRunner(Evaluator(persistence), persistence, tool_registry=tools)
        result = runner.run("desk.Sort", {"letter": "Dear all"}, DESK[0][1])
    assert result.status == ExecutionStatus.COMPLETED
    shown = server.requests[1]["messages"][-1]["content"][0]
    assert shown["is_error"] is True
    assert kind in str(shown["content"])


@each
def test_an_inline_dispatcher_fails_its_step(memory: MemoryStore, kind: str) -> None:
    tools = ToolRegistry(default=lambda payload: raise_named({"kind": kind}))
    result = Evaluator(memory).execute(ONE, {"total": 1.0}, dispatcher=tools)
    assert result.status == ExecutionStatus.ERROR
    (task,) = memory.get_tasks_by_facet("billing.Pay")
    assert task.error["message"].startswith((kind, "empty"))
