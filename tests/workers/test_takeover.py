"""Which servers are dead, and the watch that frees their work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tests.workers.harness import Events, until

from treadle.kernel.core import Core
from treadle.kernel.store.ports import SERVERS, Store
from treadle.kernel.store.queries import Membership, Sighting
from treadle.kernel.takeover import CHECK_EVERY, CONFIRM_AFTER, WITHDRAWN_FOR, FailureDetector, LivenessReport, judge
from treadle.kernel.telemetry.events import PresumedDead, StoreBack, StoreTrouble, WronglyPresumedDead
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import PROCESS, SESSION
from treadle.testing import ManualClock
from treadle.testing.clock import SeededIds


def sighted(server_id: str = "b", process: str | None = None, **fields: Any) -> Sighting:
    return Sighting(
        **{"server_id": server_id, "name": server_id, "process": process, "silent_for": 0, "beat_every_for": 10_000} | fields
    )


def seen(
    *sightings: Sighting, suspects: Mapping[str, float] | None = None, now: float = 100.0, **ended: bool | None
) -> LivenessReport:
    return judge(sightings, "a", lambda process: ended.get(process), suspects or {}, now)


def dead(found: LivenessReport) -> dict[str, str]:
    return {server_id: kind for server_id, (_, kind) in found.dead.items()}


def test_a_process_that_has_ended_is_dead_at_first_sight() -> None:
    assert dead(seen(sighted("b", "p"), sighted("c", "q"), p=True, q=False)) == {"b": PROCESS}


def test_a_lost_session_counts_only_after_confirmation() -> None:
    gone = sighted(has_session=False)
    first = seen(gone)
    assert (dead(first), first.suspects, first.pause) == ({}, {"b": 100.0}, CONFIRM_AFTER)
    early = seen(gone, suspects=first.suspects, now=100.4)
    assert (dead(early), early.suspects) == ({}, {"b": 100.0})
    assert dead(seen(gone, suspects=first.suspects, now=100.0 + CONFIRM_AFTER)) == {"b": SESSION}


def test_a_session_that_is_back_clears_the_suspicion() -> None:
    back = seen(sighted(has_session=True), suspects={"b": 100.0}, now=100.3)
    assert (dead(back), back.suspects) == ({}, {})
    assert dead(seen(sighted(has_session=False), suspects=back.suspects, now=101.0)) == {}


def test_a_process_that_can_be_seen_is_not_judged_by_its_session() -> None:
    found = seen(sighted("b", "p", has_session=False), suspects={"b": 0.0}, p=False)
    assert (dead(found), found.suspects, found.local) == ({}, {}, {"p"})


def test_a_server_of_another_kernel_or_version_is_judged_by_its_lease_alone() -> None:
    found = seen(sighted("b", "elsewhere"), sighted("c"), suspects={"b": 0.0, "c": 0.0})
    assert (dead(found), found.suspects, found.local) == ({}, {}, set())


def test_a_server_never_declares_itself_dead() -> None:
    assert dead(seen(sighted("a", "p", has_session=False), suspects={"a": 0.0}, p=True)) == {}


def test_a_lone_server_does_not_poll_for_others() -> None:
    assert seen().pause is None
    assert seen(sighted("a", "p"), sighted("old"), sighted("lost", "q", silent_for=30_001), p=False, q=False).pause is None


def test_all_servers_together_poll_at_most_four_times_a_second() -> None:
    for count in (2, 4, 10, 100):
        others = [sighted(f"s{number}", "p") for number in range(count - 1)]
        pause = seen(*others, p=False).pause
        assert pause is not None
        assert pause >= 1.0
        assert count / pause <= 4.0


class FakeStore:
    """The servers that the test has put there; remembers the calls."""

    def __init__(self) -> None:
        self.sightings: list[Sighting] = []
        self.servers = self.tasks = self
        self.calls: list[tuple[str, Any]] = []
        self.recorded = True
        self.trouble: Exception | None = None

    @property
    def looks(self) -> int:
        return sum(name == "look" for name, _ in self.calls)

    async def list_sightings(self) -> list[Sighting]:
        self.calls.append(("look", None))
        if self.trouble:
            raise self.trouble
        return self.sightings

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        self.calls.append(("expire", list(owner_ids)))
        return 7

    async def end(self, evidence: Mapping[str, str | None]) -> list[str]:
        self.calls.append(("end", dict(evidence)))
        self.sightings = [each for each in self.sightings if each.server_id not in evidence]
        return list(evidence) if self.recorded else []

    async def acquire_liveness_lock(self, server_id: str) -> None:
        if self.trouble:
            raise self.trouble
        self.calls.append(("acquire_liveness_lock", server_id))

    async def release_liveness_lock(self, server_id: str) -> None:
        self.calls.append(("leave", server_id))

    async def notify(self, queue_ids: Sequence[int]) -> None:
        self.calls.append(("notify", tuple(queue_ids)))


def watching(
    store: FakeStore,
    clock: ManualClock | None = None,
    events: Events | None = None,
    has_ended: Callable[[str], bool | None] = lambda process: None,
    on_freed: Callable[[], None] = lambda: None,
    *,
    enabled: bool = True,
) -> FailureDetector:
    """The watch of the server `a`."""
    clock, unused = clock or ManualClock(), cast(Any, None)
    core = Core(cast(Store, store), unused, unused, SeededIds(1, clock), clock, Events() if events is None else events)
    return FailureDetector(core, "a", lambda: "p", has_ended, on_freed, enabled=enabled)


class Bench:
    """A watch on a manual clock."""

    def __init__(self) -> None:
        self.clock, self.store, self.events = ManualClock(), FakeStore(), Events()
        self.ended: dict[str, bool | None] = {}
        self.freed = 0
        self.detector = watching(self.store, self.clock, self.events, self.ended.get, self._free)

    def _free(self) -> None:
        self.freed += 1


async def test_leases_end_before_a_death_is_recorded_and_it_is_reported_once() -> None:
    bench = Bench()
    bench.store.sightings, bench.ended["p"] = [sighted("b", "p")], True
    await bench.detector.look()
    assert bench.store.calls == [("look", None), ("expire", ["b"]), ("end", {"b": PROCESS})]
    assert list(bench.events) == [PresumedDead("b", "b", "its process has ended", 7)]
    assert bench.freed == 1


async def test_one_of_several_observers_reports_a_death_and_all_wake_the_work() -> None:
    bench = Bench()
    bench.store.sightings, bench.ended["p"], bench.store.recorded = [sighted("b", "p")], True, False
    await bench.detector.look()
    assert (list(bench.events), bench.freed) == ([], 1)


async def test_work_that_the_lease_sidecar_freed_is_woken_when_the_sidecar_has_ended() -> None:
    bench = Bench()
    bench.store.sightings, bench.ended["p"] = [sighted("b", "p")], False
    await bench.detector.look()
    bench.store.sightings, bench.ended["p"] = [], True  # the sidecar has recorded the death
    await bench.detector.look()
    assert (bench.freed, list(bench.events)) == (1, [])


async def test_a_lone_server_polls_again_when_another_one_registers() -> None:
    bench = Bench()
    await bench.detector.join()
    running = asyncio.create_task(bench.detector.run())
    try:
        await until(lambda: bench.store.looks == 1)
        for _ in range(100):
            bench.clock.advance(10)
            bench.detector.on_heartbeat(Membership(0))
            await asyncio.sleep(0)
        assert (bench.store.looks, bench.clock.sleeping) == (1, 0)
        bench.detector.on_heartbeat(Membership(1))
        await until(lambda: bench.clock.sleeping == 1)
        bench.clock.advance(CHECK_EVERY)
        await until(lambda: bench.store.looks == 2)
    finally:
        running.cancel()


async def test_the_death_of_a_local_process_is_detected_without_polling_the_store() -> None:
    bench = Bench()
    bench.store.sightings, bench.ended["p"] = [sighted("b", "p")], False
    running = asyncio.create_task(bench.detector.run())
    try:
        for _ in range(4):
            await until(lambda: bench.clock.sleeping == 1)
            assert bench.store.looks == 1
            bench.clock.advance(CHECK_EVERY)
        bench.ended["p"] = True
        await until(lambda: bench.freed == 1)
        assert bench.store.looks == 2
    finally:
        running.cancel()


async def test_store_trouble_and_its_end_are_reported_once() -> None:
    bench = Bench()
    bench.store.trouble = StoreUnavailable("away")
    running = asyncio.create_task(bench.detector.run())
    try:
        for looks in (1, 2):
            await until(lambda looks=looks: bench.store.looks == looks and bench.clock.sleeping == 1)
            bench.clock.advance(1)
        bench.store.trouble = None
        await until(lambda: bench.clock.sleeping == 1 or bench.store.looks == 3)
        bench.clock.advance(1)
        await until(lambda: len(bench.events) == 2)
        assert [type(event) for event in bench.events] == [StoreTrouble, StoreBack]
    finally:
        running.cancel()


async def test_a_server_wrongly_declared_dead_withdraws_its_evidence_for_a_while() -> None:
    clock, store, events = ManualClock(), FakeStore(), Events()
    detector = watching(store, clock, events)
    await detector.join()
    assert detector.process == "p"
    assert store.calls == [("acquire_liveness_lock", "a"), ("notify", (SERVERS,))]
    detector.on_heartbeat(Membership(1, PROCESS))
    assert list(events) == [WronglyPresumedDead("its process has ended")]
    assert detector.process is None
    await until(lambda: store.calls.count(("acquire_liveness_lock", "a")) == 2)  # its row has lost the session, too
    detector.on_heartbeat(Membership(1, SESSION))
    await until(lambda: store.calls[-1] == ("leave", "a"))
    detector.on_heartbeat(Membership(1))
    await asyncio.sleep(0)
    assert store.calls[-1] == ("leave", "a")
    clock.advance(WITHDRAWN_FOR)
    assert detector.process == "p"
    detector.on_heartbeat(Membership(1))
    await until(lambda: store.calls.count(("acquire_liveness_lock", "a")) == 3)


async def test_opening_a_session_is_retried() -> None:
    clock, store = ManualClock(), FakeStore()
    detector = watching(store, clock)
    store.trouble = StoreUnavailable("away")
    await detector.join()
    assert store.calls == []
    store.trouble = None
    detector.on_heartbeat(Membership(0))
    await until(lambda: ("acquire_liveness_lock", "a") in store.calls)


async def test_without_fast_takeover_a_server_shows_no_evidence() -> None:
    store = FakeStore()
    detector = watching(store, enabled=False)
    await detector.join()
    await detector.leave()
    assert (detector.process, store.calls) == (None, [])


async def test_a_server_replaces_a_lost_session_with_its_next_heartbeat() -> None:
    store = FakeStore()
    detector = watching(store)
    store.trouble = StoreUnavailable("away")
    await detector.join()
    store.trouble = None
    await asyncio.to_thread(detector.on_heartbeat, Membership(0))  # as in the lease renewer's thread
    await until(lambda: ("acquire_liveness_lock", "a") in store.calls)
    await detector.leave()
    assert store.calls[-1] == ("leave", "a")
    detector.on_heartbeat(Membership(0, PROCESS))
    await asyncio.sleep(0)
    assert store.calls[-1] == ("leave", "a"), "who has left takes no session any more"


async def test_without_fast_takeover_a_server_observes_no_other() -> None:
    store = FakeStore()
    await watching(store, enabled=False).run()
    assert store.calls == []
