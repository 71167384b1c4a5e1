"""A real Patroni cluster on one machine: one etcd, and three Patroni nodes with a PostgreSQL each, in synchronous mode.

Patroni decides here: it notices a fault, promotes the synchronous standby, demotes or rewinds the old primary, and lets it follow.
Each node is behind gates: one for its PostgreSQL, one for its REST API, and one for its way to etcd.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
from tests.chaos.cluster import NAMES, Gate, Node, send, wait_until
from tests.installations import Installation, as_user, guard, list_installations, server_user
from tests.limits import BOUND
from tests.ports import free_port

PATRONI, ETCD = shutil.which("patroni"), shutil.which("etcd")

NEWEST = 15
"""The newest PostgreSQL that Debian's Patroni 3.0 knows."""

TTL, LOOP_WAIT, RETRY_TIMEOUT = 20, 4, 5
"""Seconds: a leader that is not heard of for TTL loses the lock. Patroni's defaults are 30, 10 and 10."""

COMPARES_LEADERS = (3, 0, 3)
"""The first Patroni that renews the leader's key through the API of etcd 3 only if the key is still its own.

An earlier one that was stopped after it has read that key, and before it renews it, overwrites the key of the next leader when it
continues: the next leader follows the old one and discards what it has acknowledged. Through the API of etcd 2 it compares.
"""

LEADER = "select not pg_is_in_recovery()"
STREAMING = (
    "select count(distinct application_name) from pg_stat_replication "
    f"where state = 'streaming' and application_name in {NAMES}"  # not pg_basebackup
)


def missing() -> str | None:
    """The reason why no cluster can be made here, or None."""
    if PATRONI is None or ETCD is None:
        return "Patroni or etcd is missing: apt-get install patroni etcd-server"
    if find_installation() is None:
        return f"no PostgreSQL up to {NEWEST} with pg_rewind is installed: apt-get install postgresql-15"
    return None


def find_installation() -> Installation | None:
    """The newest PostgreSQL that Patroni knows."""
    known = [each for each in list_installations() if each.major <= NEWEST and each.can_replicate]
    usable = [each for each in known if (each.bin / "pg_rewind").exists()]
    return usable[-1] if usable else None


