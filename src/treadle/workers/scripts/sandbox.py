"""The processes that scripts run in: a host process, and its child for each script. They start fast: nothing here imports Treadle.

The host loads all modules, forks one child per script, kills it on request, and reports its end. It never sees code, parameters or
results: each request comes with a descriptor that the child uses. So no script finds another script's values in inherited memory,
and large values do not delay other scripts. The child applies the limits, reads the request, runs the code and writes the answer.
Each limit notes True, or the reason why it does not hold on this machine. A missing limit does not stop a script: an operator reads
the notes (`treadle doctor`) and decides.

    to the host    {"run": id} with one descriptor, {"kill": id}
    from the host  {"ready": notes}, {"ended": id, "status": n, "cpu": seconds}, {"refused": id, "why": text}
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

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
    return _read_bytes(fd, length(_read_bytes(fd, LENGTH_BYTES)))


def write_frame(fd: int, body: bytes) -> None:
    remaining = memoryview(frame(body))
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


def _read_bytes(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError("The other side has gone.")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


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
    padded = [*arguments, *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    _call("prctl", ctypes.c_int(option), *padded)


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

_BPF_LOAD = 0x20  # ld [k]
_BPF_IF_EQUAL = 0x15
_BPF_IF_AT_LEAST = 0x35
_BPF_RETURN = 0x06
_SECCOMP_KILL = 0x80000000
_SECCOMP_ALLOW = 0x7FFF0000
_SECCOMP_REFUSE = 0x00050000 | errno.EPERM
_X32 = 0x40000000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4


def filter_program(machine: str) -> bytes:
    """Return the filter for that processor; raises OSError if its numbers are not known."""
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"no filter for {machine}, {struct.calcsize('P') * 8} bits")
    column, architecture = _ARCHITECTURES[machine]
    numbers = sorted(both[column] for both in _NUMBERS.values())
    steps = [
        (_BPF_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_BPF_IF_EQUAL, 1, 0, architecture),
        (_BPF_RETURN, 0, 0, _SECCOMP_KILL),
        (_BPF_LOAD, 0, 0, _NUMBER_AT),
        (_BPF_IF_AT_LEAST, len(numbers), 0, _X32),
        *((_BPF_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)),
        (_BPF_RETURN, 0, 0, _SECCOMP_REFUSE),
        (_BPF_RETURN, 0, 0, _SECCOMP_ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def make_filter() -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]]:
    """Return the filter, which points to its code, and that code: built once in the parent, so that a child only installs it."""
    code = ctypes.create_string_buffer(filter_program(os.uname().machine))
    head = struct.pack("HxxxxxxP", (len(code) - 1) // 8, ctypes.addressof(code))
    return ctypes.create_string_buffer(head, len(head)), code


_INDIRECT_MODULES = (
    "__future__", "_strptime", "encodings.ascii", "encodings.cp1252", "encodings.idna", "encodings.latin_1",
    "encodings.punycode", "encodings.raw_unicode_escape", "encodings.unicode_escape", "encodings.utf_16",
    "encodings.utf_16_be", "encodings.utf_16_le", "encodings.utf_32", "encodings.utf_8_sig", "heapq", "locale",
)  # fmt: skip
"""Modules that the modules of scripts import on first use, such as a codec or the date parser."""

BUILTINS: dict[str, Any] = {}
"""The built-ins of a script, filled by `load_modules`: those listed, and an import limited to the modules listed."""

_allowed_modules: list[str] = []


def load_modules(modules: Iterable[str], names: Iterable[str]) -> None:
    """Import all modules that a script may need, as a child cannot read files, and collect its built-ins.

    This happens in the parent: collecting them touches a quarter of the memory pages that a small script touches.
    """
    _allowed_modules[:] = modules
    for name in (*_allowed_modules, *_INDIRECT_MODULES):
        importlib.import_module(name)
    BUILTINS.update((name, getattr(builtins, name)) for name in names if hasattr(builtins, name))
    BUILTINS["__import__"] = _import


def _import(
    name: str,
    globals_: Mapping[str, object] | None = None,
    locals_: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    # The interpreter's own imports (such as the date parser) also call this; they pass a list, an import statement a tuple.
    if level or (name not in _allowed_modules and name != "__future__" and not isinstance(fromlist, list)):
        raise ImportError(f"Scripts cannot import {name!r}. They can import: {', '.join(_allowed_modules)}.", name=name)
    return builtins.__import__(name, globals_, locals_, fromlist or (), 0)


NOBODY = 65534

Notes = dict[str, bool | str]
"""For each limit True, or the reason why it does not hold."""


class SandboxLimits:
    """The limits of one parent's scripts, and whether they hold."""

    def __init__(self, wall: float, cpu: float, memory: int, off: Sequence[str]) -> None:
        self._wall, self._cpu, self._memory, self._off = wall, cpu, memory, off
        self.notes: Notes = {}
        self._own_memory = _address_space()
        self._parent_id = os.getpid()
        self._filter: tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char]] | None = None

    def isolate(self) -> None:
        """Isolate the parent once from network and files; its children inherit this."""
        if sys.platform.startswith("linux"):
            self._try("oom_first", lambda: _write("/proc/self/oom_score_adj", "1000"))
        self._try("network", _leave_network)
        self._try("files", lambda: os.chroot("."))
        self._try("parent_not_dumpable", set_not_dumpable)
        self._try("system_calls", self._prepare_filter)

    def apply(self) -> None:
        """Apply all other limits in a child, in an order in which no step prevents a later one."""
        cpu = max(math.ceil(self._cpu), 1)
        self._limit("cpu", resource.RLIMIT_CPU, cpu, cpu + 1)
        self._limit("memory", resource.RLIMIT_AS, self._own_memory + self._memory)
        self._limit("file_size", resource.RLIMIT_FSIZE, 0)
        self._limit("open_files", resource.RLIMIT_NOFILE, 4)
        self._limit("core_file", resource.RLIMIT_CORE, 0)
        self._try("privileges", _become_nobody)
        self._limit("processes", resource.RLIMIT_NPROC, 0)
        self._try("capabilities", drop_capabilities)
        self._try("no_new_privileges", set_no_new_privileges)
        self._try("not_dumpable", set_not_dumpable)
        self._try("dies_with_parent", self._die_with_parent)
        # As a last resort, the kernel's timer ends a script without a parent.
        signal.setitimer(signal.ITIMER_REAL, self._wall + 5)
        if self._filter is not None:
            program = ctypes.addressof(self._filter[0])
            self._try("system_calls", lambda: set_filter(program))

    def described(self) -> Notes:
        """Return the notes; the system call filter also enforces some other limits."""
        notes = dict(self.notes)
        filtered = notes["system_calls"] is True
        for name in ("network", "files", "processes"):
            if filtered and name not in self._off:
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
        die_with_parent()
        if os.getppid() != self._parent_id:  # the parent ended before the kernel watched it
            os._exit(1)

    def _prepare_filter(self) -> None:
        self._filter = make_filter()

    def _limit(self, name: str, which: int, soft: int, hard: int | None = None) -> None:
        def step() -> None:
            _, most = resource.getrlimit(which)  # never above the worker's own limit
            wanted = (soft, soft if hard is None else hard)
            resource.setrlimit(which, wanted if most == resource.RLIM_INFINITY else (min(soft, most), min(wanted[1], most)))

        self._try(name, step)

    def _try(self, name: str, step: Callable[[], None]) -> None:
        if name in self._off:
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
        unshare(CLONE_NEWNET | CLONE_NEWIPC)
        return
    unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC)
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


