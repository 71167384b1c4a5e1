"""Throttling of failed logins, in the memory of one process, with bounded size.

A token's secret cannot be guessed, so a valid one is never refused, whoever else failed from its address: behind a proxy, everybody
has the same one. The throttle tells callers with wrong secrets to stop. It counts failures per address (for IPv6, per network of 64
bits, all of which one machine has).
"""

from __future__ import annotations

import ipaddress
from collections import deque

from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import TooManyAttempts

PER_ADDRESS = 10
WINDOW = 300.0
"""Failures allowed within a window of seconds; further ones have to wait until the first failure leaves the window."""

ADDRESSES = 10_000
"""Maximum number of remembered addresses."""


class FailedLogins:
    """Counts the logins that were refused."""

    def __init__(self, clock: Clock, *, per_address: int = PER_ADDRESS, window: Duration = WINDOW) -> None:
        self._clock = clock
        self._per_address = per_address
        self._window = milliseconds(window, "window", positive=True) / 1000
        self._failures: dict[str, deque[float]] = {}

    def failed(self, address: str) -> None:
        """Record a failed login; raise `TooManyAttempts`, and record nothing, if the address has too many recent ones."""
        key, now = _network(address), self._clock.monotonic()
        times = self._failures.pop(key, None) or deque[float](maxlen=self._per_address)
        self._failures[key] = times  # the latest is forgotten last
        if len(times) == self._per_address and (wait := times[0] + self._window - now) > 0:
            raise TooManyAttempts(max(round(wait * 1000), 1))
        times.append(now)
        while len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]


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
