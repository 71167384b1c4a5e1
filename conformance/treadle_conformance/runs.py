"""Runs: new runs, guards, several claims, and transitions."""

from __future__ import annotations

import asyncio

import pytest

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import RunFilter
from treadle.kernel.store.units import (
    PutBlob,
    PutInbox,
    PutRun,
    PutSteps,
    Redrive,
    RunGuard,
    RunTransition,
    Unit,
    Verdict,
)
from treadle.kernel.store.verify import verify
from treadle.model.errors import IllegalTransition
from treadle.model.states import RUN
from treadle.model.tasks import Claim
from treadle_conformance.run_steps import (
    advance,
    all_of,
    begin,
    claim_steps,
    get_run,
    live_of,
    new_run,
    new_step,
    step_task,
    unit_of,
)
from treadle_conformance.suite import StoreClock
from treadle_conformance.task_steps import UNKNOWN_ID, fail, get, put_and_claim, requeue, seen, succeed, transitions_of

ROOT, BLOCK, ONE, TWO = "W", "W/block-0", "W/block-0/one", "W/block-0/two"
PLACES = (ROOT, BLOCK, ONE, TWO)


# --- new runs ---


async def test_a_new_run_is_stored_with_its_steps_and_tasks(store: Store, clock: StoreClock) -> None:
    run = await begin(store, *PLACES, tasks=[ONE], priority=3, task_list="slow", parent_id=UNKNOWN_ID, inputs='{"a":1}')
    assert (run.state, run.version, run.transitions, run.steps) == ("running", 0, 1, 0)
    assert (run.priority, run.task_list, run.parent_id, run.inputs) == (3, "slow", UNKNOWN_ID, '{"a":1}')
    assert (run.created_at, run.finished_at, run.outputs, run.error) == (clock.now(), None, None, None)
    assert [step.document for step in await store.runs.list_steps(run.id, None, 10)].count('{"place":"W"}') == 1
    (task,) = await live_of(store, run)
    assert (task.run_id, task.step_id) == (run.id, new_step(run, ONE).id)
    assert transitions_of(await store.log.list_transitions(run.id)) == ["start"]
    assert (await verify(store)).problems == ()


async def test_starting_a_run_again_is_a_no_op(store: Store) -> None:
    run = new_run(steps=1)
    step = new_step(run, ROOT)
    rows = (PutRun(run), RunTransition(run.id, "start", "pending", "running"), PutSteps(run.id, (step,), 1))
    unit = Unit(tasks=(step_task(step),), rows=rows)
    (answer,) = await store.commit([unit])
    assert (answer.verdict, answer.existing) == (Verdict.DONE, {})
    before = await all_of(store, run)
    (answer,) = await store.commit([unit])
    assert (answer.verdict, answer.existing) == (Verdict.DONE, {})
    assert await all_of(store, run) == before


async def test_finished_runs_are_found_among_many(store: Store) -> None:
    runs = [await begin(store, ROOT) for _ in range(5)]
    ends = {"succeed": "completed", "fail": "failed", "cancel": "canceled", "pause": "paused"}
    for run, (transition, state) in zip(runs, ends.items(), strict=False):
        await advance(store, run, rows=(RunTransition(run.id, transition, "running", state),))
    asked = [*(run.id for run in runs), UNKNOWN_ID, runs[0].id]
    found = await store.runs.find_many(asked, sorted(RUN.final))
    assert sorted(run.state for run in found) == ["canceled", "completed", "failed"]
    assert {run.id: run for run in found} == {run.id: await get_run(store, run.id) for run in runs[:3]}
    assert await store.runs.find_many([], sorted(RUN.final)) == []


