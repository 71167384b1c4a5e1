"""Calls of the agent SDK as its document specifies them, where users meet their edges."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.agents.scenes import BOUND, ONE, add, one, started, until
from tests.agents.test_runner_service import get

from treadle.agents import (
    AgentPoller,
    ClaudeAgentRunner,
    Evaluator,
    HandledCount,
    Persistence,
    RegistryRunnerConfig,
    RunnerConfig,
    RunnerService,
    ServerDefinition,
    ServerState,
    StepState,
    TaskDefinition,
    TaskState,
    Telemetry,
    ToolRegistry,
    open_persistence,
)
from treadle.model.errors import InvalidInput, InvalidStoreUrl, Refused
from treadle.model.values import decode
from treadle.settings import load_settings


@pytest.mark.postgres
@pytest.mark.parametrize("task_id", ["nope", "", "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77"])
def test_an_unknown_task_is_none(persistence: Persistence, task_id: str) -> None:
    assert persistence.get_task(task_id) is None


def test_empty_metadata_of_a_handler_is_a_dict(memory: Persistence) -> None:
    seen: list[object] = []
    poller = AgentPoller(memory, Evaluator(memory))
    poller.register("x.Y", lambda payload: seen.append(payload["_handler_metadata"]))
    add(memory, "x.Y")
    assert poller.poll_once() == 1
    assert seen == [{}]


def test_a_direct_claim_can_be_extended_until_it_is_settled(persistence: Persistence) -> None:
    add(persistence, "x.Y")
    task = persistence.claim_task(["x.Y"])
    assert task is not None
    before = persistence.run(persistence.engine.kernel.reads.get_task(task.uuid)).wake_at
    assert persistence.extend_task(task.uuid, 600_000)
    after = persistence.run(persistence.engine.kernel.reads.get_task(task.uuid)).wake_at
    assert before is not None
    assert after is not None
    assert after - before > 400_000
    assert persistence.complete_task(task.uuid)
    assert not persistence.extend_task(task.uuid)


@pytest.mark.parametrize("scheme", ["mongodb", "mongodb+srv"])
def test_a_mongodb_url_is_answered_with_the_alternatives(scheme: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=r"no MongoDB store.*PostgreSQL.*sqlite:///"):
        open_persistence(f"{scheme}://user:secret@host/afl")


def test_a_name_can_be_registered_again(memory: Persistence) -> None:
    poller = AgentPoller(memory, Evaluator(memory))
    poller.register("x.Y", lambda _: {"by": "first"})
    poller.register("x.Y", lambda _: {"by": "second"})
    assert poller.registered_names() == ["x.Y"]
    task_id = add(memory, "x.Y")
    assert poller.poll_once() == 1
    assert decode(memory.run(memory.engine.kernel.reads.get_task(task_id)).result or "") == {"by": "second"}


async def _async_default(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, **payload}


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        (lambda name, payload: {"name": name, **payload}, {"name": "a.B", "n": 1}),
        (lambda name, payload, more=None: {"name": name}, {"name": "a.B"}),
        (_async_default, {"name": "a.B", "n": 1}),
        (lambda payload: payload, {"n": 1}),
        (lambda payload, more=None: {"more": more}, {"more": None}),
        (dict, {"n": 1}),
    ],
)
def test_a_default_handler_takes_the_payload_or_the_name_and_the_payload(
    memory: Persistence, default: Any, expected: dict[str, Any]
) -> None:
    tools = ToolRegistry()
    assert tools.handle("a.B", {"n": 1}) is None
    tools.set_default_handler(default)
    assert tools.handle("a.B", {"n": 1}) == expected
    text = "namespace a { event facet B(n: Long)\nworkflow W() => (r: Json) andThen { b = B(n = 1)\nyield W(r = b.n) } }"
    for result in (
        Evaluator(memory).execute(text, dispatcher=tools),
        ClaudeAgentRunner(Evaluator(memory), memory, tool_registry=tools).run(text),
    ):
        assert result.status == "COMPLETED"


def test_the_states_of_steps_are_those_of_the_specification(memory: Persistence) -> None:
    evaluator = Evaluator(memory)
    run_id, step_id = one(evaluator)
    assert StepState.EVENT_TRANSMIT == "state.EventTransmit"
    assert [step.id for step in memory.get_steps_by_state(run_id, StepState.EVENT_TRANSMIT)] == [step_id]
    evaluator.fail_step(step_id, "no")
    step = memory.get_step(step_id)
    assert step is not None
    assert step.state == StepState.STATEMENT_ERROR


def test_telemetry_keeps_the_latest_events_and_does_not_affect_execution(memory: Persistence) -> None:
    telemetry = Telemetry(enabled=True, max_events=3)
    evaluator = Evaluator(persistence=memory, telemetry=telemetry)
    run_id, step_id = one(evaluator)
    assert [(event["eventType"], event["workflowId"]) for event in telemetry.events] == [("workflow.start", run_id)]
    evaluator.continue_step(step_id, {"id": "r"})
    assert evaluator.resume(run_id).status == "COMPLETED"
    assert telemetry.events[-1]["eventType"] == "workflow.complete"
    for _ in range(5):
        one(evaluator)
    assert len(telemetry.events) == 3

    class Broken(Telemetry):
        def emit(self, event: dict[str, Any]) -> None:
            raise RuntimeError("full")

    one(Evaluator(memory, Broken()))
    off = Telemetry(enabled=False)
    one(Evaluator(memory, off))
    assert not off.events


def test_a_run_of_the_model_runner_takes_a_budget(memory: Persistence) -> None:
    tools = ToolRegistry(lambda _: {"id": "r"})
    result = ClaudeAgentRunner(Evaluator(memory), memory, tool_registry=tools).run(ONE, {"total": 1.0}, budget=0.25)
    assert result.status == "COMPLETED"
    budget = memory.run(memory.engine.kernel.store.usage.find_budget(result.workflow_id))
    assert budget is not None
    assert budget.limit_micros == 250_000


WHOLE = {"runner_id": "r1", "workflow_id": "w1", "flow_id": "f1", "step_id": "s1", "data_type": "json"}


@pytest.mark.parametrize("uuid", ["task-1", "2f0e5a3c-7c1c-4b8a-9d5f-6a3b2c1d0e9f"])
def test_a_saved_task_keeps_the_fields_of_the_specification(persistence: Persistence, uuid: str) -> None:
    persistence.save_task(TaskDefinition(uuid=uuid, name="x.Y", data={"n": 1}, **WHOLE))  # type: ignore[arg-type]
    for found in (persistence.get_task(uuid), persistence.claim_task(["x.Y"]), *persistence.get_tasks_by_state("running")):
        assert found is not None
        assert {name: getattr(found, name) for name in WHOLE} == WHOLE
        assert (found.name, found.data) == ("x.Y", {"n": 1})
    assert persistence.claim_task(["x.Y"]) is None


def test_the_handler_of_a_saved_task_receives_only_its_data(memory: Persistence) -> None:
    seen: list[dict[str, Any]] = []
    poller = AgentPoller(memory, Evaluator(memory))
    poller.register("x.Y", lambda payload: seen.append({k: v for k, v in payload.items() if not k.startswith("_")}))
    memory.save_task(TaskDefinition(uuid="t", name="x.Y", data={"n": 1}, **WHOLE))  # type: ignore[arg-type]
    assert poller.poll_once() == 1
    with started(poller):
        memory.save_task(TaskDefinition(uuid="u", name="x.Y", data={"n": 2}, **WHOLE))  # type: ignore[arg-type]
        until(lambda: len(seen) == 2)
    assert seen == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("state", [TaskState.PENDING, TaskState.RUNNING, TaskState.COMPLETED, TaskState.FAILED])
def test_a_new_task_is_saved_in_its_state(persistence: Persistence, state: str) -> None:
    persistence.save_task(TaskDefinition(uuid="t", name="x.Y", state=state, error={"code": "c", "message": "m"}))
    found = persistence.get_task("t")
    assert found is not None
    assert found.state == state
    assert (found.error or {}).get("message") == ("m" if state == TaskState.FAILED else None)
    claimed = persistence.claim_task(["x.Y"])
    assert (claimed is not None) == (state == TaskState.PENDING)


def test_a_saved_task_can_be_released_canceled_and_ended_but_not_redriven(memory: Persistence) -> None:
    task = TaskDefinition(uuid="t", name="x.Y", state=TaskState.RUNNING)
    memory.save_task(task)
    task.state = TaskState.PENDING
    memory.save_task(task)
    again = memory.claim_task(["x.Y"])
    assert again is not None
    again.state = TaskState.COMPLETED
    memory.save_task(again)
    memory.save_task(task)  # a stale copy
    found = memory.get_task("t")
    assert found is not None
    assert found.state == TaskState.COMPLETED
    memory.save_task(TaskDefinition(uuid="w", name="x.Y", state=TaskState.RUNNING))
    assert memory.extend_task("w")
    assert memory.complete_task("w")
    memory.save_task(TaskDefinition(uuid="u", name="x.Z"))
    memory.save_task(TaskDefinition(uuid="u", name="x.Z", state=TaskState.CANCELED))
    canceled = memory.get_task("u")
    assert canceled is not None
    assert canceled.state == TaskState.CANCELED
    with pytest.raises(Refused):
        memory.save_task(TaskDefinition(uuid="v", name="x.Z", state=TaskState.IGNORED))


def test_a_task_that_is_released_again_and_again_waits_a_second(memory: Persistence) -> None:
    memory.save_task(TaskDefinition(uuid="t", name="x.Y"))
    for is_claimed in (True, True, False):
        task = memory.claim_task(["x.Y"])
        assert (task is not None) == is_claimed
        if task is not None:
            task.state = TaskState.PENDING
            memory.save_task(task)


@pytest.mark.parametrize("given", [{"lock_duration_ms": 5000}, {"lock_extend_interval_ms": 90_000}, {"http_host": "0.0.0.0"}])
def test_a_runner_configuration_keeps_its_arguments(memory: Persistence, given: dict[str, Any]) -> None:
    config = RunnerConfig(**given)
    assert {name: getattr(config, name) for name in given} == given
    service = RunnerService(memory, Evaluator(memory), config)
    assert service._profile.renew_every is not None
    assert service._profile.renew_every * 2000 <= config.lock_duration_ms


def test_topics_and_the_address_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFL_RUNNER_TOPICS", "osm.geo.*, validation.*,")
    monkeypatch.setenv("AFL_HTTP_HOST", "0.0.0.0")
    assert RegistryRunnerConfig().topics == RunnerConfig().topics == ["osm.geo.*", "validation.*"]
    assert RunnerConfig().http_host == "0.0.0.0"
    assert RegistryRunnerConfig(topics=["x.*"]).topics == ["x.*"]
    monkeypatch.setenv("AFL_USE_REGISTRY", "yes")
    with pytest.raises(InvalidInput, match="AFL_USE_REGISTRY"):
        load_settings()


def test_a_service_that_drains_is_not_healthy(memory: Persistence) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(_: dict[str, Any]) -> None:
        entered.set()
        leave.wait(BOUND)

    tools = ToolRegistry()
    tools.register("x.Y", slow)
    service = RunnerService(memory, Evaluator(memory), RunnerConfig(http_port=0, http_host="127.0.0.1"), tools)
    with started(service):
        try:
            add(memory, "x.Y")
            assert entered.wait(BOUND)
            assert get(service, "/health") == (200, {"ok": True})
            service.stop()
            until(lambda: get(service, "/health") == (503, {"ok": False}))
            status = get(service, "/status")[1]
            assert (status["state"], status["active_work_items"]) == ("shutdown", 1)
        finally:
            leave.set()


def test_a_saved_server_keeps_the_fields_of_the_specification(persistence: Persistence) -> None:
    server = ServerDefinition(
        uuid="server-1",
        server_group="shop",
        service_name="billing",
        server_name="node-7",
        server_ips=["10.0.0.1", "fe80::1"],
        start_time=1_700_000_000_000,
        topics=["billing.*"],
        handlers=["billing.Pay"],
        handled=[HandledCount("billing.Pay", 3, 1)],
        state=ServerState.ERROR,
        manager="ops",
        error={"message": "no"},
    )
    persistence.save_server(server)
    found = persistence.get_server("server-1")
    assert found is not None
    assert found.ping_time > 0
    assert found == replace(server, ping_time=found.ping_time)
    persistence.save_server(replace(server, state=ServerState.SHUTDOWN, error=None, manager="", server_ips=[]))
    again = persistence.get_server("server-1")
    assert again is not None
    assert (again.state, again.error, again.manager, len(again.server_ips)) == (ServerState.SHUTDOWN, None, "", 1)


def test_an_error_of_an_inline_dispatcher_has_its_type(memory: Persistence) -> None:
    tools = ToolRegistry()

    @partial(tools.register, "Pay")
    def fail(_: dict[str, Any]) -> None:
        raise LookupError("no account")

    Evaluator(memory).execute(ONE, {"total": 1.0}, dispatcher=tools)
    (task,) = memory.get_tasks_by_state("failed")
    assert task.error is not None
    assert (task.error["type"], task.error["message"]) == ("LookupError", "no account")
