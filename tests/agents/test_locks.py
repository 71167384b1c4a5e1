"""Locks on keys (7.4, D54): one holder, extended and released by it, free once they have run out."""

from __future__ import annotations

import threading

import pytest
from tests.engines import SHARED, url_of

from treadle import Engine
from treadle.agents import LockMetaData, Persistence
from treadle.model.errors import InvalidInput
from treadle.settings import Settings
from treadle.testing import ManualClock


@pytest.mark.postgres
def test_a_lock_has_one_holder_until_it_is_released(persistence):
    assert persistence.acquire_lock("k", 60_000, LockMetaData(topic="t", handler="h", step_name="n", step_id="s"))
    assert not persistence.acquire_lock("k", 60_000)
    assert persistence.acquire_lock("another", 60_000)
    lock = persistence.check_lock("k")
    assert (lock.key, lock.meta.topic, lock.expires_at - lock.acquired_at) == ("k", "t", 60_000)
    assert persistence.release_lock("k")
    assert not persistence.release_lock("k")
    assert persistence.check_lock("k") is None
    assert persistence.acquire_lock("k", 60_000)


def test_an_expired_lock_is_free_and_fences_its_old_holder():
    clock = ManualClock()
    engine = Engine("memory://", settings=Settings(), clock=clock)
    with Persistence(engine=engine) as store:
        assert store.acquire_lock("k", 1_000)
        clock.advance(0.9)
        assert store.extend_lock("k", 1_000)
        clock.advance(0.9)
        assert not store.acquire_lock("k", 1_000)
        clock.advance(0.1)
        assert store.check_lock("k") is None
        assert not store.extend_lock("k", 1_000)
        old = store._held_locks["k"]
        assert store.acquire_lock("k", 1_000)
        assert store.run(store.locks.extend(old, 1_000)) is None
        assert not store.run(store.locks.release(old))
        assert store.extend_lock("k", 1_000)
        assert store.release_lock("k")
        assert store.run(engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("kind", SHARED)
def test_concurrent_acquirers_of_a_lock_have_one_winner(kind, request, tmp_path):
    url = url_of(kind, request, tmp_path)
    stores = [Persistence(url, settings=Settings()) for _ in range(3)]
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda s=store: won.append(s.acquire_lock("k", 60_000))) for store in stores for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert won.count(True) == 1


def test_expired_locks_are_removed():
    clock = ManualClock()
    with Persistence(engine=Engine("memory://", settings=Settings(), clock=clock)) as store:
        for key in ("left", "held"):
            assert store.acquire_lock(key, 1_000)
        clock.advance(3_000)
        assert store.run(store.locks.tidy()) == 0
        assert store.acquire_lock("held", 3_600_000)
        clock.advance(3_599)
        assert store.run(store.locks.tidy()) == 1
        assert store.check_lock("held") is not None
        assert store.acquire_lock("left", 1_000)


def test_a_lock_without_a_key_or_a_duration_is_refused(memory):
    with pytest.raises(InvalidInput):
        memory.acquire_lock("", 1_000)
    with pytest.raises(InvalidInput):
        memory.acquire_lock("k", 0)
    assert not memory.extend_lock("never", 1_000)