async def test_a_used_idempotency_key_names_its_run_and_refuses_the_unit(store: Store) -> None:
    first = await begin(store, ROOT, idempotency_key="k")
    other = new_run(idempotency_key="k")
    step = new_step(other, ROOT)
    unit = Unit(
        tasks=(step_task(step),),
        rows=(
            PutRun(other),
            RunTransition(other.id, "start", "pending", "running"),
            PutSteps(other.id, (step,), 1),
            PutBlob("d1", '"x"', other.id),
        ),
    )
    (answer,) = await store.commit([unit])
    assert (answer.verdict, answer.existing) == (Verdict.DONE, {"k": first.id})
    assert await store.runs.find(other.id) is None
    assert await store.runs.list_steps(other.id, None, 10) == []
    assert await live_of(store, other) == []
    assert await store.runs.find_blobs(["d1"]) == {}
    assert (await verify(store)).checked == 1


async def test_keys_belong_to_a_namespace(store: Store) -> None:
    await begin(store, ROOT, idempotency_key="k")
    second = await begin(store, ROOT, idempotency_key="k", namespace="other")
    assert (await get_run(store, second.id)).namespace == "other"


async def test_keys_of_two_namespaces_in_one_call_name_a_run_each(store: Store) -> None:
    first = [await begin(store, ROOT, idempotency_key="k", namespace=namespace) for namespace in ("one", "two")]
    again = [new_run(idempotency_key="k", namespace=namespace) for namespace in ("one", "two")]
    answers = await store.commit([Unit(rows=(PutRun(run),)) for run in again])
    assert [answer.existing for answer in answers] == [{"k": run.id} for run in first]


async def test_a_run_is_not_stored_if_the_claim_of_its_unit_is_lost(store: Store) -> None:
    run = new_run()
    (answer,) = await store.commit([Unit(Claim(UNKNOWN_ID, 1, "owner-1"), succeed(), rows=(PutRun(run),))])
    assert answer.verdict is Verdict.CLAIM_LOST
    assert await store.runs.find(run.id) is None


async def test_two_starts_with_one_key_in_one_call_are_one_run(store: Store) -> None:
    runs = [new_run(idempotency_key="k") for _ in range(2)]
    answers = await store.commit([Unit(rows=(PutRun(run), RunTransition(run.id, "start", "pending", "running"))) for run in runs])
    assert [answer.verdict for answer in answers] == [Verdict.DONE, Verdict.DONE]
    kept = [run for run in runs if await store.runs.find(run.id) is not None]
    assert len(kept) == 1
    assert [answer.existing for answer in answers if answer.existing] == [{"k": kept[0].id}]


async def test_concurrent_starts_with_one_key_create_one_run(store: Store) -> None:
    runs = [new_run(idempotency_key="k") for _ in range(8)]
    answers = await asyncio.gather(*(store.commit([Unit(rows=(PutRun(run),))]) for run in runs))
    holders = {answer.existing.get("k") for (answer,) in answers} - {None}
    assert len(holders) == 1
    assert sum(not answer.existing for (answer,) in answers) == 1
    assert len(await store.runs.list_matching(RunFilter(), 100)) == 1


async def test_failed_runs_are_listed_until_they_are_retried(store: Store, clock: StoreClock) -> None:
    runs = [new_run() for _ in range(3)]
    for run in runs:
        await store.commit([Unit(rows=(PutRun(run), RunTransition(run.id, "start", "pending", "running")))])
    began_at = await store.now()
    for run in runs:
        await clock.advance(10)
        await store.commit([Unit(rows=(RunTransition(run.id, "fail", "running", "failed", error='{"code": "broken"}'),))])
    await store.commit([Unit(rows=(RunTransition(runs[1].id, "retry", "failed", "running"),))])
    found = await store.runs.list_failed("default", began_at, 10)
    assert [(each.id, each.workflow) for each in found] == [(run.id, run.workflow) for run in (runs[2], runs[0])]
    assert [each.error for each in found] == ['{"code": "broken"}'] * 2
    assert [each.id for each in await store.runs.list_failed("default", began_at, 1)] == [runs[2].id]
    assert [each.id for each in await store.runs.list_failed("default", began_at, 10, found[0])] == [runs[0].id]
    assert await store.runs.list_failed("default", began_at, 10, found[1]) == []
    assert await store.runs.list_failed("default", found[0].finished_at, 10) == []
    assert await store.runs.list_failed("another", began_at, 10) == []


