"""Activities of runs: derived from their live tasks, for pages, filters and counts."""

from __future__ import annotations

from typing import Any

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter, StepTask
from treadle.kernel.store.units import BlockRun, RunTransition, Unit
from treadle.model.names import DEFAULT_LIST, DEFAULT_NAMESPACE
from treadle.model.runs import RANKS, ActivityKind, Run
from treadle.model.states import BlockReason
from treadle_conformance.run_steps import advance, begin, live_of
from treadle_conformance.suite import StoreClock
from treadle_conformance.task_steps import claim, requeue, settle, succeed

ROOT, ONE, TWO = "W", "W/one", "W/two"
DUE_IN = 60_000

REQUEUED: tuple[tuple[ActivityKind, dict[str, Any]], ...] = (
    (ActivityKind.SLEEPING, {"delay": DUE_IN}),
    (ActivityKind.SLEEPING, {"delay": DUE_IN, "activity": "sleeping"}),
    (ActivityKind.SLEEPING, {"delay": DUE_IN, "activity": "a word of a newer version"}),
    (ActivityKind.WAITING_FOR_SIGNAL, {"delay": DUE_IN, "activity": "waiting_for_signal"}),
    (ActivityKind.WAITING_FOR_CHILD, {"delay": DUE_IN, "activity": "waiting_for_child"}),
    (ActivityKind.WAITING_FOR_TASK, {"delay": DUE_IN, "activity": "waiting_for_task"}),
    (ActivityKind.RETRYING, {"delay": DUE_IN, "activity": "retrying"}),
    (ActivityKind.RETRYING, {"delay": DUE_IN, "error": "{}", "failures": 1}),
    (ActivityKind.WAITING_FOR_APPROVAL, {"transition": "ask", "state": "awaiting_approval", "delay": DUE_IN}),
    (
        ActivityKind.WAITING_FOR_EXTERNAL_JOB,
        {"transition": "hand_off", "state": "awaiting_external", "delay": DUE_IN, "error": "{}"},
    ),
    (ActivityKind.WAITING_FOR_WORKER, {}),
    (ActivityKind.WAITING_FOR_WORKER, {"activity": "sleeping"}),
    (ActivityKind.BLOCKED, {"blocked_by": BlockReason.TASK_PAUSED, "delay": DUE_IN}),
    (ActivityKind.BLOCKED, {"blocked_by": BlockReason.OVER_LIMIT}),
)
"""The activity of a run with one task, requeued like this."""


async def activity(store: Store, run: Run) -> dict[str, int]:
    """The counts of the run's live tasks by activity; filters and counts of runs agree with them."""
    found = {work.activity: work.count for work in await store.runs.list_open_work([run.id])}
    shown = min(found, key=RANKS.__getitem__, default=ActivityKind.STUCK)
    for each in ActivityKind:
        which = RunFilter(namespace=DEFAULT_NAMESPACE, root_id=run.id, activity=RANKS[each])
        assert [run.id for run in await store.runs.list_matching(which, 10)] == ([run.id] if each is shown else [])
    assert await store.runs.count_activities(RunFilter(namespace=DEFAULT_NAMESPACE, root_id=run.id), 10) == {shown: 1}
    return {str(each): count for each, count in found.items()}


async def test_the_activity_of_a_run_is_that_of_its_live_task(store: Store) -> None:
    for expected, fields in REQUEUED:
        run = await begin(store, ROOT, tasks=[ROOT])
        assert await activity(store, run) == {ActivityKind.WAITING_FOR_WORKER: 1}
        (task,) = await claim(store)
        assert await activity(store, run) == {ActivityKind.RUNNING: 1}
        assert await settle(store, task.claim, requeue(task, **fields)) == "done"
        assert await activity(store, run) == {expected: 1}, fields
        (work,) = await store.runs.list_open_work([run.id])
        assert (work.task, work.record_id) == ((await live_of(store, run))[0], None)
        if fields == {} or expected is ActivityKind.WAITING_FOR_WORKER:
            await claim(store)  # so that it is not in the way of the next case


async def test_an_unfinished_run_without_live_tasks_is_stuck(store: Store) -> None:
    run = await begin(store, ROOT)
    assert await activity(store, run) == {}
    await advance(store, run, rows=(RunTransition(run.id, "fail", "running", "failed"),))
    assert await store.runs.count_activities(RunFilter(namespace=DEFAULT_NAMESPACE), 10) == {}
    assert [await store.runs.list_matching(RunFilter(activity=RANKS[each]), 10) for each in ActivityKind] == [[]] * len(
        ActivityKind
    )


