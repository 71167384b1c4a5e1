"""Addresses in one normal form, so that an allowed address is compared with the one that a request would reach."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_PORTS = {"http": 80, "https": 443}
_NUMBER = re.compile(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*")


class Address(NamedTuple):
    """An origin and the decoded names of a path; a local path has an empty scheme."""

    scheme: str
    host: str
    port: int | None
    names: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, str, int | None]:
        """Scheme, host and port."""
        return self[:3]

    def is_below(self, other: Address) -> bool:
        """Return whether this is the other address, or below its path."""
        return self.origin == other.origin and self.names[: len(other.names)] == other.names


def normalize(address: str) -> Address | None:
    """Return the normal form; None for an address that is ambiguous: with a user, or a path that climbs or hides a separator.

    Letter case, default ports, a final dot, international names, percent-encoding and all notations of an IP address are resolved.
    """
    if "://" not in address:
        return _path("", "", None, address.split("/"))
    try:
        split = urlsplit(address)
        scheme, port = split.scheme.lower(), split.port
        host = _host(split.hostname or "")
        names = [_decoded(name) for name in split.path.split("/")]
    except ValueError:
        return None
    return None if "@" in split.netloc else _path(scheme, host, port or _PORTS.get(scheme), names)


def is_allowed(address: str, allowed: Iterable[str]) -> bool:
    """Return whether the address is, or is below, an allowed one. Symbolic links and host names are not resolved."""
    place = normalize(address)
    return place is not None and any(place.is_below(other) for each in allowed if (other := normalize(each)) is not None)


def _path(scheme: str, host: str, port: int | None, names: Iterable[str]) -> Address | None:
    found = tuple(name for name in names if name)
    if any(name in (".", "..") or "/" in name or "\\" in name for name in found):
        return None
    return Address(scheme, host, port, found)


def _decoded(name: str) -> str:
    """Decode percent-encoding until nothing is left to decode: servers behind proxies may decode twice."""
    while (plain := unquote(name, errors="strict")) != name:
        name = plain
    return name


def _host(host: str) -> str:
    host = host.rstrip(".").lower()
    if ":" in host:
        parsed = ipaddress.IPv6Address(host.partition("%")[0])
        return str(parsed.ipv4_mapped or parsed)
    return _ipv4(host) or host.encode("idna").decode()


def _ipv4(host: str) -> str | None:
    """Return the dotted form of any notation of an IPv4 address: `127.1`, `0x7f000001`, `0177.0.0.1`; None for a name."""
    parts = host.split(".")
    if not all(_NUMBER.fullmatch(part) for part in parts) or len(parts) > 4:
        return None
    *first, last = [int(part, 16 if part.startswith("0x") else 8 if part.startswith("0") else 10) for part in parts]
    value = last
    for place, number in enumerate(first):
        value += number << 8 * (3 - place)
    return str(ipaddress.IPv4Address(value))
