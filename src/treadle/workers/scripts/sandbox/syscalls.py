"""A filter that allows a script the system calls for computing and answering, and refuses all others with EPERM.

This refuses, also for root: opening files, sockets, new processes and programs, signals, tracing, and changing limits or users.
Numbers differ by processor; on an unlisted one the filter is reported as missing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from . import linux

_NUMBERS = {
    "read": (0, 63), "write": (1, 64), "writev": (20, 66), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62),
    "brk": (12, 214), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216), "munmap": (11, 215), "madvise": (28, 233),
    "futex": (202, 98), "sched_yield": (24, 124), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "clock_getres": (229, 114), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "getrusage": (98, 165), "times": (100, 153), "getrandom": (318, 278),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
}  # fmt: skip
"""The number of each allowed call on x86_64 and on aarch64."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD = 0x20  # ld [k]
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_RETURN = 0x06
_KILL = 0x80000000
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_X32 = 0x40000000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4


def program(machine: str) -> bytes:
    """Return the filter for that processor; raises OSError if its numbers are not known."""
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"no filter for {machine}, {struct.calcsize('P') * 8} bits")
    column, architecture = _ARCHITECTURES[machine]
    numbers = sorted(both[column] for both in _NUMBERS.values())
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, len(numbers), 0, _X32),
        *((_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class Filter:
    """The filter, built once in the parent; a child only installs it."""

    def __init__(self) -> None:
        code = program(os.uname().machine)
        self._code = ctypes.create_string_buffer(code, len(code))
        head = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head, len(head))

    def install(self) -> None:
        linux.set_filter(ctypes.addressof(self._head))