CHANNEL = 3
"""The descriptor of the request and the answer; 0, 1 and 2 are /dev/null, and no others are open."""

HIGHEST = 256
"""Upper bound of the parent's descriptors, which its own limit enforces."""

_MESSAGE_LIMIT = 4_000

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def serve_script(channel: int, limits: SandboxLimits) -> NoReturn:
    """Run the script that arrives on the channel, then exit. Called in a fresh fork of the parent; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        os.dup2(channel, CHANNEL)
        os.closerange(CHANNEL + 1, HIGHEST)
        limits.apply()
        gc.enable()
        write_frame(CHANNEL, _answer(read_frame(CHANNEL), limits))
        status = 0
    except MemoryError:
        status = EXIT_MEMORY
    finally:
        os._exit(status)


def _answer(request: bytes, limits: SandboxLimits) -> bytes:
    job = json.loads(request)
    del request
    if "code" not in job:
        return _encode({"result": limits.described()}).encode()
    try:
        code = compile(job["code"], job["source"], "exec", dont_inherit=True)
    except MemoryError:
        return _problem("script_memory", None, "The script is too large to compile.", None)
    except (SyntaxError, ValueError, OverflowError, RecursionError) as error:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return _problem("script_syntax", type(error).__name__, message, getattr(error, "lineno", None))
    return _run(code, job["params"], job["output"])


def _run(code: types.CodeType, params: dict[str, Any], output: int) -> bytes:
    result: dict[str, Any] = {}
    # Its own module, so that classes, dataclasses and annotations find the names of the script.
    module = types.ModuleType("script")
    sys.modules["script"] = module
    namespace = module.__dict__
    namespace.update(params=params, result=result, __builtins__=BUILTINS)
    try:
        exec(code, namespace)  # noqa: S102 - this process exists to run the script
    except BaseException as error:
        which = "script_memory" if isinstance(error, MemoryError) else "script_error"
        kind, message, line = type(error).__name__, _message_of(error), _line(error, code.co_filename)
    else:
        if namespace.get("result") is not result:
            return _invalid(
                "The script assigned another value to `result`. Fill it instead: result['name'] = ... or result.update(...)."
            )
        return _packed(result, output)
    namespace.clear()
    return _problem(which, kind, message, line)


def _packed(result: dict[str, Any], output: int) -> bytes:
    try:
        text = _encode(result).encode()
    except UnicodeEncodeError:
        return _invalid("The result holds half of a surrogate pair, which is not text.")
    except (TypeError, ValueError, RecursionError) as error:
        return _invalid(f"The result is not JSON: {error}. Use dicts, lists, strings, numbers, booleans and None.")
    if len(text) > output:
        return _invalid(f"The result takes {len(text)} bytes as JSON; the limit is {output}.")
    return b'{"result":%b}' % text


def _invalid(message: str) -> bytes:
    return _problem("script_result_invalid", None, message, None)


def _problem(code: str, kind: str | None, message: str, line: int | None) -> bytes:
    text = message[:_MESSAGE_LIMIT].encode(errors="replace").decode()
    return json.dumps({"problem": code, "type": kind, "message": text, "line": line}).encode()


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _line(error: BaseException, source: str) -> int | None:
    """Return the innermost line of the script in the error's traceback."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


