"""Failed logins: a few are let pass, more have to wait, and memory is bounded."""

from __future__ import annotations

import pytest

from treadle.kernel.access import login_throttle as logins
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.model.errors import InvalidPolicy, TooManyAttempts
from treadle.testing import ManualClock

ADA, EVE = "192.0.2.1", "192.0.2.66"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def fail(failed: FailedLogins, address: str, times: int = 1) -> None:
    for _ in range(times):
        failed.failed(address)


def wait_of(failed: FailedLogins, address: str) -> int:
    """Milliseconds that the address has to wait after another failure; 0 if it has not."""
    try:
        failed.failed(address)
    except TooManyAttempts as error:
        return error.retry_after
    return 0


def test_the_eleventh_failed_login_is_delayed(clock):
    failed = FailedLogins(clock)
    fail(failed, EVE, 10)
    assert wait_of(failed, EVE) == 300_000
    assert wait_of(failed, ADA) == 0


def test_the_wait_ends_when_the_first_failure_is_old_enough(clock):
    failed = FailedLogins(clock)
    fail(failed, EVE, 4)
    clock.advance(100)
    fail(failed, EVE, 6)
    assert wait_of(failed, EVE) == 200_000
    clock.advance(199.999)
    assert wait_of(failed, EVE) == 1
    clock.advance(0.001)
    fail(failed, EVE, 4)  # those of the first four that are out of the window
    assert wait_of(failed, EVE) == 100_000


def test_failing_while_waiting_does_not_extend_the_wait(clock):
    failed = FailedLogins(clock)
    fail(failed, EVE, 10)
    clock.advance(299)
    assert [wait_of(failed, EVE) for _ in range(50)] == [1_000] * 50


def test_ipv6_networks_of_64_bits_and_mapped_ipv4_addresses_count_as_one_address(clock):
    failed = FailedLogins(clock)
    for number in range(5):
        fail(failed, f"2001:db8:1:1::{number}", 2)
        fail(failed, f"::ffff:{EVE}", 2)
    assert wait_of(failed, "2001:db8:1:1:ffff::7%eth0") == wait_of(failed, EVE) == 300_000
    assert wait_of(failed, "2001:db8:1:2::1") == 0


def test_a_client_name_that_is_not_an_ip_address_is_counted_verbatim(clock):
    failed = FailedLogins(clock)
    fail(failed, "testclient", 10)
    assert wait_of(failed, "testclient") == 300_000


def test_memory_is_bounded_for_any_number_of_addresses(clock, monkeypatch):
    monkeypatch.setattr(logins, "ADDRESSES", 50)
    failed = FailedLogins(clock)
    for number in range(500):
        fail(failed, f"10.0.{number // 250}.{number % 250}")
    fail(failed, EVE, 9)
    assert len(failed._failures) == 50
    fail(failed, EVE)
    assert wait_of(failed, EVE) == 300_000  # the latest are those that are remembered


def test_a_window_without_length_is_refused(clock):
    with pytest.raises(InvalidPolicy, match="window"):
        FailedLogins(clock, window=0)
