"""Throttling of failed logins, in the memory of one process, with bounded size.

A token's secret cannot be guessed, so this protects the store and the log from floods. It counts failures per address (for
IPv6, per network of 64 bits, all of which one machine has) and in total; the total does not block addresses that have logged in
before, so strangers cannot lock users out.
"""

from __future__ import annotations

import ipaddress
from collections import deque

from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import TooManyAttempts

PER_ADDRESS = 10
OVERALL = 200
WINDOW = 300.0
"""Failures allowed within a window of seconds; further logins are refused until the first failure leaves the window."""

ADDRESSES = 10_000
"""Maximum number of remembered addresses, of each sort."""


class FailedLogins:
    """Call `check` before processing a login, then `failed` or `succeeded`.

    For tokens sent with every request, call `check` and `failed` only for refused ones: a valid token need not wait because of
    failures from the same address.
    """

    def __init__(self, clock: Clock, *, per_address: int = PER_ADDRESS, overall: int = OVERALL, window: Duration = WINDOW) -> None:
        self._clock = clock
        self._per_address = per_address
        self._window = milliseconds(window, "window", positive=True) / 1000
        self._failures: dict[str, deque[float]] = {}
        self._overall: deque[float] = deque(maxlen=overall)
        self._welcome: dict[str, None] = {}

    def check(self, address: str) -> None:
        """Raise `TooManyAttempts` while that address, or all together, has too many recent failures."""
        key = _network(address)
        now = self._clock.monotonic()
        waits = [self._wait(self._failures.get(key), now)]
        if key not in self._welcome:
            waits.append(self._wait(self._overall, now))
        if (wait := max(waits)) > 0:
            raise TooManyAttempts(max(round(wait * 1000), 1))

    def failed(self, address: str) -> None:
        """Record a failed login."""
        key = _network(address)
        now = self._clock.monotonic()
        times = self._failures.pop(key, None) or deque(maxlen=self._per_address)
        times.append(now)
        self._failures[key] = times  # the latest is forgotten last
        self._overall.append(now)
        _bound(self._failures)

    def succeeded(self, address: str) -> None:
        """Record a successful login, and forget the failures of the address."""
        key = _network(address)
        self._failures.pop(key, None)
        self._welcome.pop(key, None)
        self._welcome[key] = None
        _bound(self._welcome)

    def _wait(self, times: deque[float] | None, now: float) -> float:
        """Return the seconds until the next login is allowed: until the oldest counted failure leaves the window."""
        if times is None or len(times) < (times.maxlen or 0):
            return 0.0
        return times[0] + self._window - now


def _bound(entries: dict[str, deque[float]] | dict[str, None]) -> None:
    while len(entries) > ADDRESSES:
        del entries[next(iter(entries))]


def _network(address: str) -> str:
    """Return the key under which an address is counted."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False))
