"""Ports for servers that are started later."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A port that is free now, below those that the system gives to outgoing connections, which would take it meanwhile."""
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