# --- the run guard ---


async def test_an_advance_raises_the_version_once_and_counts_new_steps(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    taken = await claim_steps(store)
    ends = [(task.claim, succeed()) for task in taken.values()]
    more = new_step(run, "W/block-0/three")
    answer = await advance(store, run, *ends, rows=(PutSteps(run.id, (more, new_step(run, ONE)), 1),))
    assert answer.verdict is Verdict.DONE
    after = await get_run(store, run.id)
    assert (after.version, after.steps) == (run.version + 1, run.steps + 1)
    assert await live_of(store, run) == []
    assert (await verify(store)).problems == ()


async def test_a_stale_run_version_defers_the_unit(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE])
    (task,) = (await claim_steps(store)).values()
    await advance(store, run)
    before = await all_of(store, run)
    answer = await advance(
        store,
        run,
        (task.claim, succeed()),
        tasks=(step_task(new_step(run, TWO)),),
        rows=(PutSteps(run.id, (new_step(run, "W/block-0/three"),), 1), PutInbox(new_step(run, TWO).id, "{}")),
    )
    assert answer.verdict is Verdict.DEFERRED
    assert await all_of(store, run) == before


async def test_a_run_that_is_not_there_is_deferred(store: Store) -> None:
    assert (await advance(store, new_run())).verdict is Verdict.DEFERRED


async def test_a_guard_without_a_version_takes_any_and_raises_it(store: Store) -> None:
    run = await begin(store, ROOT)
    await advance(store, run)
    pause = Unit(run=RunGuard(run.id, None), rows=(RunTransition(run.id, "pause", "running", "paused"),))
    (answer,) = await store.commit([pause])
    assert answer.verdict is Verdict.DONE
    after = await get_run(store, run.id)
    assert (after.state, after.version) == ("paused", 2)
    with pytest.raises(IllegalTransition):
        await store.commit([pause])
    assert (await store.commit([Unit(run=RunGuard(UNKNOWN_ID, None))]))[0].verdict is Verdict.DEFERRED


