"""Which processes of this kernel have ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.engine.machine import SystemMachine, has_ended, kernel_identity, process_identity

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

KERNEL = kernel_identity("here")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def test_this_process_has_not_ended() -> None:
    machine = SystemMachine()
    identity = machine.identity()
    assert identity is not None
    assert machine.has_ended(identity) is False


def test_zombies_and_missing_processes_have_ended(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(KERNEL, child.pid)
    assert identity is not None
    assert has_ended(identity, KERNEL) is False
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(identity, KERNEL) is True
    child.wait()
    assert has_ended(identity, KERNEL) is True


def test_another_process_with_the_same_pid_is_not_mistaken_for_it(child: subprocess.Popen[bytes]) -> None:
    identity = process_identity(KERNEL, child.pid)
    assert identity is not None
    kernel, process = identity.split(" ")
    pid, start = process.split(":")
    assert has_ended(f"{kernel} {pid}:{int(start) - 1}", KERNEL) is True


def test_a_worker_has_ended_when_its_lease_sidecar_has_ended_too(child: subprocess.Popen[bytes]) -> None:
    gone = "1073741824:1"  # greater than the greatest pid
    alive = process_identity(KERNEL, child.pid)
    assert has_ended(f"{KERNEL} {gone}", KERNEL) is True
    assert has_ended(f"{alive} {gone}", KERNEL) is False
    assert has_ended(f"{KERNEL} {gone} {gone}", KERNEL) is True


@pytest.mark.parametrize("identity", ["other-boot/pid:[1] 1:1", "", "x", f"{KERNEL}", f"{KERNEL} one:1", f"{KERNEL} :"])
def test_a_process_of_another_kernel_container_or_version_cannot_be_judged(identity: str) -> None:
    assert has_ended(identity, KERNEL) is None
    assert has_ended(f"{KERNEL} 1073741824:1", None) is None


def test_a_process_in_another_pid_namespace_has_another_kernel() -> None:
    unshare = shutil.which("unshare")
    code = "from treadle.engine.machine import kernel_identity; print(kernel_identity('here'))"
    words = [str(unshare), "--user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces cannot be created here")
    assert found.split("/")[0] == str(KERNEL).split("/")[0]
    assert has_ended(f"{found} 1:1", KERNEL) is None
    words.remove("--mount-proc")  # it sees the processes of the namespace around it under other pids
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "None"


def test_a_process_of_a_host_with_another_name_cannot_be_judged() -> None:
    assert has_ended(f"{kernel_identity('elsewhere')} 1073741824:1", KERNEL) is None


def test_without_proc_a_machine_is_identified_by_host_and_network_address(tmp_path: Path) -> None:
    found = kernel_identity("my host", tmp_path / "proc")
    assert found is None or found.startswith("my-host/")
    (tmp_path / "proc").mkdir()
    assert kernel_identity("my host", tmp_path / "proc") is None  # there is a /proc, which does not say enough
