"""Tasks of prompt blocks, taken from the queue by agents whose store's engine serves prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.scenes import add, started, until
from tests.engines import ALL, url_of
from tests.llm.scene import FLOW, GOOD, OUTPUTS, TARGET, settings_for

from treadle.agents import AgentPoller, AgentPollerConfig, Evaluator, Persistence, RegistryRunner, RunnerService, ToolRegistry
from treadle.llm import use_llm
from treadle.testing.llm import MessagesServer, status, uses

TEXT = FLOW[0][1]


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as made:
        yield made


@pytest.fixture(params=ALL)
def store(request: pytest.FixtureRequest, tmp_path: Path, server: MessagesServer) -> Iterator[Persistence]:
    with Persistence(url_of(request.param, request, tmp_path), settings=settings_for(server)) as made:
        yield made


def waiting(evaluator: Evaluator) -> str:
    """A run whose one step waits for a model."""
    return evaluator.execute("desk.Sort", {"letter": "Dear all"}, TEXT).workflow_id


@pytest.mark.postgres
@pytest.mark.parametrize("kind", [AgentPoller, RegistryRunner, RunnerService])
def test_poll_once_of_a_prompt_capable_agent_takes_prompts_from_the_queue(server, store, kind):
    server.script(uses((TARGET, GOOD)))
    use_llm(store.engine)
    evaluator = Evaluator(store)
    run_id = waiting(evaluator)
    agent = kind(store, evaluator)
    assert [agent.poll_once(), agent.poll_once()] == [1, 0]
    assert evaluator.status(run_id).outputs == OUTPUTS
    (row,) = store.run(store.engine.kernel.store.usage.list_requests(run_id))
    assert (row.state, row.cost_micros) == ("settled", 200)
    (step,) = [step for step in store.get_steps_by_workflow(run_id) if step.facet_name == "desk.Summarize"]
    assert [line["message"].partition(" (")[0] for line in store.get_step_logs(step.id)] == [
        "Task claimed",
        "Dispatching handler",
        "Handler completed",
    ]


def test_without_a_model_prompts_are_left_to_others(server, store):
    evaluator = Evaluator(store)
    run_id = waiting(evaluator)
    assert AgentPoller(store, evaluator).poll_once() == 0
    assert evaluator.status(run_id).status == "PAUSED"
    assert server.requests == []


def test_a_handler_for_the_facet_wins_over_the_model(server, store):
    use_llm(store.engine)
    evaluator = Evaluator(store)
    run_id = waiting(evaluator)
    poller = AgentPoller(store, evaluator)
    poller.register("Summarize", lambda _: GOOD)
    assert poller.poll_once() == 1
    assert evaluator.status(run_id).outputs == OUTPUTS
    assert server.requests == []


def test_prompts_use_the_capacity_that_handlers_leave_of_max_concurrent(server, store):
    server.script(uses((TARGET, GOOD)), uses((TARGET, GOOD)))
    use_llm(store.engine)
    evaluator = Evaluator(store)
    for _ in range(2):
        waiting(evaluator)
    poller = AgentPoller(store, evaluator, AgentPollerConfig(max_concurrent=2))
    poller.register("x.Do", lambda _: {})
    add(store, "x.Do")
    assert [poller.poll_once(), len(server.requests)] == [2, 1]
    assert [poller.poll_once(), len(server.requests)] == [1, 2]


def test_a_model_that_cannot_be_reached_fails_the_step_and_not_the_agent(server, store):
    server.script(status(401, "authentication_error"))
    use_llm(store.engine)
    evaluator = Evaluator(store)
    run_id = waiting(evaluator)
    assert AgentPoller(store, evaluator).poll_once() == 1
    result = evaluator.status(run_id)
    assert (result.status, result.success) == ("ERROR", False)


def test_start_serves_prompts_too(server, store):
    server.script(uses((TARGET, GOOD)))
    use_llm(store.engine)
    evaluator = Evaluator(store)
    with started(RunnerService(store, evaluator, tool_registry=ToolRegistry())):
        run_id = waiting(evaluator)
        until(lambda: evaluator.status(run_id).outputs == OUTPUTS)
