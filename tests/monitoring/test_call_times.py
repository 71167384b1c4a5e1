"""Times of calls of the store: a few numbers for each operation."""

from __future__ import annotations

from treadle.kernel.telemetry.events import LoopError
from treadle.kernel.telemetry.observer import CallTimer, StoreCalled
from treadle.testing import ManualClock


def test_calls_are_counted_by_operation_and_the_longest_is_remembered():
    clock = ManualClock()
    timer = CallTimer(clock)
    timer.observe(StoreCalled("claim", 0.01, 1))
    clock.advance(5)
    timer.observe(StoreCalled("commit", 0.3, 1))
    clock.advance(5)
    timer.observe(StoreCalled("commit", 0.1, 0, failed=True))
    commit, claim = timer.list()
    assert (commit.operation, commit.calls, commit.failed, commit.slow) == ("commit", 2, 1, 2)
    assert (commit.total, commit.longest, commit.longest_at) == (0.4, 0.3, timer.since_at + 5_000)
    assert (claim.operation, claim.calls, claim.slow) == ("claim", 1, 0)


def test_only_store_calls_are_counted():
    timer = CallTimer(ManualClock())
    timer.observe(LoopError("waker", "no"))
    assert timer.list() == []