def etcd_api() -> str:
    """The section of Patroni's settings for etcd, which chooses its API: one with which a leader never overwrites the next one."""
    said = subprocess.run([str(PATRONI), "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(map(int, said.split()[-1].split(".")[:3]))
    return "etcd3" if version >= COMPARES_LEADERS else "etcd"


class PatroniNode(Node):
    """One Patroni, its PostgreSQL, and their gates."""

    def __init__(self, place: Path, name: str, installation: Installation, etcd_port: int, api: str) -> None:
        super().__init__(place, name, installation)
        self._place, self._api = place, api
        self._rest_port = free_port()
        self._rest, self._etcd = Gate(self._rest_port), Gate(etcd_port)
        self._patroni: subprocess.Popen[bytes] | None = None

    @property
    def _gates(self) -> tuple[Gate, ...]:
        return self._gate, self._rest, self._etcd

    def await_gate(self) -> None:
        for gate in self._gates:
            gate.await_ready()

    def start(self) -> None:
        """Start Patroni, which starts PostgreSQL."""
        settings = self._place / f"{self.name}.json"  # JSON is YAML
        settings.write_text(json.dumps(self._settings()))
        self._patroni = run_beside(self._place, f"{self.name}-patroni", [str(PATRONI), str(settings)])

    def kill(self) -> None:
        """SIGKILL to Patroni and all processes of PostgreSQL, as if the machine had died."""
        self._end_patroni()
        super().kill()

    def isolate(self) -> None:
        """Cut both off from clients, standbys and etcd; they go on by themselves."""
        for gate in self._gates:
            gate.shut()

    def reconnect(self) -> None:
        for gate in self._gates:
            gate.reopen()

    def members(self) -> list[dict[str, Any]]:
        """All nodes, as this one read them in etcd: with their `role` (`leader`, `sync_standby`, `replica`) and `timeline`."""
        with suppress(OSError), urlopen(f"http://127.0.0.1:{self._rest_port}/cluster", timeout=1) as answer:
            return list(json.load(answer)["members"])
        return []

    def suspend_patroni(self) -> None:
        """SIGSTOP to Patroni: PostgreSQL goes on as the primary that it was, and nobody demotes it."""
        assert self._patroni is not None
        send(signal.SIGSTOP, self._patroni.pid)

    def freeze(self) -> None:
        """SIGSTOP to PostgreSQL and Patroni."""
        super().freeze()
        self.suspend_patroni()

    def resume(self) -> None:
        """SIGCONT to all that was stopped; Patroni then finds that it has lost the lock."""
        assert self._patroni is not None
        super().resume()
        send(signal.SIGCONT, self._patroni.pid)

    def destroy(self) -> None:
        self._end_patroni()
        super().destroy()
        for gate in (self._rest, self._etcd):
            gate.destroy()

    def _end_patroni(self) -> None:
        if self._patroni is not None:
            self._patroni.kill()
            self._patroni.wait(BOUND)

    def _settings(self) -> dict[str, Any]:
        everyone = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
        postgresql = {
            "fsync": "off",  # but not full_page_writes, which pg_rewind needs
            "max_connections": 100,
            "shared_buffers": "32MB",
            "unix_socket_directories": "",
            "wal_log_hints": "on",
            "wal_keep_size": "256MB",
            "wal_sender_timeout": "3s",
            "wal_receiver_timeout": "3s",
        }
        return {
            "scope": "treadle",
            "name": self.name,
            "log": {"level": "INFO"},
            "restapi": {"listen": f"127.0.0.1:{self._rest_port}", "connect_address": f"127.0.0.1:{self._rest.port}"},
            # Without `use_proxies`, Patroni asks etcd for the addresses of its members, and passes the gate by.
            self._api: {"host": f"127.0.0.1:{self._etcd.port}", "use_proxies": True},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": LOOP_WAIT,
                    "retry_timeout": RETRY_TIMEOUT,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "use_slots": False, "parameters": postgresql},
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-sync"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.gate_port}",
                "data_dir": str(self.data),
                "bin_dir": str(self._installation.bin),
                "pgpass": str(self._place / f"{self.name}.pgpass"),
                "authentication": {name: {"username": "postgres"} for name in ("superuser", "replication", "rewind")},
                "pg_hba": everyone,
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }


class PatroniCluster:
    """One etcd and three nodes."""

    synchronous = True

    def __init__(self, place: Path, installation: Installation) -> None:
        self._place = place
        self._port, peers = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{peers}"
        etcd = [str(ETCD), "--name", "e0", "--data-dir", str(place / "etcd"), "--listen-client-urls", client]
        etcd += ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        etcd += ["--initial-cluster", f"e0={peer}", "--unsafe-no-fsync"]
        api = etcd_api()
        self._etcd = run_beside(place, "etcd", etcd if api == "etcd3" else [*etcd, "--enable-v2"])
        self.nodes = [PatroniNode(place, name, installation, self._port, api) for name in NAMES]
        self.primary = self.nodes[0]

    def open(self) -> None:
        """Start all nodes and wait until one is the primary, with a synchronous standby and another one."""
        for node in self.nodes:
            node.await_gate()
        self.primary.start()
        wait_until(lambda: self.primary.ask(LEADER))
        for node in self.standbys:
            node.start()
        self.await_standbys(2)

    @property
    def standbys(self) -> list[PatroniNode]:
        return [node for node in self.nodes if node is not self.primary]

    @property
    def url(self) -> str:
        """All servers, through their gates."""
        hosts = ",".join(f"127.0.0.1:{node.gate_port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def await_standbys(self, count: int) -> None:
        """Wait until that many standbys stream from the primary on its timeline, and etcd names the one that may be promoted."""

        def are_there() -> bool:
            members = self.primary.members()
            timelines = [member.get("timeline") for member in members]
            ready = "sync_standby" in [member["role"] for member in members] and timelines.count(timelines[0]) > count
            return ready and self.primary.ask(STREAMING) >= count

        wait_until(are_there)

    def await_promotion(self) -> PatroniNode:
        """Wait until Patroni has promoted another server; return the old primary."""
        old, candidates = self.primary, self.standbys
        found: list[PatroniNode] = []

        def is_promoted() -> bool:
            for node in candidates:
                with suppress(psycopg.Error):
                    if node.ask(LEADER):
                        found.append(node)
            return bool(found)

        wait_until(is_promoted)
        self.primary = found[0]
        return old

    def destroy(self) -> None:
        for node in self.nodes:
            node.destroy()
        self._etcd.kill()
        self._etcd.wait(BOUND)


@contextmanager
def patroni_cluster() -> Iterator[PatroniCluster]:
    """A cluster that is gone afterwards, with its data."""
    installation = find_installation()
    if (reason := missing()) is not None or installation is None:
        raise RuntimeError(f"No Patroni cluster can be made: {reason}.")
    place = Path(tempfile.mkdtemp(prefix="treadle-patroni-"))
    place.chmod(0o755)
    if (user := server_user()) is not None:
        shutil.chown(place, user)
    guard(place)
    made = PatroniCluster(place, installation)
    try:
        made.open()
        yield made
    finally:
        made.destroy()
        shutil.rmtree(place, ignore_errors=True)


def run_beside(place: Path, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a program under the user of the servers; `guard` ends it if this process is killed."""
    with (place / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **as_user())
    (place / f"{name}.pid").write_text(str(process.pid))
    return process
