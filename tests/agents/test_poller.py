"""Sections 4 and 6 of the agent SDK: `AgentPoller`, and what becomes of a callback's errors."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict

import pytest
from tests.agents.scenes import ONE, PAY, add, one, started, until
from tests.limits import BOUND

from treadle.agents import AgentPoller, AgentPollerConfig, Evaluator, ExecutionStatus, MemoryStore, TaskState, WrongThread
from treadle.model.errors import InvalidInput, InvalidName, InvalidPolicy, Refused


def pay(payload: dict) -> dict:
    return {"id": f"t-{payload['amount']}", "status": "ok"}


async def mail(payload: dict) -> dict:
    await asyncio.sleep(0)
    return {"sent": bool(payload["to"])}


def a_poller(store: MemoryStore, **config: object) -> AgentPoller:
    return AgentPoller(store, Evaluator(store), AgentPollerConfig(**config))  # type: ignore[arg-type]


def test_the_configuration_has_the_defaults_of_the_specification():
    config = asdict(AgentPollerConfig())
    assert config.pop("server_name")
    assert config == {
        "service_name": "afl-agent",
        "server_group": "default",
        "task_list": "default",
        "poll_interval_ms": 2000,
        "max_concurrent": 5,
        "heartbeat_interval_ms": 10000,
    }


@pytest.mark.parametrize("name", ["poll_interval_ms", "max_concurrent", "heartbeat_interval_ms"])
def test_an_invalid_configuration_is_rejected(memory, name):
    with pytest.raises(InvalidPolicy, match=name):
        a_poller(memory, **{name: 0})


def test_registered_names_are_returned(memory):
    poller = a_poller(memory)
    poller.register("billing.Pay", pay)
    poller.register("Message", mail)
    assert poller.registered_names() == ["Message", "billing.Pay"]


def test_invalid_registrations_are_rejected_immediately(memory):
    poller = a_poller(memory)
    with pytest.raises(InvalidName):
        poller.register("no name", pay)
    with pytest.raises(InvalidInput, match="function"):
        poller.register("x.Y", {"not": "callable"})
    with pytest.raises(InvalidInput, match="reserved for the engine"):
        poller.register("afl:execute", pay)


@pytest.mark.postgres
def test_the_callback_must_get_the_payload_as_a_dict_and_its_dict_becomes_the_result(persistence):
    evaluator = Evaluator(persistence)
    run_id, _ = one(evaluator, 7.5)
    poller = AgentPoller(persistence, evaluator)
    seen: list[dict] = []
    poller.register("billing.Pay", lambda payload: seen.append(payload) or {"id": "r", "status": "s"})
    assert poller.poll_once() == 1
    assert {key: value for key, value in seen[0].items() if not key.startswith("_")} == {"amount": 7.5}
    assert (seen[0]["_facet_name"], seen[0]["_attempt"], seen[0]["_retry_count"]) == ("billing.Pay", 1, 0)
    assert evaluator.resume(run_id).outputs == {"receipt": "r"}


def test_an_exact_name_wins_over_a_short_one(memory, evaluator):
    poller = AgentPoller(memory, evaluator)
    poller.register("Pay", lambda _: {"id": "short", "status": ""})
    poller.register("billing.Pay", lambda _: {"id": "exact", "status": ""})
    run_id, _ = one(evaluator)
    poller.poll_once()
    assert evaluator.resume(run_id).outputs == {"receipt": "exact"}


def test_poll_once_must_not_start_threads_or_leave_tasks_behind(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    poller.register("billing.Pay", pay)
    poller.register("billing.Message", mail)
    run_id = evaluator.execute(PAY, {"total": 1.0}).workflow_id

    async def tasks() -> int:
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    threads, background = set(threading.enumerate()), persistence.run(tasks())
    started: list[str] = []
    before, threading.Thread.start = threading.Thread.start, lambda thread: started.append(thread.name)  # type: ignore[method-assign]
    try:
        assert [poller.poll_once(), poller.poll_once(), poller.poll_once()] == [1, 1, 0]
    finally:
        threading.Thread.start = before  # type: ignore[method-assign]
    assert started == []
    assert set(threading.enumerate()) <= threads
    until(lambda: persistence.run(tasks()) <= background)  # some of the start may have been under way before
    assert evaluator.resume(run_id).outputs == {"receipt": "t-1.0", "sent": True}
    assert persistence.list_servers() == []


def test_poll_once_claims_up_to_max_concurrent_and_returns_the_count(memory):
    poller = a_poller(memory, max_concurrent=3)
    poller.register("billing.Pay", pay)
    for n in range(5):
        add(memory, amount=n)
    assert [poller.poll_once(), poller.poll_once(), poller.poll_once()] == [3, 2, 0]


def test_poll_once_inside_an_event_loop_is_refused_with_a_clear_error(memory):
    async def call() -> int:
        return a_poller(memory).poll_once()

    with pytest.raises(WrongThread, match="to_thread"):
        asyncio.run(call())


def test_poll_once_without_callbacks_claims_no_task(memory, evaluator):
    one(evaluator)
    assert a_poller(memory).poll_once() == 0


def test_a_poller_claims_only_tasks_of_its_list(memory, evaluator):
    evaluator.execute(ONE, {"total": 1.0}, task_list="other")
    here, there = a_poller(memory), a_poller(memory, task_list="other")
    for poller in (here, there):
        poller.register("Pay", pay)
    assert (here.poll_once(), there.poll_once()) == (0, 1)


def broken(_: dict) -> dict:
    raise RuntimeError("no money in it")


def test_a_callback_that_raises_must_fail_the_step_and_the_task_and_must_not_end_the_loop(persistence):
    """Section 6.1, the three MUSTs, in one cycle."""
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    poller.register("billing.Pay", broken)
    run_id, step_id = one(evaluator)
    assert poller.poll_once() == 1
    task = persistence.get_task_for_step(step_id)
    assert (task.state, task.error["message"]) == (TaskState.FAILED, "no money in it")
    assert persistence.get_step(step_id).state == "state.statement.Error"
    assert evaluator.status(run_id).status is ExecutionStatus.ERROR
    assert poller.poll_once() == 0


def test_an_error_must_call_fail_step_of_the_evaluator(memory):
    told: list[tuple[str, str]] = []

    class Spy(Evaluator):
        def fail_step(self, step_id: str, error_message: str, **options) -> None:
            told.append((step_id, error_message))
            super().fail_step(step_id, error_message, **options)

    spy = Spy(memory)
    poller = AgentPoller(memory, spy)
    poller.register("Pay", broken)
    _, step_id = one(spy)
    poller.poll_once()
    assert told == [(step_id, "no money in it")]


def test_a_failed_task_stays_failed_until_an_operator_retries_it(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    calls: list[int] = []

    def flaky(payload: dict) -> dict:
        calls.append(payload["_attempt"])
        if len(calls) == 1:
            raise RuntimeError("not yet")
        return pay(payload)

    poller.register("Pay", flaky)
    run_id, step_id = one(evaluator)
    assert [poller.poll_once(), poller.poll_once()] == [1, 0]
    persistence.retry_task(persistence.get_task_for_step(step_id).uuid)
    assert poller.poll_once() == 1
    assert evaluator.resume(run_id).outputs == {"receipt": "t-2.5"}
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        ([1], "unexpected_result"),
        ("text", "unexpected_result"),
        ({"id": float("nan")}, "invalid_payload"),
        ({"id": object()}, "invalid_payload"),
    ],
)
def test_a_callback_that_returns_no_storable_dict_fails_its_task_with_the_reason(memory, evaluator, returned, code):
    poller = AgentPoller(memory, evaluator)
    poller.register("Pay", lambda _: returned)
    _, step_id = one(evaluator)
    assert poller.poll_once() == 1
    task = memory.get_task_for_step(step_id)
    assert (task.state, task.error["code"]) == (TaskState.FAILED, code)


def test_a_callback_that_returns_none_succeeds_with_an_empty_result(memory, evaluator):
    poller = AgentPoller(memory, evaluator)
    poller.register("Pay", lambda _: None)
    _, step_id = one(evaluator)
    poller.poll_once()
    assert memory.get_task_for_step(step_id).state == TaskState.COMPLETED


def test_fields_added_to_a_payload_by_runners_are_not_returned(memory, evaluator):
    poller = AgentPoller(memory, evaluator)
    poller.register("Pay", lambda payload: payload | {"id": "x", "status": ""})
    _, step_id = one(evaluator)
    poller.poll_once()
    assert memory.get_step(step_id).returns == {"amount": 2.5, "id": "x", "status": ""}


def test_a_payload_with_a_reserved_key_fails_its_task_and_the_loop_continues(memory):
    poller = a_poller(memory)
    poller.register("x.Y", lambda _: {})
    bad = memory.run(memory.engine.enqueue("x.Y", {"_facet_name": "lies"})).id
    good = add(memory, "x.Y", fine=1)
    assert poller.poll_once() == 2
    assert memory.get_task(bad).error["code"] == "reserved_key"
    assert memory.get_task(good).state == TaskState.COMPLETED


def test_a_handler_writes_lines_about_its_step_and_updates_it(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    partial: list[dict] = []
    run_id, step_id = one(evaluator)

    def stream(payload: dict) -> dict:
        payload["_step_log"]("half way", "success", {"percent": 50})
        payload["_update_step"]({"status": "half"})
        partial.append(persistence.get_step(step_id).returns)
        return {"id": "x"}

    poller.register("Pay", stream)
    poller.poll_once()
    assert partial == [{"status": "half"}]
    assert persistence.get_step(step_id).returns == {"status": "half", "id": "x"}
    lines = [line for line in persistence.get_step_logs(step_id) if line["source"] == "handler"]
    assert [(line["level"], line["message"], line["details"]) for line in lines] == [("success", "half way", {"percent": 50})]
    assert evaluator.resume(run_id).status is ExecutionStatus.COMPLETED


def test_start_blocks_and_handles_tasks_until_stop_and_a_workflow_finishes_with_pollers_alone(persistence):
    evaluator = Evaluator(persistence)
    poller = AgentPoller(persistence, evaluator)
    poller.register("billing.Pay", pay)
    poller.register("Message", mail)
    failing = evaluator.execute(PAY, {"total": 0.0}).workflow_id
    with started(poller):
        run_id = evaluator.execute(PAY, {"total": 4.0}).workflow_id
        until(lambda: evaluator.status(run_id).status is ExecutionStatus.COMPLETED)
        until(lambda: evaluator.status(failing).status is ExecutionStatus.COMPLETED)
        assert poller.is_running
        with pytest.raises(Refused, match="already running"):
            poller.start()
    assert not poller.is_running
    assert evaluator.resume(run_id).outputs == {"receipt": "t-4.0", "sent": True}


def test_a_callback_that_raises_never_ends_the_loop_of_start(memory, evaluator):
    poller = AgentPoller(memory, evaluator)
    poller.register("billing.Pay", lambda payload: broken(payload) if payload["amount"] < 0 else pay(payload))
    poller.register("x.Exit", lambda _: exit(1))
    with started(poller):
        bad, _ = one(evaluator, -1.0)
        exits = add(memory, "x.Exit")
        until(lambda: evaluator.status(bad).status is ExecutionStatus.ERROR)
        until(lambda: memory.get_task(exits).state == TaskState.FAILED)
        good, _ = one(evaluator, 1.0)
        until(lambda: evaluator.status(good).status is ExecutionStatus.COMPLETED)


def test_start_runs_up_to_max_concurrent_tasks(memory):
    poller = a_poller(memory, max_concurrent=3)
    together, most, lock = [0], [0], threading.Lock()
    meet = threading.Barrier(3, timeout=BOUND)

    def work(_: dict) -> dict:
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        meet.wait()
        with lock:
            together[0] -= 1
        return {}

    poller.register("x.Work", work)
    ids = [add(memory, "x.Work") for _ in range(9)]
    with started(poller):
        until(lambda: all(memory.get_task(each).state == TaskState.COMPLETED for each in ids))
    assert most == [3]


def test_an_agent_stopped_by_a_callback_can_be_restarted(memory):
    poller = a_poller(memory)
    poller.register("x.Stop", lambda _: poller.stop() or {})
    for _ in range(2):
        task_id = add(memory, "x.Stop")
        poller.start()
        assert memory.get_task(task_id).state == TaskState.COMPLETED


def test_scripts_and_large_expansions_continue_with_pollers_alone(persistence):
    source = """
    namespace s {
        event facet Item(n: Long) => (n: Long)
        facet Twice(n: Long) => (n: Long) script python "result['n'] = params['n'] * 2"
        workflow W(items: [Long]) => (total: [Long]) andThen foreach i in $.items {
            a = Item(n = $.i)
            b = Twice(n = a.n)
            yield W(total = [b.n])
        }
    }
    """
    evaluator = Evaluator(persistence)
    run_id = evaluator.execute(source, {"items": [1, 2, 3]}).workflow_id
    poller = AgentPoller(persistence, evaluator)
    poller.register("Item", lambda payload: {"n": payload["n"]})
    assert poller.poll_once() == 3
    assert sorted(evaluator.resume(run_id).outputs["total"]) == [2, 4, 6]


def test_an_ast_can_be_cached_and_is_handed_to_resume(memory):
    given: list[object] = []

    class Spy(Evaluator):
        def resume(self, workflow_id_val: str, workflow_ast=None, *args, **options):
            given.append(workflow_ast)
            return super().resume(workflow_id_val, workflow_ast, *args, **options)

    spy = Spy(memory)
    poller = AgentPoller(memory, spy)
    poller.register("Pay", pay)
    run_id, _ = one(spy)
    poller.cache_workflow_ast(run_id, {"type": "WorkflowDecl"})
    poller.poll_once()
    assert given == [{"type": "WorkflowDecl"}]


def test_a_catch_of_the_flow_sees_the_same_error_however_the_task_was_handled(memory, evaluator):
    source = """
    namespace c {
        event facet Risky() => (ok: Boolean)
        workflow W() => (kind: String, said: String) andThen {
            r = Risky()
        } catch {
            yield W(kind = $.error_type, said = $.error)
        }
    }
    """
    poller = AgentPoller(memory, evaluator)
    poller.register("c.Risky", broken)
    first = evaluator.execute(source).workflow_id
    poller.poll_once()
    with started(poller):
        second = evaluator.execute(source).workflow_id
        until(lambda: evaluator.status(second).status is ExecutionStatus.COMPLETED)
    assert evaluator.resume(first).outputs == evaluator.resume(second).outputs == {"kind": "RuntimeError", "said": "no money in it"}
