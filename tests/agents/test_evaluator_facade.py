"""The evaluator as agents use it: execute, resume, continue, fail, retry, update (sections 2, 6, 10)."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.agents.scenes import MANY, ONE, PAY, one

from treadle.agents import (
    Evaluator,
    ExecutionStatus,
    RunnerConfig,
    RunnerService,
    TaskDefinition,
    TaskState,
    ToolRegistry,
    UnknownStep,
    WrongThread,
)
from treadle.kernel.store.queries import TaskFilter
from treadle.lang import compile_sources
from treadle.model.errors import IllegalTransition, InvalidInput

NOBODY = "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a71"


@pytest.mark.postgres
def test_execute_returns_paused_at_a_fixed_point_with_a_waiting_step(persistence):
    result = Evaluator(persistence).execute(PAY, {"total": 1.0})
    assert (result.status, result.success, result.outputs, result.error) == (ExecutionStatus.PAUSED, True, {}, None)
    assert [task.name for task in persistence.get_pending_tasks()] == ["billing.Pay"]


def test_the_task_of_a_waiting_step_is_there_when_execute_returns(persistence):
    """2.1: made together with the step, in the same commit."""
    run_id, step_id = one(Evaluator(persistence), 2.5)
    step, task = persistence.get_step(step_id), persistence.get_task_for_step(step_id)
    assert (step.state, step.task_id) == ("state.EventTransmit", task.uuid)
    assert (task.name, task.state, task.step_id, task.workflow_id, task.data) == (
        "billing.Pay",
        TaskState.PENDING,
        step_id,
        run_id,
        {"amount": 2.5},
    )
    version = persistence.run(persistence.engine.kernel.runs.get_run(run_id)).version
    assert version == 0, "one commit has brought the run here"


def test_a_workflow_is_claimed_continued_and_resumed_to_completion(persistence):
    evaluator = Evaluator(persistence)
    run_id = evaluator.execute(PAY, {"total": 1.0}).workflow_id
    pay = persistence.claim_task(["billing.Pay"])
    evaluator.continue_step(pay.step_id, {"id": "t-1", "status": "ok"})
    assert persistence.get_task(pay.uuid).state == TaskState.COMPLETED
    assert evaluator.resume(run_id).status is ExecutionStatus.PAUSED
    mail = persistence.claim_task(["billing.Message"])
    assert mail.data == {"to": "t-1"}
    evaluator.continue_step(mail.step_id, {"sent": True})
    result = evaluator.resume(run_id)
    assert (result.status, result.outputs) == (ExecutionStatus.COMPLETED, {"receipt": "t-1", "sent": True})
    assert evaluator.resume(run_id).outputs == result.outputs


def test_a_compiled_program_is_executed_like_its_source(memory, evaluator):
    program = compile_sources([("x.afl", PAY)]).program
    for given in (
        evaluator.execute(program, {"total": 1.0}),
        evaluator.execute("billing.Checkout", {"total": 1.0}, program),
        evaluator.execute("Checkout", {"total": 1.0}, PAY),
        evaluator.execute({"type": "WorkflowDecl", "name": "Checkout"}, {"total": 1.0}, program),
    ):
        assert given.status is ExecutionStatus.PAUSED
    assert len({runner.flow_id for runner in memory.get_runners_by_state("running")}) == 1


def test_executing_with_the_same_id_twice_is_one_run(evaluator):
    first = evaluator.execute(ONE, {"total": 1.0}, wf_id="order-7")
    assert evaluator.execute(ONE, {"total": 1.0}, wf_id="order-7").workflow_id == first.workflow_id


def test_fail_step_fails_the_step_its_task_and_the_run(persistence):
    evaluator = Evaluator(persistence)
    run_id, step_id = one(evaluator)
    task = persistence.claim_task(["Pay"])
    evaluator.fail_step(step_id, "card declined")
    assert persistence.get_task(task.uuid).state == TaskState.FAILED
    assert persistence.get_step(step_id).state == "state.statement.Error"
    result = evaluator.resume(run_id)
    assert (result.status, result.success) == (ExecutionStatus.ERROR, False)
    assert "card declined" in result.error


def test_continuing_without_a_claim_takes_the_task_from_its_holder(persistence):
    evaluator = Evaluator(persistence)
    run_id, step_id = one(evaluator)
    task = persistence.claim_task(["Pay"])
    held = persistence.claims.pop(task.uuid, None)
    evaluator.continue_step(step_id, {"id": "mine", "status": ""})
    assert evaluator.resume(run_id).outputs == {"receipt": "mine"}
    persistence.claims[held.id] = held
    evaluator.continue_step(step_id, {"id": "late", "status": ""})
    assert evaluator.resume(run_id).outputs == {"receipt": "mine"}


def test_continuing_or_failing_twice_is_a_logged_no_op(memory, evaluator, caplog):
    _, step_id = one(evaluator)
    evaluator.continue_step(step_id, {"id": "x", "status": ""})
    with caplog.at_level("INFO", logger="treadle.agents"):
        evaluator.continue_step(step_id, {"id": "y", "status": ""})
        evaluator.fail_step(step_id, "late")
    assert caplog.text.count("no longer waits") == 2
    assert memory.get_step(step_id).returns["id"] == "x"


def test_an_unknown_step_is_a_value_error_and_a_step_that_never_waits_is_refused(memory, evaluator):
    run_id, _ = one(evaluator)
    for call in (evaluator.continue_step, evaluator.retry_step, lambda step: evaluator.fail_step(step, "x")):
        with pytest.raises(UnknownStep) as caught:
            call(NOBODY)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(IllegalTransition):
        evaluator.continue_step(memory.get_workflow_root(run_id).id)
    with pytest.raises(InvalidInput, match="dict"):
        evaluator.continue_step(NOBODY, ["no dict"])


def test_a_failed_step_is_retried_by_an_operator_and_its_run_completes(persistence):
    evaluator = Evaluator(persistence)
    run_id, step_id = one(evaluator)
    evaluator.fail_step(step_id, "no")
    assert evaluator.resume(run_id).status is ExecutionStatus.ERROR
    evaluator.retry_step(step_id)
    assert evaluator.resume(run_id).status is ExecutionStatus.PAUSED
    evaluator.continue_step(persistence.claim_task(["Pay"]).step_id, {"id": "again", "status": ""})
    assert evaluator.resume(run_id).outputs == {"receipt": "again"}


def test_update_step_merges_partial_results_without_completing_the_step(persistence):
    evaluator = Evaluator(persistence)
    _, step_id = one(evaluator)
    evaluator.update_step(step_id, {"status": "half"})
    evaluator.update_step(step_id, {"id": "t"})
    step = persistence.get_step(step_id)
    assert (step.returns, step.state) == ({"status": "half", "id": "t"}, "state.EventTransmit")
    evaluator.continue_step(step_id, {"status": "done"})
    assert persistence.get_step(step_id).returns == {"status": "done", "id": "t"}


def test_continuing_without_resuming_leaves_no_task_behind(evaluator):
    run_id, step_id = one(evaluator)
    evaluator.continue_step(step_id, {"id": "x", "status": ""})
    assert evaluator.status(run_id).status is ExecutionStatus.COMPLETED


def test_a_dispatcher_handles_steps_in_the_calling_thread(evaluator):
    tools, threads = ToolRegistry(), set()
    tools.register("Pay", lambda payload: threads.add(threading.get_ident()) or {"id": f"t-{payload['amount']}", "status": ""})
    tools.register("billing.Message", lambda _: {"sent": True})
    result = evaluator.execute(PAY, {"total": 3.0}, dispatcher=tools)
    assert (result.status, result.outputs) == (ExecutionStatus.COMPLETED, {"receipt": "t-3.0", "sent": True})
    assert threads == {threading.get_ident()}

    def broken(_: dict) -> dict:
        raise RuntimeError("broken tool")

    failing = ToolRegistry(broken)
    result = evaluator.execute(PAY, {"total": 3.0}, dispatcher=failing)
    assert result.status is ExecutionStatus.ERROR
    assert "broken tool" in result.error


def test_an_execution_past_its_limit_times_out(memory):
    evaluator = Evaluator(memory, max_iterations=0)
    assert evaluator.execute(ONE, {"total": 1.0}).status is ExecutionStatus.TIMEOUT


def test_a_blocking_call_inside_an_event_loop_is_refused_with_a_clear_error(evaluator):
    async def call() -> None:
        evaluator.execute(ONE, {"total": 1.0})

    with pytest.raises(WrongThread, match="event loop"):
        asyncio.run(call())


def test_each_execute_and_resume_must_have_a_context_of_its_own(memory, evaluator):
    """Eight threads drive runs through one evaluator; none sees anything of another's (10.2)."""
    results: dict[int, dict] = {}

    def drive(number: int) -> None:
        tools = ToolRegistry(lambda payload: {"n": payload["n"]})
        results[number] = evaluator.execute(MANY, {"items": [number * 100 + n for n in range(5)]}, dispatcher=tools).outputs

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        assert sorted(results[number]["done"]) == [number * 100 + n for n in range(5)]


