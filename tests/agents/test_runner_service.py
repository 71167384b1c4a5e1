"""Section 7 of the agent SDK: `RunnerService`, its tools, its status page, its signals, and its sweep."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import asdict

import pytest
from tests.agents.scenes import ONE, PAY, add, one, started, until
from tests.engines import SHARED, url_of
from tests.limits import BOUND
from tests.ports import free_port

from treadle.agents import (
    Evaluator,
    ExecutionStatus,
    Persistence,
    RunnerConfig,
    RunnerService,
    ServerState,
    TaskDefinition,
    TaskState,
    ToolRegistry,
)
from treadle.model.errors import InvalidInput, InvalidPolicy, Refused
from treadle.model.tasks import Task
from treadle.settings import Settings


def a_service(store: Persistence, tools: ToolRegistry, **config: object) -> RunnerService:
    given = RunnerConfig(**{"http_port": free_port(), **config})  # type: ignore[arg-type]
    return RunnerService(store, Evaluator(store), given, tools)


def tools_of(**tools: object) -> ToolRegistry:
    registry = ToolRegistry()
    for name, tool in tools.items():
        registry.register(name.replace("__", "."), tool)  # type: ignore[arg-type]
    return registry


def get(service: RunnerService, path: str) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.http_port}{path}", timeout=BOUND) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_configuration_has_the_defaults_of_the_specification():
    config = asdict(RunnerConfig())
    assert config.pop("server_name")
    assert config == {
        "server_group": "default",
        "service_name": "afl-runner",
        "topics": [],
        "task_list": "default",
        "poll_interval_ms": 2000,
        "heartbeat_interval_ms": 10000,
        "lock_duration_ms": 60000,
        "lock_extend_interval_ms": 20000,
        "max_concurrent": 5,
        "shutdown_timeout_ms": 30000,
        "http_port": 8080,
        "http_max_port_attempts": 20,
        "http_host": "127.0.0.1",
    }


@pytest.mark.parametrize("bad", [{"lock_extend_interval_ms": 0}, {"http_port": 70_000}, {"http_max_port_attempts": 0}])
def test_an_invalid_configuration_is_rejected(bad):
    with pytest.raises(InvalidPolicy):
        RunnerConfig(**bad)


def test_a_tool_registry_matches_exact_then_short_then_default():
    tools = ToolRegistry()
    tools.register("Pay", lambda _: {"by": "short"})
    tools.register("billing.Pay", lambda _: {"by": "exact"})
    assert tools.dispatch("billing.Pay", {}) == {"by": "exact"}
    assert tools.dispatch("shop.Pay", {}) == {"by": "short"}
    assert not tools.has_handler("x.Y")
    with pytest.raises(InvalidInput, match=r"x\.Y"):
        tools.dispatch("x.Y", {})
    tools.register_default(lambda _: {"by": "default"})
    assert tools.dispatch("x.Y", {}) == {"by": "default"}
    tools.register("Pay", lambda _: {"by": "later"})
    assert tools.dispatch("shop.Pay", {}) == {"by": "later"}
    with pytest.raises(InvalidInput):
        tools.register("afl:execute", lambda _: {})
    with pytest.raises(InvalidInput):
        tools.register("q.R", "no function")  # type: ignore[arg-type]


@pytest.mark.postgres
def test_a_service_handles_event_tasks_and_starts_workflows_by_task(persistence):
    service = a_service(persistence, tools_of(billing__Pay=lambda p: {"id": f"t-{p['amount']}", "status": ""}))
    service.tools.register_default(lambda _: {"sent": True})
    evaluator = Evaluator(persistence)
    flow_id = persistence.run(persistence.engine.kernel.flows.publish("pay", [("pay.afl", PAY)])).flow_id
    with started(service):
        run_id = evaluator.execute(PAY, {"total": 1.0}).workflow_id
        task = TaskDefinition(
            uuid="",
            name="afl:execute",
            data={"flow_id": "pay", "workflow_name": "billing.Checkout", "inputs": {"total": 2.0}, "runner_id": "r-1"},
        )
        persistence.save_task(task)
        again = TaskDefinition(uuid="", name="afl:execute", data=dict(task.data or {}))
        persistence.save_task(again)
        until(lambda: evaluator.status(run_id).status is ExecutionStatus.COMPLETED)
        until(lambda: persistence.get_task(again.uuid).state == TaskState.COMPLETED)
        until(lambda: persistence.get_task(task.uuid).state == TaskState.COMPLETED)
        until(lambda: len(persistence.get_runners_by_state("completed")) == 2)
    by_task = next(runner for runner in persistence.get_runners_by_state("completed") if runner.uuid != run_id)
    assert (by_task.flow_id, by_task.outputs) == (flow_id, {"receipt": "t-2.0", "sent": True})


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({}, "invalid_input"),
        ({"flow_id": "nowhere"}, "flow_not_found"),
        ({"flow_id": "pay", "inputs": []}, "invalid_inputs"),
        ({"flow_id": "pay", "inputs": {"total": "much"}}, "invalid_inputs"),
        ({"flow_id": "pay", "inputs": {"_total": 1}}, "invalid_payload"),
        ({"flow_id": "pay", "workflow_name": "No"}, "workflow_not_found"),
    ],
)
def test_an_invalid_start_by_task_fails_that_task(memory, data, code):
    memory.run(memory.engine.kernel.flows.publish("pay", [("pay.afl", ONE)]))
    service = a_service(memory, ToolRegistry())
    task = TaskDefinition(uuid="", name="afl:execute", data=data)
    memory.save_task(task)
    assert service.poll_once() == 1
    assert memory.get_task(task.uuid).error["code"] == code


def test_health_and_status_are_served_on_the_first_free_port(memory):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = a_service(memory, tools_of(x__Y=lambda _: {}), http_port=port)
        with started(service):
            assert service.http_port != port
            done = add(memory, "x.Y")
            until(lambda: memory.get_task(done).state == TaskState.COMPLETED)
            assert get(service, "/health") == (200, {"ok": True})
            code, status = get(service, "/status")
            assert (code, status["server_id"], status["state"], status["running"]) == (200, service.server_id, "running", True)
            assert status["uptime_ms"] >= 0
            assert status["config"]["http_port"] == port
            until(lambda: get(service, "/status")[1]["handled"] == {"x.Y": {"handled": 1, "not_handled": 0}})
            assert get(service, "/elsewhere")[0] == 404
    assert service.http_port is None


def test_a_full_port_range_is_reported_before_any_claim(memory):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = a_service(memory, ToolRegistry(), http_port=taken.getsockname()[1], http_max_port_attempts=1)
        with pytest.raises(Refused, match="http_port"):
            service.start()
    assert memory.list_servers() == []


def test_topics_choose_by_glob_and_the_default_handler_obeys_them(memory):
    service = a_service(memory, ToolRegistry(lambda _: {}), topics=["osm.*", "exact.Name"])
    names = ("osm.Cache", "exact.Name", "billing.Pay")
    ids = {name: add(memory, name) for name in names}
    assert service.poll_once() == 2
    assert [memory.get_task(ids[name]).state for name in names] == ["completed", "completed", "pending"]


def test_start_up_messages_name_idle_topics_and_unserved_facets(memory):
    memory.run(memory.engine.kernel.flows.publish("pay", [("pay.afl", PAY)]))
    service = a_service(memory, tools_of(Pay=lambda _: {}), topics=["nothing.*", "billing.*"])
    assert service.check() == [
        "the topic pattern 'nothing.*' matches no registered handler",
        "the topic pattern 'billing.*' matches no registered handler",
        "no handler for the event facet billing.Message",
    ]


def test_a_tool_that_raises_fails_its_step_and_the_service_continues(memory):
    def broken(_: dict) -> dict:
        raise ValueError("broken tool")

    evaluator = Evaluator(memory)
    service = RunnerService(memory, evaluator, RunnerConfig(http_port=free_port()), tools_of(Pay=broken, x__Y=lambda _: {}))
    with started(service):
        run_id, _ = one(evaluator)
        until(lambda: evaluator.status(run_id).status is ExecutionStatus.ERROR)
        assert "broken tool" in evaluator.status(run_id).error
        assert memory.run(memory.engine.result(add(memory, "x.Y"), timeout=BOUND)) == {}


def test_work_that_does_not_end_within_shutdown_timeout_is_released_for_others(memory):
    gate = threading.Event()

    def slow(_: dict) -> dict:
        assert gate.wait(BOUND)
        return {}

    service = a_service(memory, tools_of(x__Slow=slow), shutdown_timeout_ms=50)
    with started(service):
        task_id = add(memory, "x.Slow")
        until(lambda: memory.get_task(task_id).state == TaskState.RUNNING)
    assert memory.get_task(task_id).state == TaskState.PENDING
    gate.set()


def test_a_lock_on_a_work_item_is_extended_while_it_is_processed_so_that_no_other_runner_takes_it(persistence):
    """7.4, 10.5: the handler goes on for longer than the lock's duration, by the store's own times."""
    gate = threading.Event()

    def slow(_: dict) -> dict:
        assert gate.wait(BOUND)
        return {}

    service = a_service(persistence, tools_of(x__Slow=slow), lock_duration_ms=5000, lock_extend_interval_ms=500)
    with started(service):
        task_id = add(persistence, "x.Slow")
        until(lambda: persistence.get_task(task_id).state == TaskState.RUNNING)

        def held() -> Task:
            return persistence.run(persistence.engine.kernel.reads.get_task(task_id))

        first = held()
        assert (first.owner_id, (first.wake_at or 0) - (first.claimed_at or 0)) == (service.server_id, 5000)
        until(lambda: (held().heartbeat_at or 0) > (first.wake_at or 0))
        assert persistence.claim_task(["x.Slow"]) is None
        assert held().claim == first.claim
        gate.set()
        until(lambda: persistence.get_task(task_id).state == TaskState.COMPLETED)


def test_a_service_handles_max_concurrent_work_items_concurrently_in_threads(memory):
    meet = threading.Barrier(3, timeout=BOUND)
    names: set[str] = set()

    def work(_: dict) -> dict:
        meet.wait()
        names.add(threading.current_thread().name)
        return {}

    with started(a_service(memory, tools_of(x__Work=work), max_concurrent=3)):
        ids = [add(memory, "x.Work") for _ in range(6)]
        until(lambda: all(memory.get_task(each).state == TaskState.COMPLETED for each in ids))
    assert len(names) == 3


SERVING = """
import sys
from treadle.agents import Evaluator, RunnerConfig, RunnerService, ToolRegistry, open_persistence
store = open_persistence(sys.argv[1])
service = RunnerService(store, Evaluator(store), RunnerConfig(http_port=int(sys.argv[2])), ToolRegistry())
service.on_started = lambda: print(service.server_id, flush=True)
service.start()
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_in_a_main_thread_stops_at_sigterm_and_sigint(tmp_path, number):
    url = f"sqlite:///{tmp_path / 'x.db'}"
    command = [sys.executable, "-c", SERVING, url, str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        server_id = service.stdout.readline().strip()
        service.send_signal(number)
        assert service.stdout.read() == "ended\n"
        assert service.wait(BOUND) == 0
    with Persistence(url, settings=Settings()) as store:
        assert store.get_server(server_id).state == ServerState.SHUTDOWN


def lose_tasks(store: Persistence, request: pytest.FixtureRequest) -> None:
    """A state that the engine never produces: the tasks of all steps are gone."""
    statement = "delete from {}tasks where step_id is not null"
    if store.url.startswith("sqlite"):
        import apsw

        around = apsw.Connection(store.url.removeprefix("sqlite:///"))
        around.execute(statement.format(""))
        around.close()
        return
    schema, admin = request.getfixturevalue("postgres_schema"), request.getfixturevalue("postgres_admin")
    admin.execute(statement.format(f'"{schema}".'))


@pytest.mark.parametrize("kind", SHARED)
def test_the_sweep_repairs_a_step_without_a_task_and_logs_it(kind, request, tmp_path):
    with Persistence(url_of(kind, request, tmp_path), settings=Settings()) as store:
        evaluator = Evaluator(store)
        run_id, step_id = one(evaluator)
        service = RunnerService(store, evaluator, RunnerConfig(), tools_of(Pay=lambda _: {"id": "repaired", "status": ""}))
        assert service.sweep() == 0
        lose_tasks(store, request)
        assert store.get_task_for_step(step_id) is None
        assert service.sweep() == 1
        repaired = store.run(store.engine.kernel.store.log.list_transitions(run_id))[-1]
        assert (repaired.transition, repaired.from_state, repaired.to_state) == ("repair", "running", "running")
        assert repaired.actor == service.server_id
        assert json.loads(repaired.data) == {"steps": [step_id]}
        assert [service.sweep() for _ in range(3)] == [0, 0, 0], "there is nothing to repair any more"
        assert service.poll_once() == 1
        assert evaluator.resume(run_id).outputs == {"receipt": "repaired"}
        assert [transition.transition for transition in store.run(store.engine.kernel.store.log.list_transitions(run_id))] == [
            "start",
            "repair",
            "succeed",
        ]
        assert store.run(store.engine.kernel.verify()).problems == ()


def test_the_sweep_does_not_change_a_complete_run(memory, evaluator):
    run_id, _ = one(evaluator)
    service = RunnerService(memory, evaluator, RunnerConfig(), tools_of())
    assert [service.sweep() for _ in range(3)] == [0, 0, 0]
    assert [transition.transition for transition in memory.run(memory.engine.kernel.store.log.list_transitions(run_id))] == [
        "start"
    ]


def test_the_sweep_leaves_durable_functions_alone(memory, evaluator):
    """These see to their own tasks; there is no flow to look them over by."""
    engine = memory.engine

    @engine.function("waits")
    async def waits(payload: dict, ctx: object) -> None:
        return None

    run_id = memory.run(engine.start_function("waits", {})).id
    service = RunnerService(memory, evaluator, RunnerConfig(), tools_of())
    assert [service.sweep() for _ in range(3)] == [0, 0, 0]
    assert memory.run(engine.kernel.runs.repair(run_id)) == []
    assert [transition.transition for transition in memory.run(engine.kernel.store.log.list_transitions(run_id))] == ["start"]
