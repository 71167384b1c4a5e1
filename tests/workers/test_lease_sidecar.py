"""The lease sidecar: when it acts for its worker, and that there always is one."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.limits import BOUND

from treadle.kernel.store.process import SystemClock
from treadle.kernel.telemetry.events import InterpreterHeld, LoopError, TelemetryEvent
from treadle.workers.call import handler_in, noted, noted_in_thread
from treadle.workers.lease_sidecar.link import LeaseSidecar, SidecarOptions
from treadle.workers.lease_sidecar.process import STARTED, UNKNOWN, Claims, LeaseTable, Sidecar, Slot, silence_limit

LEASE = 60.0
FOREVER = float("inf")


class FakeActor:
    """Renews everything but what is lost; remembers what it was asked for."""

    def __init__(self) -> None:
        self.renewed: list[list[str]] = []
        self.started: list[list[str]] = []
        self.waiting: list[list[str]] = []
        self.lost: set[str] = set()
        self.closed = False
        self.broken = False
        self.declared_dead = 0

    def renew(self, claims: Claims) -> set[str]:
        if self.broken:
            raise OSError("no way to the store")
        self.renewed.append([task_id for task_id, _ in claims])
        return {task_id for task_id, _ in claims} - self.lost

    def release(self, started: Claims, waiting: Claims | None = None) -> int:
        self.started.append([task_id for task_id, _ in started])
        if waiting is not None:
            self.waiting.append([task_id for task_id, _ in waiting])
        return 1

    def declare_dead(self) -> None:
        self.declared_dead += 1

    def close(self) -> None:
        self.closed = True


class Bench:
    """A lease table of a lease renewer that beat at 0, and its sidecar."""

    def __init__(self) -> None:
        self.table = LeaseTable()
        self.table.open(0.0, LEASE, 1.0, 600.0)
        self.actor = FakeActor()
        self.loads = 0
        self.running = True
        self.said: list[str] = []
        self.times = {77: 5, 78: 5}
        self.sidecar = Sidecar(self.table, self.load, lambda: self.running, lambda: dict(self.times), self.said.append)

    def load(self) -> FakeActor:
        self.loads += 1
        return self.actor

    def hold(self, task_id: str, *, renewed_at: float = 0.0, ends_at: float = FOREVER, started: bool = True) -> Slot:
        slot = self.table.hold(task_id, 1, renewed_at, ends_at)
        assert slot is not None
        if started:
            slot.state = STARTED
        return slot


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_while_the_worker_sends_heartbeats_no_module_is_loaded(bench: Bench) -> None:
    bench.hold("a")
    for now in range(100):
        bench.table.state.beat_at = now
        assert bench.sidecar.look(now + 1.0) == 1.0
    assert (bench.loads, bench.said) == (0, [])


def test_after_the_heartbeats_stop_it_renews_due_leases_and_informs_the_worker(bench: Bench) -> None:
    old, fresh, lost = bench.hold("old"), bench.hold("fresh", renewed_at=15.0), bench.hold("lost")
    bench.actor.lost = {"lost"}
    bench.sidecar.look(9.0)
    assert bench.actor.renewed == []
    bench.sidecar.look(20.0)
    assert bench.actor.renewed == [["old", "lost"]]
    assert [slot.extended_at for slot in (old, fresh, lost)] == [20.0, 0.0, 0.0]
    bench.actor.lost = set()
    bench.sidecar.look(39.0)
    assert bench.actor.renewed[1:] == [["fresh", "lost"]]
    bench.sidecar.look(40.0)
    assert bench.actor.renewed[2:] == [["old"]]


def test_the_sidecar_acts_before_an_overdue_lease_expires() -> None:
    for lease in (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0):
        watch, tick = min(1.0, lease / 10), min(1.0, lease / 4)
        limit = silence_limit(lease, watch)
        assert lease / 3 + tick + limit + watch < lease


def test_it_renews_no_lease_past_a_timeout_or_for_too_long(bench: Bench) -> None:
    bench.hold("brief", ends_at=25.0)
    bench.hold("long")
    bench.sidecar.look(20.0)
    bench.sidecar.look(599.0)
    bench.sidecar.look(601.0)
    bench.sidecar.look(700.0)
    assert bench.actor.renewed == [["brief", "long"], ["long"]]
    assert len(bench.said) == 1
    assert "gave up renewing after 600 s" in bench.said[0]


def test_it_renews_no_lease_of_a_stopped_worker(bench: Bench) -> None:
    bench.hold("a")
    bench.running = False
    for now in (20.0, 40.0, 70.0):
        bench.sidecar.look(now)
    assert (bench.actor.renewed, bench.actor.started) == ([], [])


def test_it_releases_the_unstarted_claims_of_a_stopped_worker_once_they_can_no_longer_start(bench: Bench) -> None:
    bench.hold("started")
    bench.hold("waiting", started=False)
    bench.running = False
    bench.sidecar.look(59.5)
    assert bench.actor.started == []
    bench.sidecar.look(59.8)  # the worker itself starts nothing from 59.5 on
    bench.sidecar.look(60.8)
    assert (bench.actor.started, bench.actor.waiting) == ([[]], [["waiting"]])  # a claim that it has yet to receive is its own


def test_a_renewal_is_not_noted_for_the_next_claim_in_the_slot(bench: Bench) -> None:
    slot = bench.hold("a")
    (claim,) = bench.table.claims()
    bench.table.drop(slot)
    assert bench.table.hold("b", 2, 0.0, FOREVER) is slot
    bench.table.keep(claim, 20.0)
    assert slot.extended_at == 0.0


def test_it_names_the_thread_that_uses_the_processor(bench: Bench) -> None:
    bench.hold("a")
    bench.sidecar.look(5.0)
    bench.times[78] += 400
    bench.sidecar.look(20.0)
    assert bench.table.take_holder() == 78
    assert bench.table.take_holder() == 0
    bench.table.state.beat_at = 21.0
    bench.sidecar.look(21.0)
    bench.sidecar.look(32.0)
    bench.sidecar.look(42.0)
    assert bench.table.take_holder() == UNKNOWN  # a call that sleeps with the lock uses no processor


def test_after_an_error_it_tries_again_with_a_new_connection(bench: Bench) -> None:
    bench.hold("a")
    bench.actor.broken = True
    bench.sidecar.look(20.0)
    assert bench.actor.closed
    assert bench.said == ["could not act for its worker: no way to the store"]
    bench.actor.broken = False
    bench.sidecar.look(20.5)
    assert bench.actor.renewed == []
    bench.sidecar.look(21.0)
    assert (bench.actor.renewed, bench.loads) == ([["a"]], 2)


@pytest.mark.parametrize(("started", "claiming", "released"), [(True, False, []), (False, False, [[]]), (True, True, [["a"]])])
def test_it_releases_the_unstarted_claims_of_a_dead_worker(
    bench: Bench, started: bool, claiming: bool, released: list[list[str]]
) -> None:
    bench.hold("a", started=started)
    bench.table.state.claiming = claiming
    assert bench.sidecar.may_detach() == (not released)
    bench.sidecar.leave()
    assert (bench.actor.started, bench.actor.declared_dead) == (released, 1)


def test_an_idle_dead_worker_needs_no_takeover(bench: Bench) -> None:
    assert not bench.sidecar.may_detach()
    bench.sidecar.leave()
    assert (bench.loads, bench.actor.declared_dead) == (0, 0)


def test_slots_are_used_again_and_a_closed_lease_table_is_left_alone(bench: Bench) -> None:
    slot = bench.hold("a")
    bench.table.drop(slot)
    assert bench.hold("b") is slot
    bench.table.close()
    bench.sidecar.look(50.0)
    bench.sidecar.leave()
    assert (bench.loads, [claim.task_id for claim in bench.table.claims()]) == (0, ["b"])


class Kept(threading.Event):
    """A real sidecar process, and the events about it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[TelemetryEvent] = []
        self.sidecar = LeaseSidecar(SidecarOptions("nobody:Nobody", {}, 600.0), LEASE, 1.0, SystemClock(), self.emit)

    def emit(self, event: TelemetryEvent) -> None:
        self.events.append(event)

    def check_until_another_than(self, pid: int | None) -> int:
        for _ in range(round(BOUND / 0.05)):
            self.sidecar.check()
            if (found := self.sidecar.pid) not in (None, pid):
                assert found is not None
                return found
            self.wait(0.05)
        raise AssertionError("no other sidecar was started")


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.sidecar.close()