_CONTROL = 3


class Parent:
    def __init__(self, control: socket.socket, limits: SandboxLimits) -> None:
        self._control = control
        self._limits = limits
        self._received = bytearray()
        self._channels: deque[int] = deque()
        self._scripts: dict[int, int] = {}
        """The ids of the scripts, by the pids of their children."""

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
                events = dict(ready.poll())
                if woken.fileno() in events:
                    woken.recv(4096)
                self._reap()
                if self._control.fileno() in events and not self._receive():
                    return
        finally:
            for pid in self._scripts:
                _kill_group(pid)

    def _receive(self) -> bool:
        data, channels, _, _ = socket.recv_fds(self._control, 65536, 16)
        self._channels.extend(channels)
        self._received += data
        for message in messages(self._received):
            if "run" in message:
                self._start(message["run"], self._channels.popleft())
            elif "kill" in message:
                for pid, script_id in self._scripts.items():
                    if script_id == message["kill"]:
                        _kill_group(pid)
        return bool(data)

    def _start(self, script_id: int, channel: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"refused": script_id, "why": str(error)})
        else:
            if pid == 0:
                serve_script(channel, self._limits)
            with suppress(OSError):  # the child does the same; either may be first
                os.setpgid(pid, pid)
            self._scripts[pid] = script_id
        os.close(channel)

    def _reap(self) -> None:
        for pid in list(self._scripts):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                script_id = self._scripts.pop(pid)
                with suppress(OSError):  # processes that the script may have started
                    os.killpg(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                cpu = usage.ru_utime + usage.ru_stime
                self._send({"ended": script_id, "status": code, "cpu": cpu})

    def _send(self, message: dict[str, object]) -> None:
        self._control.sendall(pack(message))


def _kill_group(pid: int) -> None:
    """Kill the process group, and the process in case it left the group. Only for a process not yet waited for."""
    for signal_it in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            signal_it(pid, signal.SIGKILL)


def main(control_fd: int, settings: str) -> None:
    if control_fd != _CONTROL:
        os.dup2(control_fd, _CONTROL)
        os.close(control_fd)
    os.closerange(_CONTROL + 1, HIGHEST)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY or most > HIGHEST:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGHEST, HIGHEST))
    options = json.loads(settings)
    load_modules(options["modules"], options["builtins"])
    # Scripts run in UTC and with an empty environment.
    os.environ["TZ"] = "UTC0"  # noqa: TID251
    time.tzset()
    os.environ.clear()  # noqa: TID251
    limits = SandboxLimits(options["wall"], options["cpu"], options["memory"], options["off"])
    limits.isolate()
    control = socket.socket(fileno=_CONTROL)
    control.setblocking(True)
    gc.collect()
    gc.disable()
    gc.freeze()
    with suppress(BrokenPipeError, ConnectionResetError):
        control.sendall(pack({"ready": limits.notes}))
        Parent(control, limits).serve()
