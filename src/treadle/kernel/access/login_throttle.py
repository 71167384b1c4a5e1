"""Failed logins: who has failed too often has to wait. In memory of one process; what it knows is bounded.

A secret of a token cannot be guessed, so this protects the store and the log from whoever tries. It counts by address
(IPv6: by network of 64 bits, as one machine has all of it) and over all; from an address that has logged in before, the count
over all keeps nobody out, so that strangers cannot lock people out.
"""

from __future__ import annotations

import ipaddress
from collections import deque

from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import TooManyAttempts

PER_ADDRESS = 10
OVERALL = 200
WINDOW = 300.0
"""So many failures within so many seconds are let pass; whoever fails more often is refused until the first is that old."""

ADDRESSES = 10_000
"""Addresses that are remembered at most, of each sort."""


class FailedLogins:
    """Call `check` before a login is looked at, then `failed` or `succeeded`.

    For tokens that come with every request, call `check` and `failed` only when one was refused: who shows a valid one need not
    wait for what others at the same address have tried.
    """

    def __init__(self, clock: Clock, *, per_address: int = PER_ADDRESS, overall: int = OVERALL, window: Duration = WINDOW) -> None:
        self._clock = clock
        self._per_address = per_address
        self._window = milliseconds(window, "window", positive=True) / 1000
        self._failures: dict[str, deque[float]] = {}
        self._overall: deque[float] = deque(maxlen=overall)
        self._welcome: dict[str, None] = {}

    def check(self, address: str) -> None:
        """`TooManyAttempts` while that address, or everybody together, has failed too often of late."""
        key = _network(address)
        now = self._clock.monotonic()
        waits = [self._wait(self._failures.get(key), now)]
        if key not in self._welcome:
            waits.append(self._wait(self._overall, now))
        if (wait := max(waits)) > 0:
            raise TooManyAttempts(max(round(wait * 1000), 1))

    def failed(self, address: str) -> None:
        """A login from there has failed."""
        key = _network(address)
        now = self._clock.monotonic()
        times = self._failures.pop(key, None) or deque(maxlen=self._per_address)
        times.append(now)
        self._failures[key] = times  # the one that failed last is the last to be forgotten
        self._overall.append(now)
        _bound(self._failures)

    def succeeded(self, address: str) -> None:
        """A login from there has succeeded: what failed before counts no more."""
        key = _network(address)
        self._failures.pop(key, None)
        self._welcome.pop(key, None)
        self._welcome[key] = None
        _bound(self._welcome)

    def _wait(self, times: deque[float] | None, now: float) -> float:
        """Seconds until another one is let pass: until the first of as many as are allowed is out of the window."""
        if times is None or len(times) < (times.maxlen or 0):
            return 0.0
        return times[0] + self._window - now


def _bound(known: dict[str, deque[float]] | dict[str, None]) -> None:
    while len(known) > ADDRESSES:
        del known[next(iter(known))]


def _network(address: str) -> str:
    """What counts as one address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
