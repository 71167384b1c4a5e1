"""The address that a server listens on: loopback by default; if the port is taken, the next free one (D57)."""

from __future__ import annotations

import errno
import ipaddress
import socket

from treadle.model.errors import TreadleError

MAX_PORT_ATTEMPTS = 10
"""Ports that are tried after the configured one."""

_BACKLOG = 2048


class CannotListen(TreadleError):
    """The server cannot listen: the address is not local or not permitted, or all tried ports are taken."""

    code = "cannot_listen"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address; an empty one means every address."""
    return bool(host) and all(ipaddress.ip_address(address).is_loopback for _, address in _resolve(host))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the port or one of the next; raises `CannotListen`."""
    family, address = _resolve(host)[0]
    for attempt in range(MAX_PORT_ATTEMPTS + 1 if port else 1):
        wanted = port + attempt
        if wanted > 65535:
            break
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only with this protocol
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address, wanted))
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            if error.errno != errno.EADDRINUSE:
                raise CannotListen(f"Cannot listen on {host} port {wanted}: {error.strerror}.") from None
        else:
            made.setblocking(False)
            return made
    raise CannotListen(f"Port {port} of {host} and the {MAX_PORT_ATTEMPTS} ports after it are taken; choose another with --port.")


def url_of(listener: socket.socket) -> str:
    """The URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    if (at := ipaddress.ip_address(host)).is_unspecified:  # all addresses, loopback among them
        host = "127.0.0.1" if at.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolve(host: str) -> list[tuple[int, str]]:
    """The family and address of each resolution of the name; IPv4 first, as most clients try it first for localhost."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"{host!r} is not an address of this machine: {error.strerror}.") from None
    return sorted(((family, str(place[0])) for family, _, _, _, place in found), key=lambda each: each[0] != socket.AF_INET)