def test_reads_must_return_copies_and_writes_must_keep_none(persistence):
    """10.3: changing what was read or given changes nothing in the store."""
    evaluator = Evaluator(persistence)
    _, step_id = one(evaluator)
    first, second = persistence.get_step(step_id), persistence.get_step(step_id)
    first.params["amount"] = 99
    assert second.params == persistence.get_step(step_id).params == {"amount": 2.5}
    partial = {"id": "t", "status": {"deep": [1]}}
    evaluator.update_step(step_id, partial)
    partial["status"]["deep"].append(2)
    assert persistence.get_step(step_id).returns["status"] == {"deep": [1]}
    persistence.get_step(step_id).returns["status"]["deep"].append(3)
    assert persistence.get_step(step_id).returns["status"] == {"deep": [1]}
    big = {"id": "x" * 20_000, "status": ["y" * 20_000]}
    evaluator.update_step(step_id, big)
    persistence.get_step(step_id).returns["status"].append("z")
    assert persistence.get_step(step_id).returns == big


BRANCHES = """
namespace work {
    event facet Do(n: Long) => (n: Long)
    event facet Break() => (n: Long)
    facet Twice(n: Long) => (n: Long) andThen {
        a = Do(n = $.n)
        b = Do(n = a.n)
        yield Twice(n = b.n)
    }
    workflow Branches() => (out: Json) andThen {
        broken = Break()
        never = Do(n = broken.n)
        one = Twice(n = 1)
        two = Do(n = 5)
        three = Twice(n = two.n)
        yield Branches(out = [one.n, three.n, never.n])
    }
}
"""
"""A failed step, a step that depends on it, and branches of several steps that do not."""


