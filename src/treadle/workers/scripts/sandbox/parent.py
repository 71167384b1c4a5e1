"""The host process: loads all modules, forks one child per script, kills it after its timeout, reports its end.

It never sees code, parameters or results: each request comes with a descriptor that the child uses. So no script finds another
script's values in inherited memory, and large values do not delay other scripts.

    to the parent    {"run": id} with one descriptor, {"kill": id}
    from the parent  {"ready": notes}, {"ended": id, "status": n, "timeout": bool, "cpu": seconds}, {"refused": id, "why": text}
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from . import child, names, wire
from .limits import Limits, Settings

_CONTROL = 3


@dataclass(slots=True)
class _Script:
    id: int
    ends_at: float
    timeout: bool = False


class Parent:
    def __init__(self, control: socket.socket, limits: Limits) -> None:
        self._control = control
        self._limits = limits
        self._received = bytearray()
        self._channels: deque[int] = deque()
        self._scripts: dict[int, _Script] = {}

    def serve(self) -> None:
        """Serve until the other side closes the connection, then kill all children."""
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        ready = select.poll()
        ready.register(self._control, select.POLLIN)
        ready.register(woken, select.POLLIN)
        try:
            while True:
                events = dict(ready.poll(self._poll_timeout()))
                if woken.fileno() in events:
                    woken.recv(4096)
                self._reap()
                self._end_overdue()
                if self._control.fileno() in events and not self._receive():
                    return
        finally:
            for pid in self._scripts:
                _kill(pid)

    def _poll_timeout(self) -> int | None:
        """Return the milliseconds until the next timeout, at most a minute."""
        ends = [script.ends_at for script in self._scripts.values() if not script.timeout]
        return min(max(int((min(ends) - _now()) * 1000) + 1, 0), 60_000) if ends else None

    def _receive(self) -> bool:
        data, channels, _, _ = socket.recv_fds(self._control, 65536, 16)
        self._channels.extend(channels)
        self._received += data
        for message in wire.messages(self._received):
            if "run" in message:
                self._start(message["run"], self._channels.popleft())
            elif "kill" in message:
                for pid, script in self._scripts.items():
                    if script.id == message["kill"]:
                        _kill(pid)
        return bool(data)

    def _start(self, script_id: int, channel: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"refused": script_id, "why": str(error)})
        else:
            if pid == 0:
                child.serve(channel, self._limits)
            with suppress(OSError):  # the child does the same; either may be first
                os.setpgid(pid, pid)
            self._scripts[pid] = _Script(script_id, _now() + self._limits.settings.wall)
        os.close(channel)

    def _reap(self) -> None:
        for pid in list(self._scripts):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                script = self._scripts.pop(pid)
                with suppress(OSError):  # processes that the script may have started
                    os.killpg(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                cpu = usage.ru_utime + usage.ru_stime
                self._send({"ended": script.id, "status": code, "timeout": script.timeout, "cpu": cpu})

    def _end_overdue(self) -> None:
        now = _now()
        for pid, script in self._scripts.items():
            if script.ends_at <= now and not script.timeout:
                script.timeout = True
                _kill(pid)

    def _send(self, message: dict[str, object]) -> None:
        self._control.sendall(wire.pack(message))


def _kill(pid: int) -> None:
    """Kill the process group, and the process in case it left the group. Only for a process not yet waited for."""
    for signal_it in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            signal_it(pid, signal.SIGKILL)


def _now() -> float:
    return time.monotonic()  # noqa: TID251 - this process has no Clock


def main(control_fd: int, settings: str) -> None:
    if control_fd != _CONTROL:
        os.dup2(control_fd, _CONTROL)
        os.close(control_fd)
    os.closerange(_CONTROL + 1, child.HIGHEST)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most > child.HIGHEST:
        resource.setrlimit(resource.RLIMIT_NOFILE, (child.HIGHEST, child.HIGHEST))
    given = json.loads(settings)
    names.load(given["modules"], given["builtins"])
    # Scripts run in UTC and with an empty environment.
    os.environ["TZ"] = "UTC0"  # noqa: TID251
    time.tzset()
    os.environ.clear()  # noqa: TID251
    limits = Limits(Settings(given["wall"], given["cpu"], given["memory"], tuple(given["off"])))
    limits.isolate()
    control = socket.socket(fileno=_CONTROL)
    control.setblocking(True)
    gc.collect()
    gc.disable()
    gc.freeze()
    with suppress(BrokenPipeError, ConnectionResetError):
        control.sendall(wire.pack({"ready": limits.notes}))
        Parent(control, limits).serve()
