"""Messages between Treadle, the parent and its children: JSON behind its length, four bytes, most significant first."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("!I")
LENGTH_BYTES = _LENGTH.size

EXIT_MEMORY = 41
"""The status of a child that had not even the memory left to say so."""


def frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def pack(message: object) -> bytes:
    return frame(json.dumps(message).encode())


def length(head: bytes | bytearray) -> int:
    """How many bytes follow the given head."""
    return int(_LENGTH.unpack(head)[0])


def messages(received: bytearray) -> Iterator[Any]:
    """Take all complete messages from the front of what was received; the rest stays."""
    while len(received) >= LENGTH_BYTES:
        end = LENGTH_BYTES + length(received[:LENGTH_BYTES])
        if len(received) < end:
            return
        message = json.loads(received[LENGTH_BYTES:end])
        del received[:end]
        yield message


def read_frame(fd: int) -> bytes:
    """The next frame's body; blocks until all of it is there."""
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
