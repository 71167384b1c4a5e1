"""Steps of runs, their inboxes, holds, cancels, and reads."""

from __future__ import annotations

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter
from treadle.kernel.store.units import (
    BlockRun,
    CancelRunTasks,
    ClearInbox,
    PutInbox,
    PutSteps,
    RunTransition,
    Unit,
    Verdict,
)
from treadle.kernel.store.verify import verify
from treadle.model.states import BlockReason
from treadle_conformance.run_steps import (
    advance,
    begin,
    claim_steps,
    get_run,
    live_of,
    new_step,
    step_task,
)
from treadle_conformance.suite import StoreClock
from treadle_conformance.task_steps import UNKNOWN_ID, WORK, claim, get, requeue, succeed

ROOT, BLOCK, ONE, TWO = "W", "W/block-0", "W/block-0/one", "W/block-0/two"
PLACES = (ROOT, BLOCK, ONE, TWO)


# --- steps and inboxes ---


async def test_steps_are_replaced_whole_but_for_their_inbox(store: Store, clock: StoreClock) -> None:
    run = await begin(store, *PLACES)
    step = new_step(run, ONE)
    await store.commit([Unit(rows=(PutInbox(step.id, '{"first":1}'),))])
    made_at = clock.now()
    await clock.advance(7)
    changed = new_step(run, ONE, state="state.statement.Complete", document='{"new":1}', ordinal=4, facet="f.F")
    await advance(store, run, rows=(PutSteps(run.id, (changed,), 0),))
    (found,) = await store.runs.load_steps(run.id, rows=[step.id])
    assert (found.state, found.document, found.ordinal, found.facet) == ("state.statement.Complete", '{"new":1}', 4, "f.F")
    assert (found.inbox, found.created_at, found.updated_at) == ('{"first":1}', made_at, clock.now())


async def test_an_inbox_keeps_its_first_message_until_it_is_cleared(store: Store) -> None:
    run = await begin(store, *PLACES)
    one, two = new_step(run, ONE).id, new_step(run, TWO).id
    await store.commit([Unit(rows=(PutInbox(one, "1"), PutInbox(two, "2")))])
    await store.commit([Unit(rows=(PutInbox(one, "later"),))])
    found = {step.id: step.inbox for step in await store.runs.list_steps(run.id, None, 10, with_inbox=True)}
    assert found == {one: "1", two: "2"}
    assert len(await store.runs.list_steps(run.id, None, 1, with_inbox=True)) == 1
    await advance(store, run, rows=(ClearInbox((one, UNKNOWN_ID)),))
    assert [(step.id, step.inbox) for step in await store.runs.list_steps(run.id, None, 10, with_inbox=True)] == [(two, "2")]
    await store.commit([Unit(rows=(PutInbox(one, "new"),))])
    assert {step.inbox for step in await store.runs.list_steps(run.id, None, 10, with_inbox=True)} == {"new", "2"}


async def test_a_settle_may_leave_its_result_without_touching_the_run(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE])
    (task,) = (await claim_steps(store)).values()
    later = step_task(new_step(run, BLOCK))
    unit = Unit(task.claim, succeed(), (later,), rows=(PutInbox(task.step_id or "", "left"),))
    assert [(await store.commit([unit]))[0].verdict for _ in range(2)] == [Verdict.DONE, Verdict.DONE]
    assert (await get_run(store, run.id)).version == run.version
    assert [step.inbox for step in await store.runs.list_steps(run.id, None, 10, with_inbox=True)] == ["left"]
    assert [each.id for each in await live_of(store, run)] == [later.id]


async def test_steps_near_others_are_loaded_with_their_ancestors_and_children(store: Store) -> None:
    places = [ROOT, BLOCK, ONE, f"{ONE}/block-0", f"{ONE}/block-0/deep", TWO, f"{TWO}/block-0"]
    items = [f"W/block-1/foreach-{number}" for number in range(4)]
    inner = [f"{item}/it" for item in items]
    run = await begin(store, *places, "W/block-1", *items, *inner)
    other = await begin(store, *places)

    async def load(**asked: list[str]) -> set[str]:
        wanted = {name: [new_step(run, place).id for place in given] for name, given in asked.items()}
        steps = await store.runs.load_steps(run.id, **wanted)
        assert len({step.id for step in steps}) == len(steps)
        assert {step.run_id for step in steps} <= {run.id}
        place_of = {new_step(run, place).id: place for place in [*places, "W/block-1", *items, *inner]}
        return {place_of[step.id] for step in steps}

    assert await load(near=[f"{ONE}/block-0/deep"]) == {ROOT, BLOCK, "W/block-1", ONE, TWO, f"{ONE}/block-0", f"{ONE}/block-0/deep"}
    assert await load(near=[inner[2]]) == {ROOT, BLOCK, "W/block-1", items[2], inner[2]}
    assert await load(rows=[ONE, inner[0]]) == {ONE, inner[0]}
    assert await load(children_of=["W/block-1", ONE]) == {*items, f"{ONE}/block-0"}
    assert await load(near=[inner[1]], rows=[ROOT, TWO], children_of=[BLOCK]) == {
        ROOT, BLOCK, "W/block-1", items[1], inner[1], TWO, ONE,
    }  # fmt: skip
    assert await store.runs.load_steps(run.id) == []
    assert await store.runs.load_steps(run.id, rows=[UNKNOWN_ID], near=[UNKNOWN_ID], children_of=[UNKNOWN_ID]) == []
    assert await store.runs.load_steps(run.id, rows=[new_step(other, ONE).id], near=[new_step(other, ONE).id]) == []


