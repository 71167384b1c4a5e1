"""Lease lines: claims are kept, but never past the deadlines, and only while they are held."""

from __future__ import annotations

import asyncio

from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.units import Keep
from treadle.model.tasks import Claim
from treadle_conformance.servers import a_server
from treadle_conformance.task_steps import (
    MINUTE,
    claim,
    claim_one,
    get,
    new_task,
    put,
    put_and_claim,
    requeue,
    seen,
    settle,
    succeed,
)


async def test_a_renewal_extends_the_lease_from_now(store, clock, line):
    taken = await put_and_claim(store, lease_for=30_000)
    await clock.advance(20_000)
    assert await line.renew([Renewal(taken.claim)], 30_000) == {taken.id}
    after = await get(store, taken.id)
    assert (after.wake_at, after.heartbeat_at) == (clock.now() + 30_000, clock.now())


async def test_a_renewal_changes_only_the_lease(store, clock, line):
    taken = await put_and_claim(store)
    await clock.advance(5)
    await line.renew([Renewal(taken.claim)], MINUTE)
    taken.wake_at, taken.heartbeat_at = clock.now() + MINUTE, clock.now()
    assert await get(store, taken.id) == taken
    assert await store.log.list_transitions(taken.id) == []


async def test_a_renewal_never_reaches_past_the_deadline(store, clock, line):
    taken = await put_and_claim(store, deadline_for=40_000, lease_for=30_000)
    await clock.advance(20_000)
    assert await line.renew([Renewal(taken.claim)], 30_000) == {taken.id}
    assert (await get(store, taken.id)).wake_at == taken.deadline_at == clock.now() + 20_000


async def test_a_renewal_never_reaches_past_the_progress_deadline(store, clock, line):
    taken = await put_and_claim(store, progress_for=40_000, lease_for=30_000)
    await clock.advance(20_000)
    await line.renew([Renewal(taken.claim)], 30_000)
    assert (await get(store, taken.id)).wake_at == taken.progress_at + 40_000


async def test_a_sign_of_progress_moves_the_progress_deadline(store, clock, line):
    taken = await put_and_claim(store, progress_for=40_000, lease_for=30_000)
    await clock.advance(20_000)
    await line.renew([Renewal(taken.claim, progressed=True, progress='{"percent":50}')], 30_000)
    after = await get(store, taken.id)
    assert (after.progress_at, after.progress, after.wake_at) == (clock.now(), '{"percent":50}', clock.now() + 30_000)


async def test_a_sign_of_progress_never_moves_the_deadline_itself(store, clock, line):
    taken = await put_and_claim(store, progress_for=40_000, deadline_for=25_000, lease_for=20_000)
    await clock.advance(10_000)
    await line.renew([Renewal(taken.claim, progressed=True)], 30_000)
    assert (await get(store, taken.id)).wake_at == taken.deadline_at


async def test_without_progress_the_last_progress_is_kept(store, clock, line):
    taken = await put_and_claim(store)
    await line.renew([Renewal(taken.claim, progressed=True, progress="1")], MINUTE)
    said_at = clock.now()
    await clock.advance(10)
    await line.renew([Renewal(taken.claim)], MINUTE)
    after = await get(store, taken.id)
    assert (after.progress, after.progress_at) == ("1", said_at)


async def test_a_task_without_progress_is_due_again_when_its_progress_deadline_passes(store, clock, line):
    taken = await put_and_claim(store, progress_for=40_000, lease_for=30_000)
    await clock.advance(25_000)
    await line.renew([Renewal(taken.claim)], 30_000)
    await clock.advance(15_000)
    assert (await store.tasks.wake(10)).expired == 1


async def test_many_claims_are_renewed_in_one_call(store, clock, line):
    await put(store, *[new_task() for _ in range(50)])
    taken = await claim(store)
    await clock.advance(10)
    renewals = [Renewal(task.claim, number % 2 == 0, f'{{"n":{number}}}') for number, task in enumerate(taken)]
    assert await line.renew(renewals, MINUTE) == {task.id for task in taken}
    for number, task in enumerate(taken):
        after = await get(store, task.id)
        assert after.wake_at == clock.now() + MINUTE
        assert (after.progress == f'{{"n":{number}}}') == (number % 2 == 0)


async def test_a_renewal_leaves_out_claims_that_are_lost(store, clock, line):
    mine, expired, settled, canceled, requeued = [await put_and_claim(store, lease_for=MINUTE * n) for n in (5, 1, 5, 5, 5)]
    await clock.advance(MINUTE)
    await store.tasks.wake(10)
    await settle(store, settled.claim, succeed())
    await settle(store, seen(canceled), requeue(canceled, "pause", blocked_by=8))
    await settle(store, requeued.claim, requeue(requeued, delay=10 * MINUTE))
    lost = [expired, settled, canceled, requeued]
    before = [await get(store, task.id) for task in lost]
    wrong = [Claim(mine.id, mine.claim_version + 1, "owner-1"), Claim(mine.id, mine.claim_version, "someone")]
    assert await line.renew([Renewal(claim_) for claim_ in wrong], MINUTE) == set()
    assert await line.renew([Renewal(task.claim, True, "1") for task in [mine, *lost]], MINUTE) == {mine.id}
    assert [await get(store, task.id) for task in lost] == before


