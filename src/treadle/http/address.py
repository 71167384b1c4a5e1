"""The address that a server listens on: loopback unless said otherwise; a taken port, then the next free one (D57)."""

from __future__ import annotations

import errno
import ipaddress
import socket

from treadle.model.errors import TreadleError

MAX_PORT_ATTEMPTS = 10
"""Ports after the wanted one that are tried."""

_BACKLOG = 2048


class CannotListen(TreadleError):
    """The address cannot be listened on: it is not this machine's, not allowed, or all ports tried are taken."""

    code = "cannot_listen"


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine reaches that address, whatever it is called; an empty one means every address."""
    return bool(host) and all(ipaddress.ip_address(address).is_loopback for _, address in _resolve(host))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or on one of the next ports; raises `CannotListen`."""
    family, address = _resolve(host)[0]
    for attempt in range(MAX_PORT_ATTEMPTS + 1 if port else 1):
        wanted = port + attempt
        if wanted > 65535:
            break
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address, wanted))
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise CannotListen(f"{host} port {wanted} cannot be listened on: {error.strerror}.") from None
        else:
            made.setblocking(False)
            return made
    raise CannotListen(f"Port {port} of {host} is taken, and the {MAX_PORT_ATTEMPTS} after it too; choose another with --port.")


def url_of(listener: socket.socket) -> str:
    """The address in a form that a client on this machine can use."""
    host, port = listener.getsockname()[:2]
    if (at := ipaddress.ip_address(host)).is_unspecified:  # all addresses, loopback among them
        host = "127.0.0.1" if at.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolve(host: str) -> list[tuple[int, str]]:
    """The family and address of each meaning of the name; IPv4 first, as most look there for what is called localhost."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"There is no address {host!r} here: {error.strerror}.") from None
    return sorted(((family, str(place[0])) for family, _, _, _, place in found), key=lambda each: each[0] != socket.AF_INET)
