"""Section 9 of the agent SDK as far as it needs no model: `ClaudeAgentRunner` with a `ToolRegistry`; the rest is in interfaces."""

from __future__ import annotations

import pytest
from tests.agents.scenes import PAY

import treadle.agents
from treadle.agents import Evaluator, ExecutionStatus, TaskState, ToolRegistry
from treadle.llm import ClaudeAgentRunner

PUBLIC = [
    "AgentPoller",
    "AgentPollerConfig",
    "RegistryRunner",
    "RegistryRunnerConfig",
    "RunnerService",
    "RunnerConfig",
    "ClaudeAgentRunner",
    "ToolRegistry",
    "PersistenceAPI",
    "MemoryStore",
    "Evaluator",
    "ExecutionResult",
    "ExecutionStatus",
    "TaskDefinition",
    "TaskState",
    "ServerDefinition",
    "ServerState",
    "HandledCount",
    "HandlerRegistration",
    "StepDefinition",
    "LockMetaData",
]


def a_runner(store, tools: ToolRegistry, **options) -> ClaudeAgentRunner:
    return ClaudeAgentRunner(evaluator=Evaluator(store), persistence=store, tool_registry=tools, **options)


def test_the_public_names_of_the_specification_are_there():
    assert [name for name in PUBLIC if not hasattr(treadle.agents, name)] == []


@pytest.mark.postgres
def test_it_drives_a_workflow_in_process_without_registering_a_server(persistence):
    tools = ToolRegistry()
    tools.register("billing.Pay", lambda payload: {"id": f"t-{payload['amount']}", "status": ""})
    tools.register("Message", lambda payload: {"sent": payload["to"] == "t-1.0"})  # by its short name
    result = a_runner(persistence, tools).run("billing.Checkout", {"total": 1.0}, PAY)
    assert (result.status, result.outputs) == (ExecutionStatus.COMPLETED, {"receipt": "t-1.0", "sent": True})
    assert persistence.list_servers() == []
    assert persistence.get_pending_tasks() == []


def test_a_tool_that_raises_fails_its_step_and_run_returns_the_error(persistence):
    def refuse(_: dict) -> dict:
        raise ValueError("card declined")

    tools = ToolRegistry(default=refuse)
    result = a_runner(persistence, tools).run("billing.Checkout", {"total": 1.0}, PAY)
    assert (result.status, result.success) == (ExecutionStatus.ERROR, False)
    assert "card declined" in result.error
    (task,) = persistence.get_tasks_by_facet("billing.Pay")
    assert (task.state, task.error["type"]) == (TaskState.FAILED, "ValueError")
    (step,) = [step for step in persistence.get_steps_by_workflow(result.workflow_id) if step.facet_name == "billing.Pay"]
    assert step.state == "state.statement.Error"
    assert [line["level"] for line in persistence.get_step_logs(step.id)] == ["info", "info", "error"]