def test_a_sidecar_that_dies_is_replaced_and_reported(kept: Kept) -> None:
    first = kept.check_until_another_than(None)
    os.kill(first, signal.SIGKILL)
    assert kept.check_until_another_than(first) != first
    (event,) = kept.events
    assert isinstance(event, LoopError)
    assert "ended with -9; another one starts in 1 s" in event.error


@pytest.mark.parametrize("ends_by", ["returning", "raising", "being canceled"])
async def test_awaiting_step_by_step_is_equivalent(ends_by: str) -> None:
    entered = asyncio.Event()

    async def handler() -> str:
        try:
            entered.set()
            if ends_by == "being canceled":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if ends_by == "raising":
                raise KeyError("k")
            return "done"
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            raise

    async def attempt() -> str:
        return await noted("h", handler())

    task = asyncio.ensure_future(attempt())
    await entered.wait()
    if ends_by == "being canceled":
        task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    if ends_by == "returning":
        assert found == "done"
    else:
        assert type(found) is (KeyError if ends_by == "raising" else asyncio.CancelledError)


def test_the_handler_in_a_thread_is_named() -> None:
    thread = threading.Thread(target=noted_in_thread, args=("regex", lambda: None))
    thread.start()
    thread.join()
    assert thread.native_id is not None
    assert handler_in(thread.native_id, None, 1.0, 2.0) == "regex"
    assert handler_in(UNKNOWN, None, 1.0, 2.0) is None


def test_a_blocked_interpreter_is_reported_with_its_fix() -> None:
    from treadle.kernel.queue.why import hold_text

    assert hold_text("a.b", 42.3) == (
        "handler a.b held the Python interpreter for 42 s, so that nothing else in its worker ran; "
        'run it in a process of its own: `isolation="process"`'
    )
    assert InterpreterHeld("a.b", 42.3, 8, "").kept == 8


BEATING = """
import sys
from treadle.workers.lease_sidecar.process import LeaseTable
table = LeaseTable(int(sys.argv[1]))
for at in range(1, 1_000_001):
    table.state.beat_at = float(at)
"""


def test_concurrent_reads_of_a_heartbeat_are_consistent() -> None:
    table = LeaseTable()
    table.open(1.0, LEASE, 1.0, 600.0)
    last = 0.0
    with subprocess.Popen([sys.executable, "-c", BEATING, str(table.file)], pass_fds=[table.file]) as worker:
        while worker.poll() is None:
            for _ in range(1000):
                at = table.state.beat_at
                assert at >= last, "the place of the beat was cleared"
                last = at
    assert (worker.returncode, table.state.beat_at) == (0, 1_000_000.0)
