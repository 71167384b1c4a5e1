"""The identity of a process: text by which other processes of the same kernel can see whether it has ended.

It names the kernel and its namespaces, and the pid and start time of the process and of its lease keeper, which acts for the worker
after its death: the worker's work is free for others only when both have ended. Processes of another boot, machine or container
have another kernel part, and cannot be judged. Systems without /proc have no start times: there a reused pid counts as alive.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

_PROC = Path("/proc")
_ENDED = ("Z", "X", "x")
_RANDOM_NODE = 1 << 40
"""Set in a network address that Python made up, because it found none."""


def kernel_identity(host: str, proc: Path = _PROC) -> str | None:
    """Return the identity of this kernel with its namespaces; None if it has none."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        spaces = [str((proc / "self/ns" / name).readlink()) for name in ("pid", "time") if (proc / "self/ns" / name).is_symlink()]
        return "/".join((boot, *spaces)) if boot and spaces else None
    except OSError:
        node = uuid.getnode()
        return None if proc.exists() or node & _RANDOM_NODE else f"{host.replace(' ', '-')}/{node:012x}"


def process_identity(kernel: str | None, *pids: int | None) -> str | None:
    """Return the identity of these processes of this kernel; None if they cannot be identified."""
    found = [f"{pid}:{_start_of(pid)}" for pid in pids if pid is not None]
    return None if kernel is None else " ".join((kernel, *found))


def has_ended(identity: str, kernel: str | None) -> bool | None:
    """Return whether all processes of the identity have ended; None if they are not of this kernel."""
    theirs, *processes = identity.split(" ")
    if kernel is None or theirs != kernel or not processes:
        return None
    try:
        return all(pid_has_ended(int(pid), start) for pid, _, start in (each.partition(":") for each in processes))
    except ValueError:  # another version wrote it
        return None


def pid_has_ended(pid: int, start: str = "") -> bool:
    """Whether the process is gone, a zombie, or another one with its pid. One that cannot be read belongs to another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    found = _stat(pid)
    return found is not None and (found[0] in _ENDED or (start != "" and found[1] != start))


def _start_of(pid: int) -> str:
    found = _stat(pid)
    return found[1] if found else ""


def _stat(pid: int) -> tuple[str, str] | None:
    """Return the state and start time of a process; None if they cannot be read."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (fields[0], fields[19]) if len(fields) > 19 else None