async def test_a_taken_over_claim_cannot_be_renewed(store, clock, line):
    first = await put_and_claim(store)
    await clock.advance(MINUTE)
    await store.tasks.wake(10)
    second = await claim_one(store, owner="owner-2")
    assert await line.renew([Renewal(first.claim, True, "1")], 2 * MINUTE) == set()
    assert await line.held([first.claim]) == set()
    assert await get(store, first.id) == second


async def test_extending_returns_the_expiry_of_each_claim_and_omits_lost_ones(store, clock):
    mine, settled = [await put_and_claim(store) for _ in range(2)]
    await settle(store, settled.claim, succeed())
    await clock.advance(20_000)
    found = await store.tasks.extend([Renewal(mine.claim, True, '{"n":1}'), Renewal(settled.claim)], 90_000)
    assert found == {mine.id: (clock.now() + 90_000, clock.now())}
    after = await get(store, mine.id)
    assert (after.wake_at, after.heartbeat_at, after.progress_at) == (clock.now() + 90_000, clock.now(), clock.now())
    assert after.progress == '{"n":1}'
    assert await store.tasks.extend([], MINUTE) == {}
    wrong = [Claim(mine.id, mine.claim_version + 1, "owner-1"), Claim(mine.id, mine.claim_version, "someone")]
    assert await store.tasks.extend([Renewal(each) for each in wrong], MINUTE) == {}


async def test_extending_never_exceeds_a_bound_of_the_task_and_expires_tasks_past_one(store, clock):
    bounds = ({"deadline_for": 40_000}, {"progress_for": 40_000}, {"timeout_for": 40_000})
    taken = [await put_and_claim(store, **bound) for bound in bounds]
    until_at = clock.now() + 40_000
    await clock.advance(10_000)
    found = await store.tasks.extend([Renewal(task.claim) for task in taken], MINUTE)
    assert {each.until_at for each in found.values()} == {until_at}
    moved = await store.tasks.extend([Renewal(task.claim, progressed=True) for task in taken], MINUTE)
    assert [moved[task.id].until_at for task in taken] == [until_at, until_at + 10_000, until_at]
    await clock.advance(40_000)
    await store.tasks.extend([Renewal(task.claim) for task in taken], MINUTE)
    assert (await store.tasks.wake(10)).expired == 3


async def test_renewing_no_claims_returns_no_renewals(line):
    assert await line.renew([], MINUTE) == set()
    assert await line.held([]) == set()


async def test_held_returns_the_claims_that_are_unchanged(store, clock, line):
    mine, expired, settled = [await put_and_claim(store, lease_for=MINUTE * n) for n in (5, 1, 5)]
    await clock.advance(MINUTE)
    await store.tasks.wake(10)
    await settle(store, settled.claim, succeed())
    await settle(store, mine.claim, Keep("1"))
    assert await line.held([task.claim for task in (mine, expired, settled)]) == {mine.id}
    assert await line.held([Claim(mine.id, mine.claim_version, "someone")]) == set()
    assert await line.held([Claim(mine.id, mine.claim_version + 1, "owner-1")]) == set()


async def test_a_lease_past_its_end_is_held_until_someone_expires_it(store, clock, line):
    taken = await put_and_claim(store)
    await clock.advance(2 * MINUTE)
    assert await line.held([taken.claim]) == {taken.id}
    assert await line.renew([Renewal(taken.claim)], MINUTE) == {taken.id}
    assert (await store.tasks.wake(10)).count == 0


async def test_a_beat_inserts_the_server_and_then_updates_it(store, clock, line):
    server = a_server()
    await line.beat(server)
    started_at = clock.now()
    await clock.advance(10_000)
    await line.beat(a_server(state="draining", handled=5))
    (found,) = await store.servers.list_all()
    assert (found.state, found.handled) == ("draining", 5)
    assert (found.started_at, found.heartbeat_at) == (started_at, clock.now())


async def test_a_line_returns_the_time_of_the_store(store, clock, line):
    assert await line.now() == await store.now() == clock.now()
    await clock.advance(1_234)
    assert await line.now() == await store.now() == clock.now()


async def test_a_line_may_be_made_in_the_thread_that_uses_it(store):
    taken = await put_and_claim(store)

    def keep():
        line = store.servers.lease_connection()
        try:
            return line.renew([Renewal(taken.claim)], MINUTE)
        finally:
            line.close()

    assert await asyncio.to_thread(keep) == {taken.id}


async def test_a_line_can_be_closed_twice(line):
    """The second close raises nothing."""
    await line.close()
    await line.close()


async def test_renewals_and_settles_do_not_block_one_another(store, line):
    tasks = [await put_and_claim(store) for _ in range(20)]
    renewals = [Renewal(task.claim) for task in tasks]
    renewed, *verdicts = await asyncio.gather(
        line.renew(renewals, MINUTE), *[settle(store, task.claim, succeed()) for task in tasks]
    )
    assert set(verdicts) == {"done"}
    assert renewed <= {task.id for task in tasks}
