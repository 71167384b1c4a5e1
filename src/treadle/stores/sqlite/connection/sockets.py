"""Signals between the processes that share a file, through datagram sockets in a directory beside it (`treadle.db-signals`).

Each process that listens has one socket there, with a random name; a sender lists the directory and sends to each. Only users who
may write the database may list the directory and send: the directory and its sockets have the owner and the mode of the database,
and a directory that another user has put there is not used. A crashed process leaves its socket behind; it refuses the next
signal, and whoever notices removes it. A signal may be lost: a reader that is behind receives "anything may have happened".
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from treadle.model.text import safe_logger
from treadle.stores.rules.encoding import NOTIFY_PAYLOAD_LIMIT, format_queues, parse_queues

SUFFIX = "-signals"

POLL_EVERY = 1.0
"""Seconds between polls for work of other processes where sockets are impossible."""

_BACKLOG = 10
"""Datagrams that Linux queues for a socket by default; with this many waiting, some may have been dropped."""

_TRIES = 5
_DESCRIPTORS = Path("/proc/self/fd")
_HAS_DESCRIPTORS = _DESCRIPTORS.is_dir()
_log = safe_logger("treadle.stores.sqlite")

Heard = Callable[[tuple[int, ...]], None]


class SignalSocket:
    """The sender and, while there are subscribers, the receiver of one store."""

    def __init__(self, path: str) -> None:
        self._database = Path(os.path.realpath(path))  # the process may change its directory; all names share the sockets
        self._place = str(_place(self._database))
        self._lock = Lock()
        self._sender: socket.socket | None = None
        self._receiver: Receiver | _Poller | None = None

    def listen(self, heard: Heard) -> None:
        """Call `heard` on the running loop for each signal of another store, until `stop_listening`; idempotent."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._receiver is not None and not self._receiver.loop.is_closed():
                return
            try:
                self._receiver = Receiver(self._database, loop, heard)
            except (OSError, NotImplementedError) as error:
                _log.warning(
                    "No signals from other processes that use %s: polling for their work every second instead. %s",
                    self._database,
                    error,
                )
                self._receiver = _Poller(loop, heard)

    def stop_listening(self) -> None:
        """Remove the socket; idempotent, from any thread."""
        with self._lock:
            receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.stop()

    def send(self, queue_ids: Sequence[int]) -> None:
        """Signal all other stores that listen, from any thread; never blocks and never raises. Without any it takes a few
        microseconds."""
        if not os.path.exists(self._place):  # noqa: PTH110 - each commit comes here
            return
        payload = format_queues(queue_ids).encode()
        own = self._receiver.name if isinstance(self._receiver, Receiver) else None
        with suppress(OSError), _open_directory(self._database) as directory:
            for name in os.listdir(directory):  # noqa: PTH208 - of a descriptor
                if name != own:
                    self._send_to(directory, name, payload)

    def _send_to(self, directory: int, name: str, payload: bytes) -> None:
        with self._lock:
            if self._sender is None:
                self._sender = _new_socket()
        try:
            self._sender.sendto(payload, _address(self._database, directory, name))
        except ConnectionRefusedError:
            with suppress(OSError):  # another sender has removed it
                os.unlink(name, dir_fd=directory)
        except OSError:
            pass  # its process is behind, and will take it that anything may have happened

    def close(self) -> None:
        """Stop listening and sending; idempotent."""
        self.stop_listening()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()


