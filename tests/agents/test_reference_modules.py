"""The modules of the reference beside its agents: parser, validator, emitter, workflows of a program, files, stores."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.agents.scenes import one

from afl.ast_utils import find_all_workflows, find_workflow, normalize_program_ast
from afl.emitter import JSONEmitter, emit_dict, emit_json
from afl.parser import AFLParser, ParseError
from afl.runtime import MongoStore
from afl.runtime.agent_runner import AgentConfig, make_store
from afl.runtime.storage import get_storage_backend, localize
from afl.validator import validate
from treadle.agents import (
    ClaudeAgentRunner,
    Evaluator,
    MemoryStore,
    Persistence,
    TaskDefinition,
    TaskState,
    ToolRegistry,
    UnknownStep,
)
from treadle.model.errors import InvalidInput, InvalidStoreUrl, Refused

SOURCE = """
namespace shop.orders {
    event facet Pay(amount: Double) => (id: String)
    workflow Checkout(total: Double) => (receipt: String) andThen {
        p = Pay(amount = $.total)
        yield Checkout(receipt = p.id)
    }
}
workflow Plain() => (n: Long) andThen { yield Plain(n = 1) }
"""


def test_a_program_is_parsed_validated_emitted_and_run_as_by_the_reference(memory: MemoryStore) -> None:
    ast = AFLParser().parse(SOURCE, "shop.afl")
    assert validate(ast).errors == []
    program = json.loads(JSONEmitter(include_locations=False).emit(ast))
    assert "location" not in emit_json(ast, include_locations=False)
    assert emit_dict(ast)["type"] == "Program"
    workflow = find_workflow(program, "shop.orders.Checkout")
    assert workflow is not None
    assert Evaluator(memory).execute(find_workflow(program, "Plain"), {}, program).outputs == {"n": 1}
    assert Evaluator(memory).execute(workflow, {"total": 2.0}, program).status == "PAUSED"


def test_errors_beyond_the_grammar_are_reported_by_the_validator() -> None:
    ast = AFLParser().parse("facet A(x: Lnog)")
    result = validate(ast)
    assert not result.is_valid
    assert [(error.line, error.column) for error in result.errors] == [(1, 12)]
    assert "Lnog" in result.errors[0].message
    with pytest.raises(ValueError, match="Lnog"):
        emit_dict(ast)
    with pytest.raises(ParseError) as failed:
        AFLParser().parse("facet A(")
    assert failed.value.line == 1


@pytest.mark.parametrize("name", ["Checkout", "shop.orders.Checkout"])
def test_workflows_are_found_by_short_and_qualified_name(name: str) -> None:
    program = emit_dict(AFLParser().parse(SOURCE))
    workflow = find_workflow(program, name)
    assert workflow is not None
    assert workflow["name"] == "Checkout"
    assert find_workflow(program, "Pay") is None
    assert [workflow["name"] for workflow in find_all_workflows(program)] == ["Checkout", "Plain"]
    grouped = {"type": "Program", "workflows": find_all_workflows(program)}
    assert [part["name"] for part in normalize_program_ast(grouped)["declarations"]] == ["Checkout", "Plain"]


def test_files_of_handlers_are_local(tmp_path: Path) -> None:
    storage = get_storage_backend(str(tmp_path))
    place = storage.join(str(tmp_path), "a", "b.txt")
    storage.makedirs(storage.dirname(place))
    with storage.open(place, "w") as file:
        file.write("text")
    assert (storage.exists(place), storage.isfile(place), storage.getsize(place)) == (True, True, 4)
    assert (storage.listdir(storage.dirname(place)), storage.basename(localize(place))) == (["b.txt"], "b.txt")
    storage.rmtree(storage.dirname(place))
    assert not storage.isdir(storage.dirname(place))
    with pytest.raises(InvalidInput, match="hdfs"):
        get_storage_backend("hdfs://cluster/file")


def test_each_database_is_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_STORE", raising=False)
    url = f"sqlite:///{tmp_path}/work.db"
    with MongoStore(url, "team_a") as a, MongoStore(url, "team_b") as b, MongoStore(url) as default:
        stores = [a, b, default]
        for store in stores:
            store.save_task(TaskDefinition(uuid="", name="ns.Do", data={"of": store.kernel.settings.namespace}))
        assert [store.kernel.settings.namespace for store in stores] == ["team_a", "team_b", "default"]
        for store in stores:
            task = store.claim_task(["ns.Do"])
            assert task is not None
            assert task.data == {"of": store.kernel.settings.namespace}
            assert store.claim_task(["ns.Do"]) is None


def test_a_store_must_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TREADLE_STORE", "AFL_MONGODB_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidStoreUrl, match="TREADLE_STORE"):
        MongoStore()
    assert list(tmp_path.iterdir()) == []
    with make_store() as store:
        assert isinstance(store, MemoryStore)
    monkeypatch.setenv("AFL_MONGODB_URL", f"sqlite:///{tmp_path}/work.db")
    monkeypatch.setenv("AFL_MONGODB_DATABASE", "team_a")
    with make_store() as store:
        assert (store.kernel.settings.namespace, "work.db" in store.url) == ("team_a", True)
    config = AgentConfig(service_name="billing", server_group="shop")
    assert (config.poll_interval_ms, config.max_concurrent, config.task_list) == (2000, 5, "default")


UNKNOWN = ["unknown", "", "00000000-0000-7000-8000-000000000000", "a b", "x" * 300]


@pytest.mark.parametrize("text", UNKNOWN)
def test_reads_of_an_unknown_id_return_none(persistence: Persistence, text: str) -> None:
    assert persistence.get_step(text) is None
    assert not persistence.step_exists(text)
    assert persistence.get_task(text) is None
    assert persistence.get_task_for_step(text) is None
    assert persistence.get_step_logs(text) == []
    assert persistence.get_runner(text) is None
    assert persistence.get_steps_by_workflow(text) == []
    assert persistence.get_workflow_root(text) is None
    assert persistence.get_server(text) is None
    assert persistence.check_lock(text) is None
    evaluator = Evaluator(persistence)
    for call in (evaluator.continue_step, evaluator.retry_step, lambda step_id: evaluator.fail_step(step_id, "no")):
        with pytest.raises(UnknownStep):
            call(text)


@pytest.mark.parametrize("state", [TaskState.PENDING, TaskState.RUNNING])
def test_a_second_live_task_of_a_step_is_refused(persistence: Persistence, state: str) -> None:
    evaluator = Evaluator(persistence)
    run_id, step_id = one(evaluator)
    second = TaskDefinition(uuid="", name="billing.Pay", workflow_id=run_id, step_id=step_id, state=state)
    with pytest.raises(Refused, match="live task"):
        persistence.save_task(second)
    task = persistence.claim_task(["Pay"])
    assert task is not None
    with pytest.raises(Refused, match="live task"):
        persistence.save_task(second)
    assert len(persistence.get_tasks_by_facet("billing.Pay")) == 1
    evaluator.continue_step(step_id, {"id": "r"})
    saved = [TaskDefinition(uuid="", name="billing.Pay", step_id=step_id) for _ in range(2)]
    persistence.save_task(saved[0])
    with pytest.raises(Refused, match="live task"):
        persistence.save_task(saved[1])
    assert evaluator.resume(run_id).outputs == {"receipt": "r"}


def _cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize("cancel", [_cancels_itself, lambda: (_ for _ in ()).throw(asyncio.CancelledError)], ids=["task", "raised"])
def test_a_canceled_async_tool_fails_its_step_and_leaves_no_task(persistence: Persistence, cancel: Any) -> None:
    tools = ToolRegistry()

    async def pay(payload: dict) -> dict:
        if payload["amount"] < 0:
            next(iter(cancel() or ()), None)
            await asyncio.Event().wait()
        return {"id": "r", "status": "s"}

    tools.register("Pay", pay)
    evaluator = Evaluator(persistence)
    runner = ClaudeAgentRunner(evaluator, persistence, tool_registry=tools, model="m")
    source = """
    namespace billing {
        event facet Pay(amount: Double) => (id: String, status: String)
        workflow One(total: Double) => (receipt: String) andThen { p = Pay(amount = $.total) yield One(receipt = p.id) }
    }
    """

    async def tasks() -> int:
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    threads, background = set(threading.enumerate()), persistence.run(tasks())
    failed = runner.run(source, {"total": -1.0})
    assert failed.status == "ERROR"
    assert "CancelledError" in failed.error
    assert persistence.get_tasks_by_state(TaskState.RUNNING) == []
    assert runner.run(source, {"total": 1.0}).outputs == {"receipt": "r"}
    assert persistence.run(tasks()) <= background
    assert {thread for thread in threading.enumerate() if thread.name.startswith("treadle-lease")} <= threads
