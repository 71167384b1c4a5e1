"""Retry policies: when an attempt is tried again, to the millisecond."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec
import pytest

from treadle.model.errors import InvalidPolicy
from treadle.model.retry import NO_RETRY, RetryPolicy, as_policy
from treadle.model.stored import read, write


def delays(policy: RetryPolicy, jitter_fraction: float = 0.0) -> list[int | None]:
    return [policy.delay_for(failures, jitter_fraction) for failures in range(1, policy.retries + 2)]


def test_dispatched_jobs_are_retried_after_exactly_1_2_and_4_seconds():
    assert delays(RetryPolicy(retries=3)) == [1_000, 2_000, 4_000, None]
    assert delays(RetryPolicy(retries=3), jitter_fraction=0.999) == [1_000, 2_000, 4_000, None]


def test_the_default_is_one_attempt_without_a_retry():
    assert delays(NO_RETRY) == [None]
    assert RetryPolicy() == NO_RETRY


def test_a_delay_is_never_longer_than_the_cap():
    policy = RetryPolicy.of(5, first=1, factor=10, longest=50)
    assert delays(policy) == [1_000, 10_000, 50_000, 50_000, 50_000, None]


def test_very_many_retries_do_not_overflow():
    policy = RetryPolicy(retries=1_000_000, factor=100.0)
    assert policy.delay_for(1_000_000) == policy.cap_for
    assert policy.delay_for(1_000_001) is None


def test_a_constant_delay_is_a_factor_of_one():
    assert delays(RetryPolicy.of(3, first=timedelta(seconds=2), factor=1)) == [2_000, 2_000, 2_000, None]


def test_jitter_shortens_a_delay_by_up_to_its_share():
    policy = RetryPolicy.of(1, first=10, jitter=0.5)
    assert policy.delay_for(1, 0.0) == 10_000
    assert policy.delay_for(1, 0.5) == 7_500
    assert policy.delay_for(1, 1.0) == 5_000


def test_retries_without_delay_are_possible():
    assert delays(RetryPolicy.of(2, first=0)) == [0, 0, None]


@pytest.mark.parametrize(
    "fields",
    [
        {"retries": -1},
        {"retries": 1_000_001},
        {"retries": 1.5},
        {"retries": True},
        {"first_for": 1.5},
        {"first_for": 1000.0},
        {"cap_for": 1e6},
        {"factor": True},
        {"jitter": True},
        {"first_for": -1},
        {"factor": 0.5},
        {"factor": 0},
        {"factor": 101},
        {"factor": math.nan},
        {"factor": math.inf},
        {"cap_for": 999},
        {"cap_for": -1},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": math.nan},
    ],
)
def test_an_invalid_policy_is_rejected(fields):
    with pytest.raises(InvalidPolicy, match="policy is invalid"):
        RetryPolicy(**fields)


@pytest.mark.parametrize("fields", [{"first": -1}, {"first": math.nan}, {"longest": "x"}, {"first": 10, "longest": 5}])
def test_invalid_durations_of_a_policy_are_refused(fields):
    with pytest.raises(InvalidPolicy):
        RetryPolicy.of(1, **fields)


def test_an_invalid_stored_policy_is_rejected():
    with pytest.raises((msgspec.ValidationError, InvalidPolicy)):
        msgspec.json.decode(b'{"retries":-1}', type=RetryPolicy)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"tries":1}', type=RetryPolicy)


def test_a_policy_survives_being_stored():
    policy = RetryPolicy.of(3, first=0.5, factor=3, longest=60, jitter=0.2)
    assert msgspec.json.decode(msgspec.json.encode(policy), type=RetryPolicy) == policy


def test_a_retry_policy_may_be_a_policy_a_number_or_none():
    assert as_policy(3) == RetryPolicy(retries=3)
    assert as_policy(NO_RETRY) is NO_RETRY
    assert as_policy(None) is None
    for senseless in (True, "3", 2.0, [1]):
        with pytest.raises(InvalidPolicy):
            as_policy(senseless)


class Declined(ValueError):
    pass


DECLINED = [f"{__name__}.Declined", "builtins.ValueError", "builtins.Exception"]


@pytest.mark.parametrize(
    ("on", "never", "classes", "refusal"),
    [
        ((), (), DECLINED, None),
        ((Declined,), (), DECLINED, None),
        ((ValueError,), (), DECLINED, None),
        (ValueError, (), DECLINED, None),
        ((Exception,), (), DECLINED, None),
        (("Declined",), (), DECLINED, None),
        ("Declined", (), DECLINED, None),
        ((f"{__name__}.Declined",), (), DECLINED, None),
        (("elsewhere.Declined",), (), DECLINED, "Declined is not in on"),
        ((KeyError, OSError), (), DECLINED, "Declined is not in on"),
        ((), (Declined,), DECLINED, "Declined is in never"),
        ((), ("ValueError",), DECLINED, "Declined is a ValueError, which is in never"),
        ((Declined,), (ValueError,), DECLINED, "Declined is a ValueError, which is in never"),
        ((), (KeyError,), DECLINED, None),
        ((KeyError,), (KeyError,), [], None),
        ((ValueError,), (), ["ValueError"], None),
        ((), (ValueError,), ["ValueError"], "ValueError is in never"),
        ((), (ValueError,), ["com.example.ValueError"], None),
        ((), ("ValueError",), ["com.example.ValueError"], "ValueError is in never"),
    ],
)
def test_a_policy_selects_exceptions_by_the_names_of_their_classes(on, never, classes, refusal):
    policy = RetryPolicy.of(3, on=on, never=never)
    assert policy.refusal(classes) == refusal
    assert read(RetryPolicy, write(policy)) == policy


@pytest.mark.parametrize("kinds", [(7,), ("",), (int,), ("x" * 201,), 7, (None,), (b"ValueError",)])
def test_exceptions_of_a_policy_are_classes_or_names(kinds):
    for option in ("on", "never"):
        with pytest.raises(InvalidPolicy, match="exception classes"):
            RetryPolicy.of(3, **{option: kinds})


def test_a_function_that_decides_is_not_stored():
    policy = RetryPolicy.of(3, should_retry=lambda error: True)
    assert as_policy(policy, stored=False) is policy
    with pytest.raises(InvalidPolicy, match="should_retry cannot be stored"):
        as_policy(policy)
    with pytest.raises(InvalidPolicy, match="should_retry must be a function"):
        RetryPolicy.of(3, should_retry=7)
