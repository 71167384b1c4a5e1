"""Messages between Treadle, the parent and its children: JSON prefixed with its length in four bytes, big-endian."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("!I")
LENGTH_BYTES = _LENGTH.size

EXIT_MEMORY = 41
"""The exit status of a child that had no memory left to write an answer."""


def frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def pack(message: object) -> bytes:
    return frame(json.dumps(message).encode())


def length(head: bytes | bytearray) -> int:
    """Return the number of bytes that follow the head."""
    return int(_LENGTH.unpack(head)[0])


def messages(received: bytearray) -> Iterator[Any]:
    """Remove all complete messages from the front of the buffer, and yield them."""
    while len(received) >= LENGTH_BYTES:
        end = LENGTH_BYTES + length(received[:LENGTH_BYTES])
        if len(received) < end:
            return
        message = json.loads(received[LENGTH_BYTES:end])
        del received[:end]
        yield message


def read_frame(fd: int) -> bytes:
    """Read the body of the next frame; blocks until it is complete."""
    return _read(fd, length(_read(fd, LENGTH_BYTES)))


def write_frame(fd: int, body: bytes) -> None:
    left = memoryview(frame(body))
    while left:
        left = left[os.write(fd, left) :]


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError("The other side has gone.")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