class Receiver:
    """A socket of this process in the directory, read by an event loop."""

    def __init__(self, database: Path, loop: asyncio.AbstractEventLoop, heard: Heard) -> None:
        self.loop, self._heard, self._database = loop, heard, database
        self.name = secrets.token_hex(8)
        self._socket = _new_socket()
        try:
            self._bind()
            loop.add_reader(self._socket.fileno(), self._receive)
        except BaseException:
            self._close()
            raise

    def _bind(self) -> None:
        for retries in reversed(range(_TRIES)):
            _make_directory(self._database)
            try:
                with _open_directory(self._database) as directory:
                    _remove_dead(self._database, directory)
                    self._socket.bind(_address(self._database, directory, self.name))
                    _give(self._database, _place(self._database) / self.name, 0o666)
                return
            except FileNotFoundError:  # the last of the other listeners has just removed the directory
                if not retries:
                    raise

    def _receive(self) -> None:
        """Pass on everything that is waiting, as one signal."""
        queue_ids: set[int] = set()
        everything = False
        for count in range(1, 2 * _BACKLOG):
            try:
                payload = self._socket.recv(NOTIFY_PAYLOAD_LIMIT)
            except OSError:
                break
            queues = parse_queues(payload.decode("ascii", "replace"))
            queue_ids.update(queues)
            everything = everything or not queues or count >= _BACKLOG
        if queue_ids or everything:
            self._heard(() if everything else tuple(queue_ids))

    def stop(self) -> None:
        """Close the socket and remove it, on its loop unless that has ended."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop or self.loop.is_closed():
            self._close()
        else:
            try:
                self.loop.call_soon_threadsafe(self._close)
            except RuntimeError:
                self._close()

    def _close(self) -> None:
        if self._socket.fileno() >= 0 and not self.loop.is_closed():
            with suppress(NotImplementedError):
                self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        place = _place(self._database)
        with suppress(OSError):
            (place / self.name).unlink()
        with suppress(OSError):  # others listen
            place.rmdir()


class _Poller:
    """Assumes every second that anything may have happened."""

    def __init__(self, loop: asyncio.AbstractEventLoop, heard: Heard) -> None:
        self.loop, self._heard = loop, heard
        self._stopped = False
        self._timer = loop.call_later(POLL_EVERY, self._poll)

    def _poll(self) -> None:
        if not self._stopped:
            self._heard(())
            self._timer = self.loop.call_later(POLL_EVERY, self._poll)

    def stop(self) -> None:
        """Stop polling; the last timer does nothing."""
        self._stopped = True


def _new_socket() -> socket.socket:
    endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    endpoint.setblocking(False)
    return endpoint


def _place(database: Path) -> Path:
    """Return the directory of the sockets."""
    return database.with_name(database.name + SUFFIX)


def _access(mode: int) -> int:
    """Return full access for the owner of a database with that mode and for all others who may write it."""
    return 0o700 | (0o070 if mode & 0o020 else 0) | (0o007 if mode & 0o002 else 0)


def _give(database: Path, path: Path, bits: int) -> None:
    """Give the path the access of the database, and its owner if root creates it."""
    status = database.stat()
    path.chmod(_access(status.st_mode) & bits)
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid)


def _make_directory(database: Path) -> None:
    place = _place(database)
    with suppress(FileExistsError):
        place.mkdir(0o700)
        _give(database, place, 0o777)


@contextmanager
def _open_directory(database: Path) -> Iterator[int]:
    """Open the directory; raises `PermissionError` if users may write it who may not write the database."""
    place = f"{database}{SUFFIX}"  # strings here: each commit of a store comes here
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status, owner = os.fstat(directory), os.stat(database)  # noqa: PTH116
        extra = stat.S_IMODE(status.st_mode) & 0o022 & ~_access(owner.st_mode)
        if extra or status.st_uid not in (0, os.geteuid(), owner.st_uid):
            raise PermissionError(f"{place} belongs to another user, or others may write it. Remove it.")
        yield directory
    finally:
        os.close(directory)


def _address(database: Path, directory: int, name: str) -> str:
    """Return an address of a socket in the open directory, of less than the 108 bytes that addresses may have where possible."""
    return f"{_DESCRIPTORS}/{directory}/{name}" if _HAS_DESCRIPTORS else str(_place(database) / name)


def _remove_dead(database: Path, directory: int) -> None:
    """Remove the sockets of processes that have ended without doing so."""
    for name in os.listdir(directory):
        with _new_socket() as probe:
            try:
                probe.connect(_address(database, directory, name))
            except ConnectionRefusedError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
            except OSError:
                pass  # not a socket, or gone
