"""The limits of scripts: the parent isolates itself once, and each child limits itself before it reads its script.

Each step notes True, or the reason why the limit does not hold on this machine. A missing limit does not stop a script: an
operator reads the notes (`treadle doctor`) and decides.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from . import linux
from .syscalls import Filter

NOBODY = 65534

Notes = dict[str, bool | str]
"""For each limit True, or the reason why it does not hold."""


@dataclass(frozen=True)
class Settings:
    """The limits of one parent's scripts, from its command line."""

    wall: float
    cpu: float
    memory: int
    off: tuple[str, ...]


class Limits:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notes: Notes = {}
        self._own_memory = _address_space()
        self._parent_id = os.getpid()
        self._filter: Filter | None = None

    def isolate(self) -> None:
        """Isolate the parent once from network and files; its children inherit this."""
        if sys.platform.startswith("linux"):
            self._try("oom_first", lambda: _write("/proc/self/oom_score_adj", "1000"))
        self._try("network", _leave_network)
        self._try("files", lambda: os.chroot("."))
        self._try("parent_not_dumpable", linux.set_not_dumpable)
        self._try("system_calls", self._prepare_filter)

    def apply(self) -> None:
        """Apply all other limits in a child, in an order in which no step prevents a later one."""
        settings = self.settings
        cpu = max(math.ceil(settings.cpu), 1)
        self._limit("cpu", resource.RLIMIT_CPU, cpu, cpu + 1)
        self._limit("memory", resource.RLIMIT_AS, self._own_memory + settings.memory)
        self._limit("file_size", resource.RLIMIT_FSIZE, 0)
        self._limit("open_files", resource.RLIMIT_NOFILE, 4)
        self._limit("core_file", resource.RLIMIT_CORE, 0)
        self._try("privileges", _become_nobody)
        self._limit("processes", resource.RLIMIT_NPROC, 0)
        self._try("capabilities", linux.drop_capabilities)
        self._try("no_new_privileges", linux.set_no_new_privileges)
        self._try("not_dumpable", linux.set_not_dumpable)
        self._try("dies_with_parent", self._die_with_parent)
        # As a last resort, the kernel's timer ends a script without a parent.
        signal.setitimer(signal.ITIMER_REAL, settings.wall + 5)
        if self._filter is not None:
            self._try("system_calls", self._filter.install)

    def described(self) -> Notes:
        """Return the notes; the system call filter also enforces some other limits."""
        notes = dict(self.notes)
        filtered = notes["system_calls"] is True
        for name in ("network", "files", "processes"):
            if filtered and name not in self.settings.off:
                notes[name] = True
        if not filtered and os.getuid() == 0 and notes["processes"] is True:
            notes["processes"] = "root is not bound by RLIMIT_NPROC"
        if filtered:
            notes["signals"] = True
        elif notes["privileges"] is True:
            notes["signals"] = "scripts cannot signal the parent or the worker, but one another"
        else:
            notes["signals"] = "scripts can signal every process of the worker's user"
        return notes

    def _die_with_parent(self) -> None:
        linux.die_with_parent()
        if os.getppid() != self._parent_id:  # the parent ended before the kernel watched it
            os._exit(1)

    def _prepare_filter(self) -> None:
        self._filter = Filter()

    def _limit(self, name: str, which: int, soft: int, hard: int | None = None) -> None:
        def step() -> None:
            _, most = resource.getrlimit(which)  # never above the worker's own limit
            wanted = (soft, soft if hard is None else hard)
            resource.setrlimit(which, wanted if most == resource.RLIM_INFINITY else (min(soft, most), min(wanted[1], most)))

        self._try(name, step)

    def _try(self, name: str, step: Callable[[], None]) -> None:
        if name in self.settings.off:
            self.notes[name] = "switched off"
            return
        try:
            step()
            self.notes[name] = True
        except (OSError, ValueError) as error:
            self.notes[name] = str(error)


def _leave_network() -> None:
    """Enter a network namespace without active interfaces; a user other than root needs a user namespace for that."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
        return
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _become_nobody() -> None:
    if os.geteuid() != 0:
        raise OSError(f"not started as root: scripts run as user {os.geteuid()}, as the worker does")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _address_space() -> int:
    """Return the interpreter's own address space in bytes, to which the memory limit is added."""
    try:
        with open("/proc/self/statm", "rb") as numbers:  # noqa: PTH123 - fewer modules to load
            return int(numbers.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - fewer modules to load
        file.write(text)
