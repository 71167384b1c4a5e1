"""Linux system calls without a Python binding. Each raises OSError if the kernel refuses it or does not have it."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, f"{sys.platform} has no {name}")
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"the C library has no {name}")
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _prctl(option: int, *arguments: object) -> None:
    given = [*arguments, *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    _call("prctl", ctypes.c_int(option), *given)


def unshare(flags: int) -> None:
    """Move to new namespaces of the given kinds."""
    _call("unshare", ctypes.c_int(flags))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Call it after a change of user, which resets it."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def set_not_dumpable() -> None:
    """Prevent core files, and tracing by other processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0))


def set_no_new_privileges() -> None:
    """Prevent programs executed from here on from gaining privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))


def set_filter(program: int) -> None:
    """Pass every later system call through the BPF program at that address."""
    _prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_void_p(program))


def drop_capabilities() -> None:
    """Drop all capabilities that a user namespace, or root, granted."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(nothing))
