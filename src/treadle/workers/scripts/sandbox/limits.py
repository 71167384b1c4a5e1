"""What a script may use: the parent cuts itself off once, each child limits itself before it reads its script.

Every step notes True, or in words why it does not hold on this machine. Nothing is assumed, and nothing missing stops a script:
an operator reads the notes (`treadle doctor`) and decides.
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
"""Of each limit: True, or why it does not hold."""


@dataclass(frozen=True)
class Settings:
    """The limits of one parent's scripts, as its command line gives them."""

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

    def cut_off(self) -> None:
        """In the parent, once: no network and no files for itself and its children, which inherit that."""
        if sys.platform.startswith("linux"):
            self._try("oom_first", lambda: _write("/proc/self/oom_score_adj", "1000"))
        self._try("network", _leave_network)
        self._try("files", lambda: os.chroot("."))
        self._try("parent_not_dumpable", linux.set_not_dumpable)
        self._try("system_calls", self._prepare_filter)

    def apply(self) -> None:
        """In a child: everything else. What comes last is what the earlier steps could not do without."""
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
        # Should all else fail, the kernel's timer ends what nobody watches any more.
        signal.setitimer(signal.ITIMER_REAL, settings.wall + 5)
        if self._filter is not None:
            self._try("system_calls", self._filter.install)

    def described(self) -> Notes:
        """The notes, with what one limit does for another."""
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
        if os.getppid() != self._parent_id:  # it ended before it was watched
            os._exit(1)

    def _prepare_filter(self) -> None:
        self._filter = Filter()

    def _limit(self, name: str, which: int, soft: int, hard: int | None = None) -> None:
        def step() -> None:
            _, most = resource.getrlimit(which)  # what the worker itself is given is not exceeded
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
    """Into a network namespace with no interface up; who is not root needs a user namespace for that."""
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
    """Bytes that the interpreter itself takes: a limit on memory is on top of it."""
    try:
        with open("/proc/self/statm", "rb") as numbers:  # noqa: PTH123 - fewer modules to load
            return int(numbers.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - fewer modules to load
        file.write(text)
