"""Agents written for the reference implementation run unedited: its public import paths, its examples, its variables."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.agents.scenes import BOUND, until

import treadle.agents
from treadle.agents import Evaluator, MemoryStore, SqliteStore, TaskState
from treadle.model.errors import InvalidStoreUrl
from treadle.settings import child_environment

PATHS = {
    "afl.runtime": "Evaluator MemoryStore AgentPoller RegistryRunner RunnerService ToolRegistry Telemetry ClaudeAgentRunner",
    "afl.runtime.registry_runner": "RegistryRunner RegistryRunnerConfig",
    "afl.runtime.agent_poller": "AgentPoller AgentPollerConfig",
    "afl.runtime.runner.service": "RunnerService RunnerConfig",
    "afl.runtime.runner": "RunnerService RunnerConfig",
    "afl.runtime.entities": "TaskDefinition TaskState ServerDefinition ServerState HandlerRegistration HandledCount LockMetaData",
    "afl.runtime.persistence": "PersistenceAPI",
    "afl.runtime.evaluator": "Evaluator ExecutionResult ExecutionStatus",
    "afl.runtime.memory_store": "MemoryStore",
    "afl.runtime.states": "StepState",
    "afl.runtime.telemetry": "Telemetry",
    "afl.runtime.agent": "ClaudeAgentRunner ToolRegistry",
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in PATHS.items() for name in names.split()])
def test_the_import_paths_of_the_specification_lead_to_the_sdk(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(treadle.agents, name)


def test_a_mongo_store_is_the_store_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from afl.runtime import MongoStore

    monkeypatch.delenv("TREADLE_STORE", raising=False)
    with pytest.raises(InvalidStoreUrl, match="TREADLE_STORE"):
        MongoStore(connection_string="mongodb://localhost:27017", database_name="afl")
    with MongoStore(f"sqlite:///{tmp_path}/given.db") as given:
        assert "given.db" in given.url
    monkeypatch.setenv("TREADLE_STORE", "memory://")
    with MongoStore("mongodb://localhost:27017", database_name="afl") as store:
        assert store.url.startswith("memory")


def test_a_program_compiled_by_the_package_runs() -> None:
    from afl import emit_dict, parse

    program = emit_dict(parse("workflow W() => (x: Long) andThen { yield W(x = 2) }"))
    with MemoryStore() as store:
        assert Evaluator(store).execute(program["declarations"][0], program_ast=program).outputs == {"x": 2}
    with pytest.raises(ValueError, match="Lnog"):
        parse("facet A(x: Lnog)")


REGISTRY = """
    from afl.runtime import MongoStore, Evaluator
    from afl.runtime.registry_runner import RegistryRunner, RegistryRunnerConfig

    store = MongoStore()
    evaluator = Evaluator(persistence=store)
    runner = RegistryRunner(
        persistence=store,
        evaluator=evaluator,
        config=RegistryRunnerConfig(service_name="billing-runner", poll_interval_ms=50),
    )
    runner.register_handler(
        facet_name="billing.ProcessPayment",
        module_uri="handlers.billing",
        entrypoint="process_payment",
    )
    runner.start()  # blocks; auto-loads handlers from persistence
"""
EITHER = """
    import os

    from afl.runtime.agent_runner import AgentConfig, run_agent
    from handlers import register_all_handlers, register_all_registry_handlers

    def register(poller=None, runner=None):
        if poller:
            register_all_handlers(poller)
        if runner:
            register_all_registry_handlers(runner)

    if __name__ == "__main__":
        run_agent(AgentConfig(service_name="billing", server_group="shop", poll_interval_ms=50), register)
"""
PACKAGE = """
    import os
    from .billing import process_payment

    def register_all_handlers(poller):
        poller.register("billing.ProcessPayment", process_payment)

    def register_all_registry_handlers(runner):
        here = os.path.dirname(os.path.abspath(__file__))
        runner.register_handler("billing.ProcessPayment", f"file://{here}/billing.py", entrypoint="process_payment")
"""
BILLING = """
    from .shared import PREFIX

    def process_payment(payload: dict) -> dict:
        return {"transaction_id": f"{PREFIX}-{payload['amount']}", "status": "approved"}
"""
FLOW = """
namespace billing

event facet ProcessPayment(amount: Double, currency: String) => (transaction_id: String, status: String)

workflow Checkout(total: Double) => (receipt: String) andThen {
    payment = ProcessPayment(amount = $.total, currency = "USD")
    yield Checkout(receipt = payment.transaction_id)
}
"""


@pytest.mark.parametrize(
    ("agent", "variables"),
    [(REGISTRY, {}), (EITHER, {}), (EITHER, {"AFL_USE_REGISTRY": "1", "AFL_RUNNER_TOPICS": "billing.*"})],
    ids=["registry", "callbacks", "either-by-registry"],
)
def test_an_agent_of_the_reference_runs_unedited(tmp_path: Path, agent: str, variables: dict[str, str]) -> None:
    files = {
        "agent.py": agent,
        "handlers/__init__.py": PACKAGE,
        "handlers/billing.py": BILLING,
        "handlers/shared.py": "PREFIX = 'txn'",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    with SqliteStore(tmp_path / "work.db") as store:
        evaluator = Evaluator(store)
        paused = evaluator.execute(FLOW, {"total": 2.5})
        environment = child_environment(TREADLE_STORE=store.url, AFL_MONGODB_URL="mongodb://db:27017", **variables)
        process = subprocess.Popen([sys.executable, "agent.py"], cwd=tmp_path, env=environment)
        try:
            until(lambda: process.poll() is not None or evaluator.status(paused.workflow_id).status != "PAUSED", BOUND * 3)
        finally:
            process.terminate()
            process.wait(BOUND)
        result = evaluator.resume(paused.workflow_id)
        assert (result.error, result.outputs) == (None, {"receipt": "txn-2.5"})
        (server,) = store.list_servers()
        assert server.service_name in ("billing", "billing-runner")


def test_the_tools_of_a_runner_service_are_those_of_the_reference() -> None:
    from afl.runtime import Evaluator, MemoryStore
    from afl.runtime.agent import ToolRegistry
    from afl.runtime.entities import TaskDefinition
    from afl.runtime.runner import RunnerConfig, RunnerService

    seen: list[Any] = []
    registry = ToolRegistry()
    registry.register("CountDocuments", lambda payload: {"count": len(payload["docs"])})
    registry.set_default_handler(lambda name, payload: seen.append((name, payload["n"])))
    with MemoryStore() as store:
        service = RunnerService(persistence=store, evaluator=Evaluator(store), config=RunnerConfig(), tool_registry=registry)
        for name, data in (("ns.CountDocuments", {"docs": [1, 2]}), ("ns.Other", {"n": 1})):
            store.save_task(
                TaskDefinition(uuid=name, name=name, runner_id="r", workflow_id="w", flow_id="f", step_id="s", data=data)
            )
        assert service.poll_once() == 2
        states = [store.get_task(name) for name in ("ns.CountDocuments", "ns.Other")]
        assert [task and task.state for task in states] == [TaskState.COMPLETED] * 2
        found = store.run(store.engine.kernel.reads.list_tasks(kind="handler", name="ns.CountDocuments"))
        assert json.loads(found[0].result or "") == {"count": 2}
    assert seen == [("ns.Other", 1)]