async def test_steps_are_listed_in_pages(store: Store) -> None:
    run = await begin(store, *(f"W/s{number}" for number in range(5)))
    await begin(store, ROOT)
    first = await store.runs.list_steps(run.id, None, 2)
    second = await store.runs.list_steps(run.id, first[-1].id, 100)
    found = [step.id for step in (*first, *second)]
    assert found == sorted(new_step(run, f"W/s{number}").id for number in range(5))
    assert await store.runs.list_steps(run.id, found[-1], 10) == []


# --- holds and cancels ---


async def test_holding_a_run_holds_all_its_live_tasks_and_no_others(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    other = await begin(store, ROOT, tasks=[ROOT])
    (held,) = await claim(store, limit=1)
    await advance(store, run, rows=(BlockRun(run.id, True),))
    assert [task.blocked_by for task in await live_of(store, run)] == [BlockReason.RUN_PAUSED] * 2
    (free,) = await claim(store)
    assert free.run_id == other.id
    (answer,) = await store.commit([Unit(held.claim, requeue(held, blocked_by=0))])
    assert answer.verdict is Verdict.DONE
    assert answer.queue_ids == ()
    assert await claim(store) == []
    answer = await advance(store, await get_run(store, run.id), rows=(BlockRun(run.id, False),))
    assert answer.queue_ids == tuple((await store.tasks.queue_ids([WORK])).values())
    assert len(await claim(store)) == 2


async def test_canceling_the_tasks_of_a_run_ends_claimed_and_unclaimed_ones(store: Store, clock: StoreClock) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    other = await begin(store, ROOT, tasks=[ROOT])
    (held,) = await claim(store, limit=1)
    await advance(store, run, rows=(CancelRunTasks(run.id, "ann", '{"code":"canceled"}'),))
    assert await live_of(store, run) == []
    assert len(await live_of(store, other)) == 1
    ended = await get(store, held.id)
    assert (ended.state, ended.actor, ended.error, ended.error_code) == ("canceled", "ann", '{"code":"canceled"}', "canceled")
    assert (ended.owner_id, ended.claim_version, ended.finished_at) == ("owner-1", 1, clock.now())
    (answer,) = await store.commit([Unit(held.claim, succeed())])
    assert answer.verdict is Verdict.CLAIM_LOST
    report = await verify(store)
    assert (report.problems, report.checked) == ((), 5)


# --- reads ---


async def test_runs_are_listed_newest_first_and_counted(store: Store) -> None:
    runs = [await begin(store, ROOT, workflow=f"w.W{number % 2}", flow_id=f"f{number}") for number in range(4)]
    elsewhere = await begin(store, ROOT, namespace="other")
    await advance(store, runs[1], rows=(RunTransition(runs[1].id, "fail", "running", "failed"),))

    async def found(limit: int = 10, **which: object) -> list[int]:
        listed = await store.runs.list_matching(RunFilter(**which), limit)  # type: ignore[arg-type]
        return [[*[run.id for run in runs], elsewhere.id].index(run.id) for run in listed]

    assert await found() == [4, 3, 2, 1, 0]
    assert await found(namespace="default") == [3, 2, 1, 0]
    assert await found(states=("failed",)) == [1]
    assert await found(states=("failed", "running"), namespace="default", limit=2) == [3, 2]
    assert await found(workflow="w.W0") == [2, 0]
    assert await found(flow_ids=("f3",)) == [3]
    assert await found(flow_ids=("f3", "f1")) == [3, 1]
    assert await found(before_id=runs[2].id) == [1, 0]
    assert await found(root_id=runs[2].id) == [2]
    assert (await found(kind="workflow", namespace="default"), await found(task_list="other")) == ([3, 2, 1, 0], [])
    assert (await found(search="w.w1"), await found(search=runs[2].id[:-1])) == ([3, 1], [2])
    made_at = (await store.runs.list_matching(RunFilter(), 1))[0].created_at
    assert (await found(created_after=made_at + 1), await found(created_before=0)) == ([], [])
    assert await found(created_after=made_at, created_before=made_at + 1, workflow="w.W0") == [2, 0]
    assert await store.runs.count(RunFilter(namespace="default", search="w.w1")) == {"running": 1, "failed": 1}
    assert await store.runs.count(RunFilter(namespace="default")) == {"running": 3, "failed": 1}
    assert await store.runs.count(RunFilter(namespace="nowhere")) == {}
