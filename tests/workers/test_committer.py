"""Natural batching: what goes together, what waits, and what becomes of those who cannot be served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import Events

from treadle.interfaces.http.problems import status_of
from treadle.kernel.store.committer import BATCH_ROWS, MAX_QUEUED_ROWS, MAX_STALLED_ROWS, Committer, Stale
from treadle.kernel.store.ports import LATER
from treadle.kernel.store.units import Discard, Keep, PutTags, Requeue, Seen, Unit, UnitAnswer, Verdict, tag_rows
from treadle.kernel.telemetry.events import StoreBack, StoreTrouble
from treadle.model.errors import Contended, IllegalTransition, StoreFull, StoreOverloaded, StoreTimeout, StoreUnavailable
from treadle.model.tasks import Claim
from treadle.testing import ManualClock
from treadle_conformance.task_steps import cancel, new_task, succeed

DONE = UnitAnswer(Verdict.DONE)


class SlowStore:
    """Commits when the test says so."""

    def __init__(self, parallel_commits: int = 1) -> None:
        self.parallel_commits = parallel_commits
        self.batches: list[list[Unit]] = []
        self.told: list[tuple[int, ...]] = []
        self.bad: set[str] = set()
        self.trouble: Exception | None = None
        self.most_rows = 10**9
        """A commit of more rows exceeds the time limit."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers: dict[str, UnitAnswer] = {}
        self.telling = asyncio.Event()
        self.telling.set()

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        self.batches.append(list(units))
        await self.gate.wait()
        if self.trouble:
            raise self.trouble
        if sum(1 + len(unit.tasks) for unit in units) > self.most_rows:
            raise StoreTimeout("took too long and was interrupted")
        if any(name_of(unit) in self.bad for unit in units):
            raise ValueError("cannot be stored")
        return [self.answers.get(name_of(unit), DONE) for unit in units]

    async def notify(self, queue_ids: Sequence[int]) -> None:
        self.told.append(tuple(sorted(queue_ids)))
        await self.telling.wait()


def settle_of(name: str) -> Unit:
    return Unit(Claim(name, 1, "owner-1"), succeed())


def name_of(unit: Unit) -> str:
    return unit.guard.task_id if unit.guard else ""


