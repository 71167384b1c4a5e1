"""Metrics: transitions are counted page by page, and added to roll-ups exactly once, whoever counts them."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.kernel.store.metrics import DAY, HOUR, STEPS, MetricFilter
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Discard, MetricRow, PutMetrics, Redrive, Unit, Verdict
from treadle.model.names import QueueKey
from treadle.model.tasks import Server
from treadle_conformance.histories import START, put_run
from treadle_conformance.task_steps import MINUTE, claim_one, fail, get, put_and_claim, put_one, requeue, seen, settle, succeed

LAST = 2**62


def a_row(at: int = 0, step_for: int = MINUTE, name: str = "work", release: str = "r1", **numbers: int) -> MetricRow:
    fields = dict.fromkeys(MetricRow._fields[7:18], 0) | numbers
    return MetricRow(step_for, at, "default", "handler", "default", name, release, **fields, durations='{"10":1}', waits="{}")


def put(after_seq: int, until_seq: int, *rows: MetricRow, before: int = 0) -> PutMetrics:
    return PutMetrics(after_seq, until_seq, rows, tuple((step_for, before) for step_for in STEPS))


def which(by: str = "handler", **fields: object) -> MetricFilter:
    return replace(MetricFilter("default", 0, LAST, MINUTE, MINUTE, by), **fields)


async def outcomes(store: Store, after_seq: int = 0, until_seq: int = LAST) -> set[tuple[object, ...]]:
    tallies = await store.metrics.tally(after_seq, until_seq)
    return {(tally.namespace, tally.kind, tally.at, tally.outcome, tally.times) for tally in tallies}


async def test_transitions_are_tallied_by_minute_series_and_outcome(store, clock):
    await clock.advance(MINUTE - clock.now() % MINUTE)
    first = clock.now()
    for settlement in (succeed(), succeed(), fail()):
        await settle(store, (await put_and_claim(store)).claim, settlement)
    task = await put_and_claim(store)
    await settle(store, task.claim, requeue(task, "retry", attempt=2))
    elsewhere = QueueKey("elsewhere", "function", "default", "work")
    await settle(store, (await put_and_claim(store, queue=elsewhere)).claim, succeed())
    half = await store.log.find_last_seq()
    await clock.advance(MINUTE)
    await settle(store, (await claim_one(store)).claim, fail())
    await settle(store, seen(await get(store, task.id)), Discard("discard", "canceled", "ann"))
    await put_run(store, START)
    assert await outcomes(store) == {
        ("default", "handler", first, "completed", 2),
        ("default", "handler", first, "failed", 1),
        ("default", "handler", first, "retry", 1),
        ("elsewhere", "function", first, "completed", 1),
        ("default", "handler", first + MINUTE, "failed", 1),
        ("default", "handler", first + MINUTE, "canceled", 1),
        ("default", "workflow", first + MINUTE, "start", 1),
    }
    assert {at for _, _, at, *_ in await outcomes(store, half)} == {first + MINUTE}
    assert await outcomes(store, LAST - 1) == set()


async def test_an_end_that_was_retried_counts_again_when_the_task_ends_again(store):
    task = await put_and_claim(store)
    await settle(store, task.claim, fail())
    await settle(store, seen(await get(store, task.id)), Redrive("requeue", "ann"))
    await settle(store, (await claim_one(store)).claim, succeed())
    assert {(outcome, times) for *_, outcome, times in await outcomes(store)} == {("failed", 1), ("completed", 1)}


async def test_a_tally_has_the_release_of_the_worker_the_duration_and_the_wait_before_the_first_claim(store, clock):
    await clock.advance(MINUTE - clock.now() % MINUTE)
    await put_one(store)
    await clock.advance(5_123)
    task = await claim_one(store)
    await store.servers.save(Server(id=task.owner_id, name="w", host="h", pid=1, version="1", state="running", release="r7"))
    await clock.advance(MINUTE)
    await settle(store, task.claim, succeed())
    (tally,) = await store.metrics.tally(0, LAST)
    assert (tally.release, tally.took_for, tally.wait_for, tally.waited_for) == ("r7", MINUTE, 5_100, 5_123)
    assert tally.at - tally.began_at == MINUTE, "it counts where it ended, its attempt where it began"
    again = await put_and_claim(store)
    await settle(store, again.claim, requeue(again, "retry", attempt=2))
    await settle(store, (await claim_one(store)).claim, fail())
    tallies = await store.metrics.tally(await store.log.find_last_seq() - 2, LAST)
    assert {(tally.outcome, tally.wait_for) for tally in tallies} == {("retry", None), ("failed", None)}


async def test_a_page_ends_at_the_last_transition_that_is_old_enough(store, clock):
    seqs = []
    for _ in range(4):
        await settle(store, (await put_and_claim(store)).claim, succeed())
        seqs.append(await store.log.find_last_seq())
        await clock.advance(1_000)
    page = await store.metrics.find_page(0, 10, 2_500)
    assert (page.until_seq, page.size) == (seqs[1], 4)
    assert page.until_at == clock.now() - 3_000
    page = await store.metrics.find_page(seqs[0], 2, 0)
    assert (page.until_seq, page.size) == (seqs[2], 2)
    assert tuple(await store.metrics.find_page(seqs[1], 10, 2_500)) == (None, None, 2)
    assert tuple(await store.metrics.find_page(seqs[-1], 10, 0)) == (None, None, 0)


async def test_roll_ups_are_added_once_and_by_the_holder_of_the_claim(store):
    task = await put_and_claim(store)
    row = a_row(completed=2, depth=5, cost_micros=7)
    first = Unit(task.claim, rows=(put(0, 10, row),))
    again = Unit(task.claim, rows=(put(10, 20, a_row(completed=1, depth=3, waited_for=4)._replace(durations='{"10":2,"300":1}')),))
    lost = Unit(replace(task.claim, version=task.claim.version + 1), rows=(put(20, 30, row),))
    answers = [(await store.commit([unit]))[0].verdict for unit in (first, first, again, lost)]
    assert answers == [Verdict.DONE, Verdict.DONE, Verdict.DONE, Verdict.CLAIM_LOST]
    assert await store.metrics.find_cursor() == 20
    (row,) = await store.metrics.list_matching(which())
    at, label, started, completed, *_, waited_for, depth, _, cost, _, durations, waits = row
    assert (at, label, started, completed, waited_for, depth, cost) == (0, "work", 0, 3, 4, 5, 7)
    assert (durations, waits) == ([{10: 3, 300: 1}], [{}])
    await settle(store, task.claim, succeed())


async def test_roll_ups_are_summed_by_longer_steps_and_by_property_and_pruned(store):
    task = await put_and_claim(store)
    rows = [
        a_row(at, name=name, release=release, completed=1, depth=2)
        for at in (0, MINUTE, HOUR)
        for name, release in (("a", "r1"), ("b", "r2"))
    ]
    rows += [a_row(0, HOUR, completed=9), a_row(0, DAY, completed=9), a_row(HOUR, release="", completed=5)]
    await store.commit([Unit(task.claim, rows=(put(0, 1, *rows),))])
    sums = {}
    for by in ("all", "release", "queue"):
        found = await store.metrics.list_matching(which(by, every=HOUR))
        sums[by] = [(at, label, numbers[1], numbers[7]) for at, label, *numbers in found]
    assert sums["all"] == [(0, "", 4, 4), (HOUR, "", 7, 4)], "depths add up within a minute"
    assert sums["queue"] == [(at, "default", *numbers) for at, _, *numbers in sums["all"]]
    assert sums["release"] == [(0, "r1", 2, 2), (0, "r2", 2, 2), (HOUR, "", 5, 0), (HOUR, "r1", 1, 2), (HOUR, "r2", 1, 2)]
    assert [row[:2] for row in await store.metrics.list_matching(which(name="a", since=MINUTE))] == [(MINUTE, "a"), (HOUR, "a")]
    assert [row[3] for row in await store.metrics.list_matching(which(release="r2", step_for=HOUR))] == []
    assert await store.metrics.list_releases(which()) == [("r1", 0), ("r2", 0)]
    await store.commit([Unit(task.claim, rows=(put(1, 2, a_row(2 * HOUR), before=HOUR),))])
    assert {row[0] for row in await store.metrics.list_matching(which())} == {HOUR, 2 * HOUR}
    assert await store.metrics.list_matching(which(step_for=DAY, every=DAY)) == []