async def test_a_run_with_several_tasks_shows_the_first_activity_and_counts_all(store: Store) -> None:
    run = await begin(store, ROOT, ONE, TWO, tasks=[ROOT, ONE, TWO])
    first, second, _ = await claim(store)
    await settle(store, first.claim, requeue(first, delay=DUE_IN))
    await settle(store, second.claim, requeue(second, delay=DUE_IN // 2))
    assert await activity(store, run) == {ActivityKind.RUNNING: 1, ActivityKind.SLEEPING: 2}
    other = await begin(store, ROOT, tasks=[ROOT])
    work = await store.runs.list_open_work([run.id, other.id])
    assert sorted((each.task.run_id == run.id, each.activity) for each in work) == [
        (False, ActivityKind.WAITING_FOR_WORKER),
        (True, ActivityKind.RUNNING),
        (True, ActivityKind.SLEEPING),
    ]
    assert next(each.task.id for each in work if each.activity is ActivityKind.SLEEPING) == second.id  # the one that is due first
    assert await store.runs.count_activities(RunFilter(namespace=DEFAULT_NAMESPACE), 1) == {ActivityKind.WAITING_FOR_WORKER: 1}


async def test_a_claim_clears_the_activity_of_its_task(store: Store, clock: StoreClock) -> None:
    """Otherwise it would be shown again after a worker of an older version requeues it the task."""
    run = await begin(store, ROOT, tasks=[ROOT])
    (task,) = await claim(store)
    await settle(store, task.claim, requeue(task, delay=DUE_IN, activity="sleeping"))
    await clock.advance(DUE_IN)
    await store.tasks.wake(10)
    assert [task.activity for task in await live_of(store, run)] == ["sleeping"]
    (again,) = await claim(store)
    assert again.activity is None
    assert await live_of(store, run) == [again]
    await settle(store, again.claim, requeue(again, delay=DUE_IN, activity="sleeping"))
    await clock.advance(DUE_IN)
    await store.tasks.wake(10)
    assert await store.tasks.claim_of_run(run.id, again.kind, "owner-2", DUE_IN, 1) == [again.id]
    assert [task.activity for task in await live_of(store, run)] == [None]


async def test_live_tasks_are_found_by_their_steps(store: Store, clock: StoreClock) -> None:
    run = await begin(store, ROOT, ONE, tasks=[ROOT, ONE])
    (first,) = await claim(store, owner="me", limit=1)
    (second,) = [task for task in await live_of(store, run) if task.id != first.id]
    assert first.step_id
    assert second.step_id
    wanted = [first.step_id, second.step_id, run.id]
    found = sorted(await store.runs.list_step_tasks(wanted), key=lambda each: each.owner_id or "")
    assert found == [
        StepTask(second.step_id, "pending", 0, None, None, 1),
        StepTask(first.step_id, "pending", 0, "me", clock.now(), 1),
    ]
    await settle(store, first.claim, succeed())
    assert [each.step_id for each in await store.runs.list_step_tasks(wanted)] == [second.step_id]
    assert await store.runs.list_step_tasks([]) == []


async def test_a_paused_run_or_list_blocks_its_work(store: Store) -> None:
    run = await begin(store, ROOT, tasks=[ROOT])
    await store.commit([Unit(rows=(BlockRun(run.id, True), RunTransition(run.id, "pause", "running", "paused")))])
    assert await activity(store, run) == {ActivityKind.BLOCKED: 1}
    waiting = await begin(store, ROOT, tasks=[ROOT])
    await store.operators.set_list(DEFAULT_NAMESPACE, DEFAULT_LIST, paused=True)
    assert await activity(store, waiting) == {ActivityKind.BLOCKED: 1}


async def test_takeovers_of_a_run_are_listed_with_the_owners_that_lost_its_tasks(store: Store, clock: StoreClock) -> None:
    run = await begin(store, ROOT, ONE, tasks=[ROOT, ONE])
    other = await begin(store, ROOT, tasks=[ROOT])
    assert await store.log.list_takeovers(run.id, 10) == []
    lost = []
    for number in range(3):
        (first, *_) = await claim(store, owner=f"owner-{number}", lease_for=1000)
        lost.append(f"owner-{number}")
        await clock.advance(1000)
        await store.tasks.wake(10)
        assert first.run_id in (run.id, other.id)
    found = await store.log.list_takeovers(run.id, 10)
    assert [(transition.transition, transition.actor) for transition in found] == [
        ("expire", owner) for owner in lost for _ in range(2)
    ]
    assert {transition.run_id for transition in found} == {run.id}
    assert await store.log.list_takeovers(run.id, 2) == found[-2:]
    for task in await claim(store):
        await settle(store, task.claim, succeed())
    assert await store.log.list_takeovers(run.id, 10) == found
    by_one = [*await store.log.list_transitions(found[0].entity_id), *await store.log.list_transitions(run.id)]
    of_many = await store.log.list_transitions(*[run.id, found[0].entity_id])
    assert sorted(of_many, key=lambda transition: transition.seq) == sorted(by_one, key=lambda transition: transition.seq)
