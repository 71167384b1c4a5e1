"""Histories of runs and tasks, which `verify` reads."""

from __future__ import annotations

from typing import Any

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import PutRun, RunTransition, Unit, Verdict
from treadle.kernel.store.verify import check_history, verify
from treadle.model.runs import Run
from treadle_conformance.task_steps import ids, put_and_claim, put_one, settle, succeed, transitions_of


async def put_run(store: Store, *transitions: tuple[str, str, str], **fields: Any) -> Run:
    run_id = ids.new_id()
    run = Run(**{"id": run_id, "flow_id": "f", "workflow": "w.W", "root_id": run_id} | fields)
    rows = [RunTransition(run_id, transition, source, target) for transition, source, target in transitions]
    (answer,) = await store.commit([Unit(rows=(PutRun(run), *rows))])
    assert answer.verdict == Verdict.DONE
    return run


START, SUCCEED = ("start", "pending", "running"), ("succeed", "running", "completed")


async def test_a_runs_history_has_its_transitions_and_where_its_row_stands(store):
    run = await put_run(store, START, SUCCEED)
    (history,) = await store.log.list_histories(None, 10)
    assert (history.entity, history.entity_id, history.state, history.version) == ("run", run.id, "completed", 2)
    assert transitions_of(history.transitions) == ["start", "succeed"]
    assert check_history(history) == []


async def test_a_new_run_has_a_history_without_transitions(store):
    run = await put_run(store)
    (history,) = await store.log.list_histories(None, 10)
    assert (history.entity_id, history.state, history.version, history.transitions) == (run.id, "pending", 0, ())


async def test_histories_of_tasks_and_runs_are_paged_together_in_order_of_id(store):
    expected = []
    for _ in range(4):
        expected.append((await put_run(store, START)).id)
        done = await put_and_claim(store)
        await settle(store, done.claim, succeed())
        expected += [done.id, (await put_one(store, delay=1000)).id]
    found: list[str] = []
    after_id = None
    while page := await store.log.list_histories(after_id, 5):
        found += [history.entity_id for history in page]
        after_id = page[-1].entity_id
    assert found == expected
    report = await verify(store, page=5)
    assert (report.checked, report.problems) == (12, ())


async def test_verify_finds_a_run_that_the_log_does_not_explain(database, store):
    run = await put_run(store, START)
    database.execute("update runs set state = 'completed', transitions = 2")
    report = await verify(store)
    assert not report.holds
    assert all(problem.startswith(f"run {run.id}") for problem in report.problems)
