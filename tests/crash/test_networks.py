"""Networks that change under running processes: a machine that vanishes, and a host name that leads to another server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.chaos.cluster import Cluster, Gate, cluster
from tests.crash.network import FarChild, FarMachine, machine, missing
from tests.crash.own_server import own_server
from tests.crash.scene import Scene, until
from tests.crash.test_takeover import LEASE, leases_end_at, until_tied
from tests.fork_server import ROOT
from tests.installations import list_installations
from tests.limits import BOUND
from tests.ports import free_port

from treadle.settings import child_environment

NAME = "database.treadle.invalid"

pytestmark = pytest.mark.xdist_group("failover")


@pytest.fixture
def far() -> Iterator[FarMachine]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with machine() as made:
        yield made


@pytest.mark.soak
async def test_work_of_a_machine_that_vanishes_restarts_before_its_lease_expires(far: FarMachine, tmp_path: Path) -> None:
    """Nobody closes its connections: TCP keepalives of the database end the session that shows that the worker is there."""
    with own_server(list_installations()[-1], listen_addresses=f"127.0.0.1,{far.address}") as server:
        server.require("trust", network="127.0.0.1/32 trust\nhost all all " + far.network)
        server.start()
        scene = Scene(server.url, tmp_path)
        url = server.url.replace("127.0.0.1", far.address)
        options = [
            "worker",
            "--effects",
            str(tmp_path / "effects"),
            "--go",
            str(scene.go),
            "--lease",
            str(LEASE),
            "--kernel",
            "one",
        ]
        try:
            async with scene.engine:
                first = FarChild(far, url, tmp_path / "far.log", options)
                try:
                    await first.told("ready")
                    task = await scene.engine.enqueue("hang_once")
                    await until(lambda: len(scene.effects("start")) == 1, first)
                    second = await scene.start_worker("--lease", LEASE, "--kernel", "two")
                    await until_tied(scene, first, second)
                    far.unplug()
                    ends_at = await leases_end_at(scene)
                    (ended,) = await scene.finished([task.id])
                    assert await scene.engine.kernel.store.now() < ends_at
                    assert (ended.state, ended.attempt, ended.takeovers) == ("completed", 2, 1)
                    told = await second.told("PresumedDead")
                    assert told["evidence"] == "its session with the database has ended"

                    far.plug_in()  # the worker lives, and finds that it has lost the task
                    await first.told("LeaseLost")
                    assert [pid for _, _, _, pid in scene.effects("end")] == [second.pid]
                    assert await scene.transitions(task.id) == ["expire", "succeed"]
                    await scene.check(1)
                finally:
                    first.destroy()
        finally:
            scene.destroy()


class Names:
    """A process that sees a hosts file of its own, in a mount namespace."""

    def __init__(self, folder: Path, url: str, address: str) -> None:
        self._hosts, self._log = folder / "hosts", folder / "client.log"
        self.lead_to(address)
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, str(self._hosts), sys.executable, "-m", "tests.chaos.name_client", url]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._read() == "ready"

    def lead_to(self, address: str) -> None:
        """Change the address of the name, in the same file."""
        self._hosts.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")

    def put(self) -> str:
        """Have a task stored; returns its id once it is acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self._log.read_text()
        return line

    def destroy(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=BOUND)


def has(three: Cluster, task_id: str) -> bool:
    return bool(three.primary.ask(f"select count(*) from treadle.tasks where id = '{task_id}'"))


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a private hosts file needs root and unshare")
@pytest.mark.parametrize("way", ["killed", "cut off"])
def test_a_changed_dns_entry_is_resolved_again(way: str, tmp_path: Path) -> None:
    """The URL has one name, as that of a managed database has, and the failover changes its address."""
    port = free_port()
    with cluster() as three, ExitStack() as stack:
        address_of = {node.name: f"127.0.0.{number}" for number, node in enumerate(three.nodes, 2)}
        gates = {node.name: Gate(node.port, address_of[node.name], port) for node in three.nodes}
        for gate in gates.values():
            stack.callback(gate.destroy)
            gate.await_ready()
        old = three.primary
        client = Names(tmp_path, f"postgresql://postgres@{NAME}:{port}/postgres", address_of[old.name])
        stack.callback(client.destroy)
        first = client.put()
        assert has(three, first)
        if way == "killed":
            old.kill()
        else:
            old.isolate()
            gates[old.name].shut()
        three.fail_over()
        client.lead_to(address_of[three.primary.name])
        second = client.put()
        assert has(three, first)
        assert has(three, second)
        assert three.primary is not old
