"""The lease renewer, tick by tick, with a line to the store that a test holds in its hand."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import taken

from treadle.kernel.store.queries import Membership, Renewal
from treadle.kernel.telemetry.events import LoopError, StoreBack, StoreTrouble, TelemetryEvent
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import Claim, Server
from treadle.testing import ManualClock
from treadle.workers.context import Context
from treadle.workers.lease_renewer import LeaseRenewer, RenewerThread
from treadle.workers.lease_sidecar.process import LeaseTable, margin_of

LEASE_FOR = 60_000


class FakeLine:
    """Holds what it is told to hold; remembers what was asked."""

    def __init__(self, lease_for: int) -> None:
        self.lease_for = lease_for
        self.renewed: list[list[Renewal]] = []
        self.ended: list[Claim] = []
        self.checked: list[list[str]] = []
        self.beats: list[Server] = []
        self.lost_by: str | None = None
        self.not_extended: set[str] = set()
        self.gone: set[str] = set()
        self.trouble: Exception | None = None
        self.closed = False
        self.hangs: threading.Event | None = None
        self.asked = threading.Event()

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        if lease_for == margin_of(self.lease_for / 1000) * 1000:
            self.ended += [renewal.claim for renewal in renewals]
            return set()
        assert lease_for == self.lease_for
        self.asked.set()
        if self.hangs is not None:
            self.hangs.wait(BOUND)
        if self.trouble:
            raise self.trouble
        self.renewed.append(list(renewals))
        return {r.claim.task_id for r in renewals} - self.not_extended - self.gone

    def held(self, claims: Sequence[Claim]) -> set[str]:
        if self.trouble:
            raise self.trouble
        self.checked.append([claim.task_id for claim in claims])
        return {claim.task_id for claim in claims} - self.gone

    def beat(self, server: Server) -> Membership:
        if self.trouble:
            raise self.trouble
        self.beats.append(server)
        lost_by, self.lost_by = self.lost_by, None
        return Membership(0, lost_by)

    def now(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


class Bench:
    def __init__(self, lease_for: int = LEASE_FOR) -> None:
        self.clock = ManualClock()
        self.servers = self
        self.line = FakeLine(lease_for)
        self.lost: list[tuple[Claim, str]] = []
        self.lost_one = threading.Event()
        self.events: list[TelemetryEvent] = []
        self.renewer = LeaseRenewer(
            self,  # type: ignore[arg-type] - a store of which nothing but the line is used
            self.clock,
            lease_for,
            self.lose,
            lambda: Server(id="owner-1", name="n", host="h", pid=1, version="1", state="running"),
            self.events.append,
        )

    def lose(self, claim: Claim, reason: str) -> None:
        self.lost.append((claim, reason))
        self.lost_one.set()

    def lease_connection(self) -> FakeLine:
        return self.line

    def hold(self, number: int = 1, progress_for: int | None = None, **fields: Any) -> Context:
        task = taken(id=f"0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a{number:02}", **fields)
        context = Context(task, self.clock.now, lambda _: None)
        self.renewer.hold(context, self.clock.monotonic(), progress_for)
        return context

    def tick(self, seconds: float = 0) -> None:
        self.clock.advance(seconds)
        self.renewer.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_lease_is_renewed_at_a_third_and_not_before(bench: Bench) -> None:
    context = bench.hold()
    bench.tick(19.9)
    assert bench.line.renewed == []
    bench.tick(0.1)
    assert bench.line.renewed == [[Renewal(context.token)]]
    bench.tick(19.9)
    assert len(bench.line.renewed) == 1
    bench.tick(0.1)
    assert len(bench.line.renewed) == 2


def test_all_due_leases_are_renewed_in_one_statement(bench: Bench) -> None:
    contexts = [bench.hold(number) for number in range(50)]
    bench.tick(20)
    assert [{r.claim for r in renewals} for renewals in bench.line.renewed] == [{c.token for c in contexts}]


def test_progress_is_sent_with_the_next_tick_and_once(bench: Bench) -> None:
    context, _ = bench.hold(1), bench.hold(2)
    context.progress(0.25, "a quarter")
    bench.tick(1)
    assert bench.line.renewed == [[Renewal(context.token, True, '{"fraction":0.25,"message":"a quarter"}')]]
    bench.tick(1)
    assert len(bench.line.renewed) == 1


def test_progress_that_could_not_be_sent_is_sent_again(bench: Bench) -> None:
    context = bench.hold()
    context.progress(0.5)
    bench.line.trouble = StoreUnavailable("away")
    bench.tick(1)
    bench.line.trouble = None
    bench.tick(1)
    assert bench.line.renewed == [[Renewal(context.token, True, '{"fraction":0.5}')]]


def test_a_dropped_claim_is_not_renewed(bench: Bench) -> None:
    context = bench.hold()
    bench.renewer.drop(context.token)
    bench.tick(30)
    assert bench.line.renewed == []
    assert bench.lost == []


def test_dropping_an_old_claim_leaves_the_new_one_on_the_same_task(bench: Bench) -> None:
    old = bench.hold(claim_version=1)
    new = bench.hold(claim_version=2)
    bench.renewer.drop(old.token)
    bench.tick(20)
    assert bench.line.renewed == [[Renewal(new.token)]]


def test_a_missing_renewal_is_checked_again_before_the_claim_is_lost(bench: Bench) -> None:
    kept, gone = bench.hold(1), bench.hold(2)
    bench.line.not_extended = {kept.task_id, gone.task_id}
    bench.line.gone = {gone.task_id}
    bench.tick(20)
    assert [claim for claim, _ in bench.lost] == [gone.token]
    assert gone.cancelled
    assert not kept.cancelled
    bench.tick(20)
    assert len(bench.lost) == 1


def test_a_cancel_by_others_is_seen_within_about_a_second(bench: Bench) -> None:
    context = bench.hold()
    bench.tick(0.5)
    assert bench.line.checked == []
    bench.line.gone = {context.task_id}
    bench.tick(0.5)
    assert [claim for claim, _ in bench.lost] == [context.token]
    assert context.cancelled
    assert bench.line.renewed == []


def test_with_very_many_claims_each_is_checked_less_often(bench: Bench) -> None:
    for number in range(6000):
        bench.hold(number)
    bench.tick(1)
    assert bench.line.checked == []
    bench.tick(2)
    assert [len(checked) for checked in bench.line.checked] == [6000]


def test_a_claim_past_its_local_deadline_is_lost_even_when_the_store_is_unavailable(bench: Bench) -> None:
    context = bench.hold()
    bench.line.trouble = StoreUnavailable("away")
    for _ in range(59):
        bench.tick(1)
    assert bench.lost == []
    bench.tick(1)
    assert [claim for claim, _ in bench.lost] == [context.token]
    assert "expired" in bench.lost[0][1]
    assert context.cancelled


def test_the_local_deadline_holds_also_after_an_unexpected_error_of_the_line(bench: Bench) -> None:
    context = bench.hold()
    bench.line.trouble = RuntimeError("?")
    with pytest.raises(RuntimeError):
        bench.tick(60)
    assert [claim for claim, _ in bench.lost] == [context.token]


def test_while_a_renewal_hangs_a_claim_is_lost_before_its_lease_ends() -> None:
    bench = Bench(lease_for=400)
    bench.line.hangs = threading.Event()
    context = bench.hold()
    bench.clock.advance(0.2)
    thread = RenewerThread(bench.renewer, bench.events.append)
    thread.start()
    try:
        assert bench.line.asked.wait(BOUND)
        assert not bench.lost_one.is_set()
        bench.clock.advance(0.17)
        assert bench.lost_one.wait(BOUND)  # 30 ms before another worker can claim the task, and the store has not answered
    finally:
        bench.line.hangs.set()
        thread.stop()
    assert [claim for claim, _ in bench.lost] == [context.token]
    assert context.cancelled


def test_store_trouble_and_its_end_are_reported_once(bench: Bench) -> None:
    bench.hold()
    bench.line.trouble = StoreUnavailable("away")
    bench.tick(20)
    bench.tick(1)
    bench.line.trouble = None
    bench.tick(1)
    bench.tick(1)
    assert [type(event) for event in bench.events] == [StoreTrouble, StoreBack]
    assert bench.lost == []


def test_a_renewal_that_worked_moves_the_local_deadline(bench: Bench) -> None:
    bench.hold()
    bench.tick(30)
    bench.line.trouble = StoreUnavailable("away")
    bench.tick(59)
    assert bench.lost == []
    bench.tick(1)
    assert len(bench.lost) == 1


@pytest.mark.parametrize("whose", ["task", "handler"])
def test_a_handler_without_progress_loses_its_task(bench: Bench, whose: str) -> None:
    context = bench.hold(**{"progress_for": 9000} if whose == "handler" else {})
    if whose == "task":
        bench = Bench()
        task = taken(progress_for=9000)
        context = Context(task, bench.clock.now, lambda _: None)
        bench.renewer.hold(context, bench.clock.monotonic(), 1_000_000)
    bench.tick(3)
    assert [r.progressed for r in bench.line.renewed[0]] == [False]
    bench.tick(5)
    context.progress()
    bench.tick(0.9)
    bench.tick(8.9)
    assert bench.lost == []
    bench.tick(0.1)
    assert [claim for claim, _ in bench.lost] == [context.token] == bench.line.ended
    assert "no progress" in bench.lost[0][1]


def test_a_short_progress_deadline_is_enforced_and_its_lease_ends(bench: Bench) -> None:
    silent, busy = bench.hold(1, progress_for=300), bench.hold(2, progress_for=600)
    assert bench.renewer.tick_every == pytest.approx(0.1)
    busy.progress()
    bench.line.trouble = StoreUnavailable("away")
    bench.tick(1)  # the thread slept when they came
    assert [claim for claim, _ in bench.lost] == [silent.token]
    assert bench.line.ended == []
    bench.line.trouble = None
    bench.tick(0.1)
    assert bench.line.ended == [silent.token]
    assert bench.renewer.tick_every == pytest.approx(0.2)
    for _ in range(20):
        busy.progress()
        bench.tick(0.2)
    assert len(bench.lost) == 1
    bench.tick(0.6)
    assert bench.line.ended == [silent.token, busy.token]


def test_the_sidecar_sees_a_lost_claim_as_started_until_its_handler_has_ended(bench: Bench) -> None:
    table = LeaseTable()
    table.open(0.0, 60.0, 1.0, 600.0)
    bench.renewer._sidecar = SimpleNamespace(table=table, beat=lambda at: 0)  # type: ignore[assignment] - no process
    context = bench.hold(progress_for=9_000)
    bench.renewer.start(context.token)
    begun = bench.clock.monotonic()
    assert [(claim.started, claim.ends_at) for claim in table.claims()] == [(True, begun + 9)]
    bench.clock.advance(5)
    context.progressed = True
    bench.tick()
    assert [claim.ends_at for claim in table.claims()] == [begun + 14]
    bench.tick(10)
    assert len(bench.lost) == 1
    assert [(claim.started, claim.ends_at) for claim in table.claims()] == [(True, 0.0)]
    bench.renewer.drop(context.token)
    assert list(table.claims()) == []


def test_a_server_sends_a_heartbeat_every_ten_seconds(bench: Bench) -> None:
    for _ in range(25):
        bench.tick(1)
    assert len(bench.line.beats) == 3


def test_a_server_declared_dead_reregisters_immediately(bench: Bench) -> None:
    bench.line.lost_by = "process"
    bench.renewer.beat()
    assert len(bench.line.beats) == 2


def test_it_ticks_often_enough_for_its_lease(bench: Bench) -> None:
    assert bench.renewer.tick_every == 1.0
    short = LeaseRenewer(bench, bench.clock, 2000, lambda *_: None, lambda: bench.line.beats[0], bench.events.append)  # type: ignore[arg-type]
    assert short.tick_every == 0.5


def test_the_thread_beats_once_more_and_closes_the_line(bench: Bench) -> None:
    thread = RenewerThread(bench.renewer, bench.events.append)
    thread.start()
    thread.stop()
    assert len(bench.line.beats) == 1
    assert bench.line.closed


def test_the_thread_reports_a_failed_sign_off(bench: Bench) -> None:
    bench.line.trouble = StoreUnavailable("away")
    thread = RenewerThread(bench.renewer, bench.events.append)
    thread.start()
    thread.stop()
    assert [type(event) for event in bench.events] == [LoopError]
    assert bench.line.closed