@pytest.mark.parametrize("how", ["text", "program", "task"])
def test_a_failed_step_ends_itself_and_independent_branches_run_to_their_end(memory, how):
    """D77: neither a pending task nor a branch that has not begun is withdrawn, however the SDK starts the run."""
    evaluator = Evaluator(memory)
    tools = ToolRegistry()
    tools.register("work.Do", lambda payload: {"n": payload["n"] + 1})

    def fail(_):
        raise ValueError("no")

    tools.register("work.Break", fail)
    runner = RunnerService(memory, evaluator, RunnerConfig(max_concurrent=1), tools)
    if how == "task":
        memory.run(memory.engine.kernel.flows.publish("branches", [("branches.afl", BRANCHES)]))
        memory.save_task(TaskDefinition(uuid="", name="afl:execute", data={"flow_id": "branches", "runner_id": "r-1"}))
        runner.poll_once()
        (run,) = memory.run(memory.engine.kernel.run_reads.list_runs())
        run_id = run.id
    else:
        program = BRANCHES if how == "text" else compile_sources([("b.afl", BRANCHES)]).program
        run_id = evaluator.execute(program).workflow_id
    while runner.poll_once():
        pass
    result = evaluator.resume(run_id)
    assert (result.status, result.success) == ("ERROR", False)
    assert "Branches.broken: handler failed: no" in (result.error or "")
    states = {step.path: str(step.status) for step in memory.run(memory.engine.kernel.runs.list_steps(run_id)) if step.is_step}
    done = {"Branches.one", "Branches.one.a", "Branches.one.b", "Branches.two", "Branches.three", "Branches.three.a"}
    assert {path for path, state in states.items() if state == "completed"} == done | {"Branches.three.b"}
    assert {path: state for path, state in states.items() if state != "completed"} == {
        "Branches": "failed",
        "Branches.broken": "failed",
    }
    tasks = memory.run(memory.engine.kernel.store.tasks.list_matching(TaskFilter(run_id=run_id), 100))
    assert {task.state for task in tasks} == {"completed", "failed"}
