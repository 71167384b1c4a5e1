"""The scaling signal: pure arithmetic on depth, age and service time, which never moves the wrong way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.kernel.reads.demand import Load, check_bounds, desired_workers, scaling, service_for, slots_for
from treadle.model.errors import InvalidInput, InvalidPolicy
from treadle.model.tasks import Task

TARGET = 30_000

LOADS = st.builds(
    Load,
    ready=st.integers(0, 5_000),
    running=st.integers(0, 500),
    oldest_for=st.integers(0, 200_000),
    service_for=st.none() | st.floats(0, 3_600_000),
    rate=st.none() | st.floats(0.001, 1000),
)


@pytest.mark.parametrize(
    ("load", "slots"),
    [
        (Load(0, 0), 0),
        (Load(0, 4, service_for=1_000), 4),
        (Load(30, 0, 0, 1_000), 1),  # thirty seconds of work, thirty seconds to start it
        (Load(300, 0, 0, 1_000), 10),
        (Load(300, 5, 0, 1_000), 15),
        (Load(300, 0, 15_000, 1_000), 20),  # half of the time is gone
        (Load(300, 0, 30_000, 1_000), 40),  # late: a quarter of the target is left
        (Load(300, 0, 86_400_000, 1_000), 40),  # and no less
        (Load(3, 0, 0, 3_600_000), 3),  # one slot each is all that can be of use
        (Load(10, 0, 0, 0.0), 1),
        (Load(10, 2, 0, None), 3),  # nothing is known: one more than run
        (Load(300, 0, 0, 1_000, rate=2), 2),  # two a second start, and take a second each
    ],
)
def test_slots_suffice_to_start_all_ready_tasks_within_the_target(load: Load, slots: int):
    assert slots_for(load, TARGET) == slots


def test_queues_add_up_and_workers_have_many_slots_and_bounds_hold():
    loads = [Load(300, 0, 0, 1_000), Load(0, 4)]
    assert desired_workers(loads, target_for=TARGET, concurrency=1) == 14
    assert desired_workers(loads, target_for=TARGET, concurrency=10) == 2
    assert desired_workers(loads, target_for=TARGET, concurrency=1, maximum=5) == 5
    assert desired_workers([], target_for=TARGET, concurrency=10) == 0
    assert desired_workers([], target_for=TARGET, concurrency=10, minimum=2) == 2


@given(LOADS, st.integers(1, 600_000), st.integers(1, 100))
def test_desired_workers_are_monotonic_in_the_load(load: Load, target_for: int, concurrency: int):
    def want(**more: object) -> int:
        fields = {name: getattr(load, name) for name in ("ready", "running", "oldest_for", "service_for", "rate")}
        return desired_workers([Load(**fields | more)], target_for=target_for, concurrency=concurrency, maximum=10**9)

    here = want()
    assert want(ready=load.ready + 10) >= here
    assert want(running=load.running + 1) >= here
    assert want(oldest_for=load.oldest_for + 5_000) >= here
    if load.service_for is not None:
        assert want(service_for=load.service_for * 2) >= here
    assert desired_workers([load], target_for=target_for * 2, concurrency=concurrency, maximum=10**9) <= here
    assert math.ceil(load.running / concurrency) <= here <= math.ceil((load.running + load.ready) / concurrency)


def test_service_time_is_the_mean_from_claim_to_end_of_executed_tasks():
    ended = [
        Task(id=str(n), queue_id=1, state="completed", claimed_at=100, finished_at=100 + took) for n, took in enumerate((100, 300))
    ]
    never_taken = Task(id="x", queue_id=1, state="completed", finished_at=5)
    by_operators = [
        Task(id=state, queue_id=1, state=state, claimed_at=100, finished_at=262_000) for state in ("canceled", "ignored")
    ]
    assert service_for([*ended, *by_operators]) == 200
    assert service_for(by_operators) is None
    assert service_for([*ended, never_taken]) == 200
    assert service_for([never_taken]) is None


def test_the_signal_explains_its_figure():
    found = scaling("default", None, [Load(300, 5, 2_000, 1_000)], target_for=TARGET, workers=1, concurrency=10)
    assert (found.desired, found.ready, found.running, found.oldest_for, found.service_for) == (2, 300, 5, 2_000, 1_000)
    assert "300 ready (the oldest for 2 s) and 5 running, each takes 1 s" in found.text
    assert "currently 1" in found.text


def test_invalid_bounds_are_rejected():
    check_bounds(1, None, 0, 0)
    for bad in ((0, 1, 0, 1), (1, 1, 2, 1), (1, 1, -1, 1), (1, 1, 0, 2.5)):
        with pytest.raises(InvalidInput):
            check_bounds(*bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidPolicy):
        check_bounds(1, 0, 0, 1)


def test_an_idle_list_is_reported_as_idle():
    found = scaling("default", None, [], target_for=TARGET, workers=1, concurrency=10, minimum=1)
    assert found.text == "nothing is ready or running: 1 worker(s) of 10 are desired; currently 1"
