"""Step logs: the framework's own lines about a step, those of its handler, and what the flow itself logs."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.agents.scenes import add, one, started, until
from tests.commands import Treadle
from tests.limits import BOUND

from treadle.agents import AgentPoller, Evaluator, Persistence, RegistryRunner, RunnerConfig, RunnerService, ToolRegistry
from treadle.model.errors import StoreUnavailable

LOGGING = """
namespace billing {
    event facet Pay(amount: Double) => (id: String)
    workflow Logged(total: Double) => (receipt: String) andThen {
        sys.log(total = $.total)
        p = Pay(amount = $.total)
        sys.log(id = p.id)
        yield Logged(receipt = p.id)
    }
}
"""


def told(store: Persistence, step_id: str) -> list[tuple[str, str, str]]:
    """The step's log: source, level, message; how long things took is not said."""
    found = store.get_step_logs(step_id)
    return [(line["source"], line["level"], re.sub(r"\d+ ms", "n ms", line["message"])) for line in found]


def pay(payload: dict) -> dict:
    payload["_step_log"]("paying")
    return {"id": "t-1", "status": ""}


DONE = [
    ("framework", "info", "Task claimed"),
    ("framework", "info", "Dispatching handler"),
    ("handler", "info", "paying"),
    ("framework", "success", "Handler completed (n ms)"),
]


@pytest.mark.postgres
def test_the_framework_logs_task_progress_to_the_step(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    poller.register("billing.Pay", pay)
    _, polled = one(evaluator)
    poller.poll_once()
    assert told(persistence, polled) == DONE
    with started(poller):
        _, served = one(evaluator)
        until(lambda: persistence.get_task_for_step(served).state == "completed")
    assert told(persistence, served) == DONE
    claimed = persistence.get_step_logs(served)[0]
    assert claimed["details"] == {"attempt": 1, "owner_id": poller.server_id}


def test_handler_errors_are_in_the_step_log(memory, evaluator):
    def refuse(_: dict) -> dict:
        raise ValueError("no money")

    poller = AgentPoller(memory, evaluator)
    poller.register("Pay", refuse)
    _, step_id = one(evaluator)
    poller.poll_once()
    assert told(memory, step_id)[-1] == ("framework", "error", "Handler error: no money")
    assert memory.get_step_logs(step_id)[-1]["details"]["code"] == "handler_error"


def test_an_unusable_result_is_an_error_in_the_log_of_the_step(memory, evaluator):
    tools = ToolRegistry()
    tools.register("Pay", lambda _: [1])
    _, step_id = one(evaluator)
    RunnerService(memory, evaluator, RunnerConfig(), tools).poll_once()
    assert told(memory, step_id)[-1][:2] == ("framework", "error")
    assert memory.get_step_logs(step_id)[-1]["details"]["code"] == "unexpected_result"


def test_a_missing_module_is_an_error_in_the_log_of_the_step(memory, evaluator):
    runner = RegistryRunner(memory, evaluator)
    runner.register_handler("billing.Pay", "nowhere")
    _, step_id = one(evaluator)
    runner.poll_once()
    assert [line[2] for line in told(memory, step_id)][:2] == ["Task claimed", "Dispatching handler"]
    assert "There is no module nowhere" in told(memory, step_id)[-1][2]


def test_tasks_without_a_step_have_no_lines_of_the_framework(memory, evaluator):
    poller = AgentPoller(memory, evaluator)
    poller.register("x.Do", pay)
    task_id = add(memory, "x.Do")
    poller.poll_once()
    assert [line.message for line in memory.run(memory.engine.kernel.store.log.list_lines(task_id, 10))] == ["paying"]


def test_a_failing_log_write_does_not_fail_the_task(memory, evaluator, monkeypatch, caplog):
    async def fail(_: object) -> None:
        raise StoreUnavailable("the disk is full")

    poller = AgentPoller(memory, evaluator)
    poller.register("Pay", pay)
    run_id, _ = one(evaluator)
    monkeypatch.setattr(memory.kernel.store.log, "append_lines", fail)
    assert poller.poll_once() == 1
    assert evaluator.resume(run_id).outputs == {"receipt": "t-1"}
    assert "the disk is full" in caplog.text


def flow_lines(store: Persistence, run_id: str) -> list[str]:
    """The log lines written by `sys.log`."""
    lines = [line for _, line in store.run(store.engine.kernel.run_reads.page_lines(run_id, 1000))]
    return [line.message.partition(": ")[2] for line in lines if line.message.startswith("Logged")]


def test_flow_log_lines_are_written_once_by_two_agents_of_one_process(persistence):
    evaluator = Evaluator(persistence)
    first, second = AgentPoller(persistence, evaluator), AgentPoller(persistence, evaluator)
    first.register("billing.Pay", pay)
    second.register("billing.Other", pay)
    with started(first), started(second):
        run_id = evaluator.execute(LOGGING, {"total": 2.0}).workflow_id
        until(lambda: evaluator.status(run_id).outputs)
    assert flow_lines(persistence, run_id) == ['{"total":2.0}', '{"id":"t-1"}']


def test_flow_log_lines_are_written_by_poll_once_without_leftover_tasks(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    poller.register("billing.Pay", pay)

    async def tasks() -> int:
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    background = persistence.run(tasks())
    run_id = evaluator.execute(LOGGING, {"total": 2.0}).workflow_id
    assert poller.poll_once() == 1
    assert flow_lines(persistence, run_id) == ['{"total":2.0}', '{"id":"t-1"}']
    until(lambda: persistence.run(tasks()) == background, BOUND)


@pytest.mark.parametrize("closed", [True, False], ids=["closed at once", "left open"])
def test_flow_log_lines_at_the_start_are_written_without_an_agent(tmp_path, closed):
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with Persistence(url) as store, Persistence(url) as other:
        run_id = Evaluator(store).execute(LOGGING, {"total": 2.0}).workflow_id
        if closed:
            store.close()
            assert flow_lines(other, run_id) == ['{"total":2.0}']
        until(lambda: flow_lines(other, run_id) == ['{"total":2.0}'])


def test_the_command_line_shows_the_source_of_each_line(tmp_path):
    treadle = Treadle(tmp_path, f"sqlite:///{tmp_path / 'x.db'}")
    with Persistence(treadle.store) as store:
        evaluator = Evaluator(store)
        poller = AgentPoller(store, evaluator)
        poller.register("Pay", pay)
        run_id = evaluator.execute(LOGGING, {"total": 2.0}).workflow_id
        poller.poll_once()
    shown = treadle("runs", "logs", run_id).out
    for said in ("Task claimed", "Dispatching handler", "paying", "Handler completed", '{"id":"t-1"}'):
        assert said in shown
    assert "_source" not in shown
    lines = treadle.json("runs", "logs", run_id)["lines"]
    assert [line["source"] for line in lines if line["path"] == "Logged.p"] == ["framework", "framework", "handler", "framework"]