async def test_several_units_of_one_run_in_one_call_follow_one_another(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    taken = list((await claim_steps(store)).values())
    units = [unit_of(run, (task.claim, succeed()), version=version) for version, task in enumerate(taken)]
    late = unit_of(run, version=0, rows=(PutSteps(run.id, (new_step(run, "W/block-0/late"),), 1),))
    answers = await store.commit([*units, late])
    assert [answer.verdict for answer in answers] == [Verdict.DONE, Verdict.DONE, Verdict.DEFERRED]
    assert (await get_run(store, run.id)).version == 2
    assert len(await store.runs.list_steps(run.id, None, 10)) == 4


async def test_units_of_several_runs_in_one_call_are_independent(store: Store) -> None:
    one, two, three = [await begin(store, ROOT, tasks=[ROOT]) for _ in range(3)]
    taken = await claim_steps(store)
    await advance(store, two)
    units = [unit_of(run, (taken[new_step(run, ROOT).id].claim, succeed())) for run in (one, two, three)]
    answers = await store.commit(units)
    assert [answer.verdict for answer in answers] == [Verdict.DONE, Verdict.DEFERRED, Verdict.DONE]
    assert [len(await live_of(store, run)) for run in (one, two, three)] == [0, 1, 0]


async def test_concurrent_advances_have_one_winner(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    taken = list((await claim_steps(store)).values())
    answers = await asyncio.gather(*(advance(store, run, (task.claim, succeed())) for task in taken))
    assert sorted(answer.verdict for answer in answers) == [Verdict.DEFERRED, Verdict.DONE]
    assert len(await live_of(store, run)) == 1


# --- several claims ---


async def test_one_lost_claim_of_several_fails_the_whole_unit(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    one, two = (await claim_steps(store)).values()
    ghost = Claim(two.id, two.claim_version, "somebody else")
    before = await all_of(store, run)
    rows = (PutSteps(run.id, (new_step(run, "W/block-0/three"),), 1),)
    for ends in ([(one.claim, succeed()), (ghost, succeed())], [(ghost, succeed()), (one.claim, succeed())]):
        answer = await advance(store, run, *ends, rows=rows)
        assert (answer.verdict, answer.lost) == (Verdict.CLAIM_LOST, (two.id,))
        assert await all_of(store, run) == before
    answer = await advance(store, run, (one.claim, succeed()), rows=rows)
    assert answer.verdict is Verdict.DONE


async def test_all_lost_claims_are_named(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    taken = list((await claim_steps(store)).values())
    ghosts = [(Claim(task.id, task.claim_version + 1, "owner-1"), succeed()) for task in taken]
    answer = await advance(store, run, *ghosts)
    assert (answer.verdict, set(answer.lost)) == (Verdict.CLAIM_LOST, {task.id for task in taken})


async def test_a_committed_unit_of_several_claims_is_recognised(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    one, two = (await claim_steps(store)).values()
    follower = step_task(new_step(run, "W/block-0/three"))
    unit = unit_of(
        run,
        (one.claim, succeed()),
        (two.claim, fail()),
        tasks=(follower,),
        rows=(PutSteps(run.id, (new_step(run, "W/block-0/three"),), 1), PutInbox(new_step(run, ONE).id, "{}")),
    )
    (answer,) = await store.commit([unit])
    assert answer.verdict is Verdict.DONE
    before = await all_of(store, run)
    (answer,) = await store.commit([unit])
    assert answer.verdict is Verdict.DONE
    await advance(store, await get_run(store, run.id))
    before = await all_of(store, run)
    (answer,) = await store.commit([unit])
    assert answer.verdict is Verdict.DONE
    assert await all_of(store, run) == before


async def test_a_unit_that_was_committed_only_in_part_by_others_is_not_recognised(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    one, two = (await claim_steps(store)).values()
    await advance(store, run, (one.claim, succeed()))
    answer = await advance(store, run, (one.claim, succeed()), (two.claim, succeed()))
    assert answer.verdict is Verdict.DEFERRED
    answer = await advance(store, await get_run(store, run.id), (one.claim, succeed()), (two.claim, succeed()))
    assert (answer.verdict, answer.lost) == (Verdict.CLAIM_LOST, (one.id,))


async def test_a_repeated_unit_under_a_run_guard_alone_is_deferred(store: Store) -> None:
    run = await begin(store, ROOT)
    unit = unit_of(run, rows=(RunTransition(run.id, "pause", "running", "paused"),))
    assert [(await store.commit([unit]))[0].verdict for _ in range(2)] == [Verdict.DONE, Verdict.DEFERRED]
    assert transitions_of(await store.log.list_transitions(run.id)) == ["start", "pause"]


async def test_a_seen_guard_protects_a_unit_with_rows(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE])
    (task,) = await live_of(store, run)
    (held,) = (await claim_steps(store)).values()
    stale = Unit(seen(task), succeed(), run=RunGuard(run.id, run.version))
    (answer,) = await store.commit([stale])
    assert (answer.verdict, answer.lost) == (Verdict.CLAIM_LOST, (task.id,))
    fresh = Unit(seen(held), succeed(), run=RunGuard(run.id, run.version))
    (answer,) = await store.commit([fresh])
    assert answer.verdict is Verdict.DONE
    (answer,) = await store.commit([Unit(held.claim, succeed())])
    assert answer.verdict is Verdict.CLAIM_LOST


async def test_a_requeue_may_carry_rows(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE])
    (task,) = (await claim_steps(store)).values()
    unit = Unit(task.claim, requeue(task), rows=(PutBlob("d1", '"x"', run.id),))
    assert [(await store.commit([unit]))[0].verdict for _ in range(2)] == [Verdict.DONE, Verdict.DONE]
    assert await store.runs.find_blobs(["d1"]) == {"d1": '"x"'}
    assert (await get(store, task.id)).version == 1


async def test_a_finished_task_is_redriven_with_rows(store: Store) -> None:
    task = await put_and_claim(store)
    await store.commit([Unit(task.claim, fail())])
    ended = await get(store, task.id)
    unit = Unit(seen(ended), Redrive("requeue", "ann", "@refs:{}"), rows=(PutBlob("d1", '"x"', ended.root_id),))
    (answer,) = await store.commit([unit])
    assert answer.verdict is Verdict.DONE
    assert await store.runs.find_blobs(["d1"]) == {"d1": '"x"'}
    assert (await get(store, task.id)).payload == "@refs:{}"
    (answer,) = await store.commit([unit])
    assert answer.verdict is Verdict.CLAIM_LOST


async def test_a_task_that_an_earlier_unit_of_the_call_changed_is_lost_for_one_with_rows(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE, TWO])
    one, two = (await claim_steps(store)).values()
    rows = (PutSteps(run.id, (new_step(run, "W/block-0/three"),), 1),)
    units = [
        Unit(one.claim, fail()),
        unit_of(run, (one.claim, succeed()), (two.claim, succeed()), rows=rows),
        Unit(two.claim, succeed()),
    ]
    answers = await store.commit(units)
    assert [answer.verdict for answer in answers] == [Verdict.DONE, Verdict.CLAIM_LOST, Verdict.DONE]
    assert (await get(store, one.id)).state == "failed"
    after = await get_run(store, run.id)
    assert (after.version, after.steps) == (run.version, run.steps)
    assert len(await store.runs.list_steps(run.id, None, 10)) == 4


# --- transitions ---


async def test_a_transition_is_logged_with_its_actor_and_data(store: Store, clock: StoreClock) -> None:
    run = await begin(store, ROOT)
    await clock.advance(5)
    transition = RunTransition(
        run.id, "fail", "running", "failed", "ann", error='{"code":"x"}', failed_step_id=UNKNOWN_ID, data='{"n":1}'
    )
    await advance(store, run, rows=(transition,))
    after = await get_run(store, run.id)
    assert (after.state, after.transitions, after.finished_at) == ("failed", 2, clock.now())
    assert (after.error, after.failed_step_id) == ('{"code":"x"}', UNKNOWN_ID)
    logged = (await store.log.list_transitions(run.id))[-1]
    assert (logged.entity, logged.version, logged.transition, logged.from_state, logged.to_state) == (
        "run",
        2,
        "fail",
        "running",
        "failed",
    )
    assert (logged.actor, logged.data, logged.run_id, logged.root_id, logged.at) == ("ann", '{"n":1}', run.id, run.id, clock.now())
    await advance(store, after, rows=(RunTransition(run.id, "retry", "failed", "running"),))
    after = await get_run(store, run.id)
    assert (after.state, after.error, after.failed_step_id, after.finished_at) == ("running", None, None, None)
    assert (await verify(store)).problems == ()


async def test_a_unit_may_make_several_transitions(store: Store) -> None:
    run = new_run()
    rows = (
        PutRun(run),
        RunTransition(run.id, "start", "pending", "running"),
        RunTransition(run.id, "succeed", "running", "completed", outputs='{"x":1}'),
    )
    await store.commit([Unit(rows=rows)])
    after = await get_run(store, run.id)
    assert (after.state, after.transitions, after.outputs) == ("completed", 2, '{"x":1}')
    assert transitions_of(await store.log.list_transitions(run.id)) == ["start", "succeed"]
    assert (await verify(store)).problems == ()


async def test_a_transition_from_another_state_is_refused_without_effect(store: Store) -> None:
    run = await begin(store, *PLACES, tasks=[ONE])
    other = await begin(store, ROOT)
    (task,) = (await claim_steps(store)).values()
    before = await all_of(store, run)
    bad = unit_of(run, (task.claim, succeed()), rows=(RunTransition(run.id, "resume", "paused", "running"),))
    with pytest.raises(IllegalTransition):
        await store.commit([unit_of(other), bad])
    assert await all_of(store, run) == before
    assert (await get_run(store, other.id)).version == other.version