class Bench:
    def __init__(self, parallel_commits: int = 1) -> None:
        self.clock = ManualClock()
        self.store = SlowStore(parallel_commits)
        self.events = Events()
        self.committer = Committer(self.store, self.clock, self.events)  # type: ignore[arg-type]

    def names(self) -> list[list[str]]:
        return [[name_of(unit) for unit in batch] for batch in self.store.batches]

    async def turn(self) -> None:
        """Let everything happen that can happen without time passing."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def retries(self, count: int, seconds: float = 2.0) -> None:
        """Let time pass until the store was tried `count` times in all."""
        async with asyncio.timeout(BOUND):
            while len(self.store.batches) < count:
                await self.turn()
                if self.clock.sleeping:
                    self.clock.advance(seconds)

    async def until(self, done: Callable[[], bool]) -> None:
        """Let time pass until something has happened."""
        async with asyncio.timeout(BOUND):
            while not done():
                await self.turn()
                if self.clock.sleeping:
                    self.clock.advance(2.0)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_lone_unit_is_committed_immediately(bench: Bench) -> None:
    assert await bench.committer.submit(settle_of("a")) == DONE
    assert bench.names() == [["a"]]


async def test_units_of_one_loop_iteration_share_a_commit(bench: Bench) -> None:
    await asyncio.gather(*(bench.committer.submit(settle_of(name)) for name in "abc"))
    assert bench.names() == [["a", "b", "c"]]


async def test_units_queued_during_a_commit_are_batched_into_the_next(bench: Bench) -> None:
    bench.store.gate.clear()
    first = bench.committer.submit(settle_of("a"))
    await bench.turn()
    others = []
    for name in "bcd":
        others.append(bench.committer.submit(settle_of(name)))
        await bench.turn()
    assert bench.names() == [["a"]]
    bench.store.gate.set()
    await asyncio.gather(first, *others)
    assert bench.names() == [["a"], ["b", "c", "d"]]


async def test_a_store_with_two_parallel_commits_receives_two() -> None:
    bench = Bench(parallel_commits=2)
    bench.store.gate.clear()
    answers = []
    for name in "abcd":
        answers.append(bench.committer.submit(settle_of(name)))
        await bench.turn()
    assert bench.names() == [["a"], ["b"]]
    bench.store.gate.set()
    await asyncio.gather(*answers)
    assert bench.names() == [["a"], ["b"], ["c", "d"]]


async def test_a_commit_has_a_largest_size_unless_one_unit_is_larger(bench: Bench) -> None:
    big = Unit(tasks=tuple(new_task() for _ in range(BATCH_ROWS + 10)))
    small = [settle_of(str(number)) for number in range(BATCH_ROWS + 1)]
    await asyncio.gather(*(bench.committer.submit(unit) for unit in [big, *small]))
    assert [len(batch) for batch in bench.store.batches] == [1, BATCH_ROWS, 1]


async def test_bisection_isolates_the_failing_unit(bench: Bench) -> None:
    bench.store.bad = {"d"}
    answers = [bench.committer.submit(settle_of(name)) for name in "abcdefg"]
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(answer) for answer in found] == [UnitAnswer] * 3 + [ValueError] + [UnitAnswer] * 3


async def test_a_batch_over_the_time_limit_is_split_until_it_fits_and_the_next_ones_stay_small(bench: Bench) -> None:
    bench.store.most_rows = 3
    settles = [bench.committer.submit(settle_of(f"t{n}")) for n in range(16)]
    await bench.until(lambda: all(each.done() for each in settles))
    assert [each.result() for each in settles] == [DONE] * 16
    sizes = [len(batch) for batch in bench.store.batches]
    assert sizes[0] == 16
    assert sum(size for size in sizes if size <= 3) == 16  # each unit was committed once
    again = [bench.committer.submit(settle_of(f"u{n}")) for n in range(16)]
    await bench.until(lambda: all(each.done() for each in again))
    assert max(len(batch) for batch in bench.store.batches[len(sizes) :]) < 16
    bench.store.most_rows = 10**9
    for _ in range(12):
        await bench.committer.submit(settle_of("x"))
    del bench.store.batches[:]
    last = [bench.committer.submit(settle_of(f"v{n}")) for n in range(100)]
    await bench.until(lambda: all(each.done() for each in last))
    assert [len(batch) for batch in bench.store.batches] == [100]  # the limit has grown back


async def test_one_unit_over_the_time_limit_fails_a_caller_and_is_kept_for_a_settle(bench: Bench) -> None:
    bench.store.most_rows = 3
    large = Unit(tasks=tuple(new_task() for _ in range(4)))
    caller = bench.committer.submit(large, patience=0.0)
    await bench.until(caller.done)
    assert isinstance(caller.exception(), StoreTimeout)
    settle = bench.committer.submit(Unit(Claim("t", 1, "o"), succeed(), tuple(new_task() for _ in range(4))))
    await bench.retries(4)
    assert not settle.done()
    bench.store.most_rows = 10
    await bench.until(settle.done)
    assert settle.result() == DONE


async def test_callers_are_refused_while_too_many_rows_wait_for_a_slow_store_and_settles_are_not(bench: Bench) -> None:
    bench.store.gate.clear()
    rows = tuple(new_task() for _ in range(999))
    waiting = [bench.committer.submit(Unit(tasks=rows), patience=60.0) for _ in range(MAX_STALLED_ROWS // 1000 + 1)]
    await bench.turn()
    more = bench.committer.submit(Unit(tasks=rows), patience=60.0)  # the store has just begun: it is not slow
    bench.clock.advance(6.0)
    with pytest.raises(StoreOverloaded) as refused:
        bench.committer.submit(settle_of("t"), patience=60.0)
    assert (status_of(refused.value), refused.value.retry_after) == (503, 5000)
    settle = bench.committer.submit(settle_of("s"))
    bench.store.gate.set()
    await bench.until(lambda: all(each.done() for each in (*waiting, more, settle)))
    assert await bench.committer.submit(settle_of("t"), patience=60.0) == DONE


async def test_callers_are_refused_when_far_too_many_rows_wait_for_any_store(bench: Bench) -> None:
    bench.store.gate.clear()
    rows = tuple(new_task() for _ in range(999))
    for _ in range(MAX_QUEUED_ROWS // 1000 + 1):
        bench.committer.submit(Unit(tasks=rows), patience=60.0)
        await asyncio.sleep(0)
    with pytest.raises(StoreOverloaded):
        bench.committer.submit(Unit(tasks=rows), patience=60.0)
    await bench.committer.close()


async def test_callers_that_timed_out_make_room_for_others(bench: Bench) -> None:
    bench.store.trouble = StoreUnavailable("gone")
    settle = bench.committer.submit(settle_of("first"))
    await bench.turn()
    rows = tuple(new_task() for _ in range(999))
    waiting = [bench.committer.submit(Unit(tasks=rows), patience=1.0) for _ in range(MAX_STALLED_ROWS // 1000)]
    with pytest.raises(StoreOverloaded):
        bench.committer.submit(settle_of("t"), patience=1.0)
    await bench.until(lambda: all(each.done() for each in waiting))
    assert {type(each.exception()) for each in waiting} == {StoreUnavailable}
    late = bench.committer.submit(settle_of("t"), patience=60.0)
    bench.store.trouble = None
    await bench.until(lambda: late.done() and settle.done())
    assert (late.result(), settle.result()) == (DONE, DONE)


async def test_settles_are_resent_without_limit_and_callers_time_out(bench: Bench) -> None:
    bench.store.trouble = StoreUnavailable("away")
    settle = bench.committer.submit(settle_of("a"))
    caller = bench.committer.submit(Unit(tasks=(new_task(),)), patience=15.0)
    await bench.retries(30)
    with pytest.raises(StoreUnavailable, match="away"):
        await caller
    assert not settle.done()
    bench.store.trouble = None
    await bench.retries(31)
    assert await settle == DONE
    assert len(bench.store.batches[0]) == 2
    assert len(bench.store.batches[-1]) == 1
    assert bench.events.of(StoreTrouble)
    assert len(bench.events.of(StoreBack)) == 1


async def test_callers_queued_behind_a_hanging_commit_time_out(bench: Bench) -> None:
    bench.store.trouble = StoreUnavailable("away")
    settle = bench.committer.submit(settle_of("a"))
    await bench.turn()
    caller = bench.committer.submit(Unit(tasks=(new_task(),)), patience=15.0)
    started = bench.clock.monotonic()
    async with asyncio.timeout(BOUND):
        while not caller.done():
            await bench.retries(len(bench.store.batches) + 1)
    assert isinstance(caller.exception(), StoreUnavailable)
    assert bench.clock.monotonic() - started < 20
    assert not settle.done()
    await bench.committer.close()
    assert isinstance(settle.exception(), StoreUnavailable)


async def test_a_full_disk_is_raised_to_callers_and_settles_wait_for_space(bench: Bench) -> None:
    bench.store.trouble = StoreFull("no space")
    settle = bench.committer.submit(settle_of("a"))
    caller = bench.committer.submit(Unit(tasks=(new_task(),)), patience=15.0)
    with pytest.raises(StoreFull):
        await caller
    bench.store.trouble = None
    await bench.retries(2)
    assert await settle == DONE


async def test_a_sender_that_gave_up_is_not_sent_again(bench: Bench) -> None:
    bench.store.gate.clear()
    first = bench.committer.submit(settle_of("a"))
    await bench.turn()
    second = bench.committer.submit(settle_of("b"))
    second.cancel()
    bench.store.gate.set()
    await first
    await bench.committer.drain()
    assert bench.names() == [["a"]]


async def test_hooks_receive_finished_and_fenced_tasks_and_ready_queues(bench: Bench) -> None:
    finished: list[str] = []
    fenced: list[str] = []
    ready: list[tuple[int, ...]] = []
    bench.committer.on_finished.append(finished.extend)
    bench.committer.on_fenced.append(fenced.extend)
    bench.committer.on_ready.append(ready.append)
    bench.store.answers = {"b": UnitAnswer(Verdict.CLAIM_LOST), "d": UnitAnswer(Verdict.DONE, queue_ids=(4, 5))}
    units = [settle_of("a"), settle_of("b"), Unit(Seen("c", 0, 0), cancel()), Unit(Seen("d", 0, 0), cancel())]
    await asyncio.gather(*(bench.committer.submit(unit) for unit in units))
    await bench.committer.drain()
    assert finished == ["a", "c", "d"]
    assert fenced == ["c", "d"]
    assert [set(queues) for queues in ready] == [{4, 5}]
    assert bench.store.told == [(4, 5)]


async def test_queues_that_the_store_has_signaled_are_reported_only_in_this_process(bench: Bench) -> None:
    ready: list[tuple[int, ...]] = []
    bench.committer.on_ready.append(ready.append)
    signaled = UnitAnswer(Verdict.DONE, queue_ids=(4,), is_signaled=True)
    bench.store.answers = {"a": signaled, "b": UnitAnswer(Verdict.DONE, queue_ids=(5,))}
    await asyncio.gather(*(bench.committer.submit(settle_of(name)) for name in ("a", "b")))
    await bench.committer.drain()
    assert [set(queues) for queues in ready] == [{4, 5}]
    assert bench.store.told == [(5,)]


async def test_signals_to_others_are_coalesced_and_none_is_lost(bench: Bench) -> None:
    bench.store.telling.clear()
    bench.committer.notify((1,))
    await bench.turn()
    bench.committer.notify((2,))
    bench.committer.notify((3, 2))
    await bench.turn()
    assert bench.store.told == [(1,)]
    bench.store.telling.set()
    await bench.committer.drain()
    assert bench.store.told == [(1,), (2, 3)]


@pytest.mark.parametrize("moments", range(6))
async def test_a_signal_at_any_moment_of_the_one_before_is_sent_too(bench: Bench, moments: int) -> None:
    bench.committer.notify((1,))
    for _ in range(moments):
        await asyncio.sleep(0)
    bench.committer.notify((9,))
    await bench.committer.drain()
    assert sorted(queue for queues in bench.store.told for queue in queues) == [1, 9]


async def test_closing_refuses_queued_units_and_leaves_no_sender(bench: Bench) -> None:
    bench.store.gate.clear()
    answers = [bench.committer.submit(settle_of("a"))]
    await bench.turn()
    answers.append(bench.committer.submit(settle_of("b")))
    await bench.committer.close()
    await bench.turn()
    assert [type(answer.exception()) for answer in answers] == [StoreUnavailable] * 2
    assert bench.names() == [["a"]]
    assert not bench.committer._senders


async def test_a_dying_process_with_canceled_tasks_starts_no_more_senders(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    started: list[asyncio.Task[None]] = []

    def start_canceled(loop: asyncio.AbstractEventLoop, activity: Any, **options: Any) -> asyncio.Task[None]:
        task = asyncio.Task(activity, loop=loop, **options)
        task.cancel()
        started.append(task)
        return task

    loop.set_task_factory(start_canceled)
    answer = bench.committer.submit(settle_of("a"))
    await asyncio.wait([answer])
    loop.set_task_factory(None)
    assert isinstance(answer.exception(), StoreUnavailable)
    assert len(started) == 1
    assert bench.names() == []


async def test_delayed_tasks_notify_the_local_waker_or_other_processes(bench: Bench) -> None:
    later = Unit(tasks=(new_task(delay=5000),))
    await bench.committer.submit(later)
    await bench.turn()
    assert bench.store.told == [(LATER,)]
    expected: list[int] = []
    bench.committer.on_requeued.append(expected.append)
    await bench.committer.submit(later)
    await bench.turn()
    assert expected == [5000]
    assert bench.store.told == [(LATER,)]


async def test_a_callback_receives_one_answer_or_one_error(bench: Bench) -> None:
    heard: list[UnitAnswer | BaseException] = []
    bench.store.answers["lost"] = UnitAnswer(Verdict.CLAIM_LOST)
    bench.store.bad.add("bad")
    for name in ("done", "lost", "bad"):
        bench.committer.submit_callback(settle_of(name), heard.append)
    await bench.turn()
    await bench.committer.drain()
    assert [type(each) for each in heard] == [UnitAnswer, UnitAnswer, ValueError]
    assert heard[:2] == [DONE, bench.store.answers["lost"]]
    bench.store.gate.clear()
    bench.committer.submit_callback(settle_of("sent"), heard.append)
    await bench.turn()
    bench.committer.submit_callback(settle_of("queued"), heard.append)
    await bench.committer.close()
    assert [type(each) for each in heard[3:]] == [StoreUnavailable, StoreUnavailable]


async def test_a_transaction_starts_over_until_its_reads_are_current():
    calls = []

    async def attempt() -> str:
        calls.append(len(calls))
        if len(calls) < 3:
            raise Stale
        return "done"

    assert await Committer.transact(attempt, "do it") == "done"
    assert calls == [0, 1, 2]


async def test_a_transaction_that_always_loses_is_contended():
    calls = []

    async def attempt() -> None:
        calls.append(1)
        raise Stale

    with pytest.raises(Contended, match=r"Could not cancel the run 7: another change came first, 4 times in a row\.") as raised:
        await Committer.transact(attempt, "cancel the run 7", tries=4)
    assert (raised.value.code, len(calls)) == ("contended", 4)
    assert status_of(raised.value) == 503


@pytest.mark.parametrize("verdict", [Verdict.CLAIM_LOST, Verdict.DEFERRED])
async def test_an_operators_unit_that_was_not_done_is_stale(bench, verdict):
    bench.store.answers["late"] = UnitAnswer(verdict)
    with pytest.raises(Stale):
        await bench.committer.commit(Unit(Seen("late", 1, 1), cancel()), patience=1)
    assert await bench.committer.commit(Unit(Seen("current", 1, 1), cancel()), patience=1) == DONE


async def test_a_transition_that_became_illegal_is_stale(bench):
    bench.store.trouble = IllegalTransition("run", "7", "completed", "cancel")
    with pytest.raises(Stale):
        await bench.committer.commit(Unit(Seen("run", 1, 1), cancel()), patience=1)


CLAIMS = [Claim(f"task{number}", 1, "owner-1") for number in range(3)]
TAGGED = {
    "finished": (Unit(CLAIMS[0], succeed()), [0]),
    "requeued": (Unit(CLAIMS[0], Requeue("wait", "pending", 1, 0, 0)), [0]),
    "ended together": (Unit(CLAIMS[0], succeed(), also=((CLAIMS[1], succeed()), (CLAIMS[2], succeed()))), [0, 1]),
    "ended with another": (Unit(CLAIMS[2], succeed(), also=((CLAIMS[1], succeed()),)), [1]),
    "kept": (Unit(CLAIMS[0], Keep(None)), []),
    "unsettled": (Unit(CLAIMS[0]), []),
    "a later claim": (Unit(Claim("task0", 2, "owner-1"), succeed()), []),
    "canceled": (Unit(Seen("task0", 1, 1), cancel()), []),
    "discarded": (Unit(Seen("task0", 1, 1), Discard("discard", "canceled", "me")), []),
}


@pytest.mark.parametrize("name", TAGGED)
async def test_rows_attached_to_a_claim_are_committed_with_its_settlements_until_detached(bench: Bench, name: str) -> None:
    unit, tagged = TAGGED[name]
    for claim in CLAIMS[:2]:
        bench.committer.attach(claim, tag_rows("task", claim.task_id, {"customer": "sacme"}))
    await bench.committer.submit(unit)
    expected = tuple(PutTags("task", f"task{number}", (("customer", "sacme"),)) for number in tagged)
    assert bench.store.batches[0][0].rows == expected
    for claim in CLAIMS:
        bench.committer.detach(claim)
    await bench.committer.submit(unit)
    assert bench.store.batches[1] == [unit]
