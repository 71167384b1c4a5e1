"""An evaluator with methods of its own is the one that agents ask, in `poll_once` and in `start` alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.agents.scenes import one, started, until
from tests.limits import BOUND

from treadle.agents import (
    Agent,
    AgentPoller,
    Evaluator,
    ExecutionStatus,
    Persistence,
    RegistryRunner,
    RunnerConfig,
    RunnerService,
    TaskState,
    ToolRegistry,
)


class Spy(Evaluator):
    """Notes what it is asked to do, and does it; its `fail_step` is that of the specification, without options."""

    def __init__(self, persistence: Persistence) -> None:
        super().__init__(persistence)
        self.told: list[tuple[object, ...]] = []

    def continue_step(self, step_id, result=None):
        self.told.append(("continue_step", step_id, result))
        super().continue_step(step_id, result)

    def fail_step(self, step_id, error_message):
        self.told.append(("fail_step", step_id, error_message))
        super().fail_step(step_id, error_message)

    def resume(self, workflow_id_val, workflow_ast=None, program_ast=None, inputs=None, **options):
        self.told.append(("resume", workflow_id_val))
        return super().resume(workflow_id_val, workflow_ast, program_ast, inputs, **options)


def pay(payload: dict) -> dict:
    if payload["amount"] < 0:
        raise RuntimeError("no money in it")
    return {"id": "t-1", "status": "ok"}


OWN_PAY = "from tests.agents.test_own_evaluator import pay\n\ndef handle(payload):\n    return pay(payload)\n"


def an_agent(kind: type[Agent], store: Persistence, evaluator: Evaluator) -> Agent:
    if kind is RunnerService:
        tools = ToolRegistry()
        tools.register("billing.Pay", pay)
        return RunnerService(store, evaluator, RunnerConfig(http_port=18600), tools)
    if kind is RegistryRunner:
        runner = RegistryRunner(store, evaluator)
        (runner.modules.roots[0] / "own_pay.py").write_text(OWN_PAY)
        runner.register_handler("billing.Pay", "own_pay")
        return runner
    poller = AgentPoller(store, evaluator)
    poller.register("billing.Pay", pay)
    return poller


def by_poll_once(agent: Agent, done: Callable[[], object]) -> None:
    agent.poll_once()
    assert done()


def by_start(agent: Agent, done: Callable[[], object]) -> None:
    with started(agent):
        until(done)


@pytest.mark.postgres
@pytest.mark.parametrize("way", [by_poll_once, by_start])
@pytest.mark.parametrize("kind", [AgentPoller, RegistryRunner, RunnerService])
def test_success_must_call_continue_step_and_resume_of_the_evaluator(persistence, kind, way):
    spy = Spy(persistence)
    run_id, step_id = one(spy)
    way(an_agent(kind, persistence, spy), lambda: ("resume", run_id) in spy.told)
    assert spy.told == [("continue_step", step_id, {"id": "t-1", "status": "ok"}), ("resume", run_id)]
    assert persistence.get_task_for_step(step_id).state == TaskState.COMPLETED
    assert spy.status(run_id).outputs == {"receipt": "t-1"}
    assert persistence.run(persistence.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("way", [by_poll_once, by_start])
@pytest.mark.parametrize("kind", [AgentPoller, RegistryRunner, RunnerService])
def test_an_exception_must_call_fail_step_of_the_evaluator_and_fail_the_task(persistence, kind, way):
    spy = Spy(persistence)
    run_id, step_id = one(spy, -1.0)
    way(an_agent(kind, persistence, spy), lambda: ("resume", run_id) in spy.told)
    assert spy.told == [("fail_step", step_id, "no money in it"), ("resume", run_id)]
    assert persistence.get_task_for_step(step_id).state == TaskState.FAILED
    assert spy.status(run_id).status is ExecutionStatus.ERROR


@pytest.mark.parametrize("way", [by_poll_once, by_start])
def test_an_evaluator_that_forgets_the_task_or_raises_does_not_keep_it_from_its_end(memory, way, caplog):
    class Careless(Evaluator):
        def continue_step(self, step_id, result=None):
            if result["id"] != "t-1":
                raise RuntimeError("not mine")

    careless = Careless(memory)
    poller = AgentPoller(memory, careless)
    poller.register("Pay", lambda payload: {"id": f"t-{payload['amount']:g}"})
    (forgotten, _), (raised, _) = one(careless, 1.0), one(careless, 2.0)
    way(poller, lambda: all(careless.status(run_id).outputs for run_id in (forgotten, raised)))
    assert [careless.status(run_id).outputs["receipt"] for run_id in (forgotten, raised)] == ["t-1", "t-2"]
    assert "not mine" in caplog.text
    assert len(memory.claims) == 0


def test_the_traceback_of_a_failed_handler_is_stored_with_its_task(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    poller.register("Pay", pay)
    for way in (by_poll_once, by_start):
        _, step_id = one(evaluator, -1.0)
        way(poller, lambda step_id=step_id: persistence.get_task_for_step(step_id).state == TaskState.FAILED)
        error = persistence.get_task_for_step(step_id).error
        assert error["type"] == "RuntimeError"
        assert 'raise RuntimeError("no money in it")' in error["traceback"]


@pytest.mark.parametrize("way", [by_poll_once, by_start])
def test_calls_of_durable_functions_are_handled_without_the_evaluator(memory, way):
    engine = memory.engine

    @engine.function("pays")
    async def pays(payload: dict, ctx) -> object:
        return await ctx.call("billing.Pay", {"amount": payload["amount"]})

    spy = Spy(memory)

    async def until_called() -> None:
        async with engine.worker():
            while not await engine.kernel.reads.list_tasks(kind="handler", name="billing.Pay", states=("pending",)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    run = memory.run(engine.start_function("pays", {"amount": 1.0}))
    memory.run(asyncio.wait_for(until_called(), BOUND))
    (task,) = memory.run(engine.kernel.reads.list_tasks(kind="handler", name="billing.Pay"))
    way(an_agent(AgentPoller, memory, spy), lambda: memory.get_task(task.id).state == TaskState.COMPLETED)
    assert spy.told == []

    async def result() -> object:
        async with engine.worker():
            return await engine.run_result(run, timeout=BOUND)

    assert memory.run(result()) == {"id": "t-1", "status": "ok"}
