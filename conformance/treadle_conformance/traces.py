"""Traces: everything that belongs to trees of work."""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.kernel.store.records import PutRecord
from treadle.kernel.store.units import PutRun, RunTransition, Unit
from treadle.model.records import Record
from treadle_conformance.run_steps import new_run
from treadle_conformance.task_steps import UNKNOWN_ID, new_task, put, put_and_claim, settle, succeed


async def test_the_trees_of_a_trace_are_found_by_its_id(store: Store) -> None:
    own, traced = new_run(), new_run(trace_id="t")
    await store.commit([Unit(rows=(PutRun(run), RunTransition(run.id, "start", "pending", "running"))) for run in (own, traced)])
    live, below = new_task(trace_id="t"), new_task(trace_id="t", root_id=traced.id)
    await put(store, live, below, new_task(trace_id="u"), new_task())
    assert await store.traces.list_roots("default", "t", 10) == sorted([traced.id, live.id], reverse=True)
    assert len(await store.traces.list_roots("default", "t", 1)) == 1
    assert await store.traces.list_roots("other", "t", 10) == []
    assert await store.traces.list_roots("default", own.id, 10) == []


async def test_a_tree_lists_its_runs_tasks_and_records(store: Store) -> None:
    root = new_run()
    child = new_run(root_id=root.id)
    await store.commit(
        [Unit(rows=(PutRun(run), RunTransition(run.id, "start", "pending", "running"))) for run in (root, child, new_run())]
    )
    done = await put_and_claim(store, root_id=root.id, run_id=root.id)
    await settle(store, done.claim, succeed())
    running = await put_and_claim(store, root_id=root.id, run_id=child.id)
    await put(store, new_task())
    record = Record(id=UNKNOWN_ID, entity="approval", state="pending", task_id=running.id, root_id=root.id)
    await store.commit([Unit(rows=(PutRecord(record),))])
    runs, tasks, records = await store.traces.find_trees([root.id], 10, 10, 10)
    assert [run.id for run in runs] == sorted([root.id, child.id])
    assert sorted((task.id, task.run_id, task.state) for task in tasks) == sorted(
        [(done.id, root.id, "completed"), (running.id, child.id, "running")]
    )
    assert [task.finished_at is not None for task in tasks if task.id == done.id] == [True]
    assert [each.id for each in records] == [UNKNOWN_ID]
    _, tasks, _ = await store.traces.find_trees([running.id], 10, 10, 10)
    assert [task.id for task in tasks] == [running.id]
    assert [len(rows) for rows in await store.traces.find_trees([root.id], 1, 1, 0)] == [1, 1, 0]
