"""A network namespace: a machine of its own as far as its network goes, whose cable can be pulled. Needs root and iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.crash.scene import Child
from tests.crash.test_lease_sidecar import sidecars_of
from tests.fork_server import ROOT
from tests.limits import BOUND

from treadle.settings import child_environment

IP = shutil.which("ip") or shutil.which("/usr/sbin/ip")


def missing() -> str | None:
    """The reason why there can be no namespace here, or None."""
    if os.geteuid():
        return "network namespaces need root"
    if IP is None:
        return "iproute2 is missing: apt-get install iproute2"
    with suppress(subprocess.CalledProcessError), machine():
        return None
    return "this system does not allow network namespaces"


class FarMachine:
    """A namespace that is connected to this machine by one cable; `address` is that of this machine."""

    def __init__(self) -> None:
        self.name = f"treadle-{secrets.token_hex(3)}"  # an interface has at most 15 letters
        self._here, self._there = f"tr{self.name[-6:]}a", f"tr{self.name[-6:]}b"
        number = secrets.randbelow(1 << 14) * 4
        self.network = f"10.231.{number >> 8}.{number & 255}/30"
        self.address = f"10.231.{number >> 8}.{(number & 255) + 1}"
        self._far_address = f"10.231.{number >> 8}.{(number & 255) + 2}"

    def open(self) -> None:
        """Make the namespace and the cable; they are gone once this process has ended, whatever way it ends."""
        _ip("netns", "add", self.name)
        self._guard()
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.name)
        _ip("addr", "add", f"{self.address}/30", "dev", self._here)
        _ip("link", "set", self._here, "up")
        _ip("-n", self.name, "addr", "add", f"{self._far_address}/30", "dev", self._there)
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.plug_in()

    def _guard(self) -> None:
        exists = '"$2" netns list | grep -q "^$3"'
        ends = '"$2" netns pids "$3" | xargs -r kill -KILL; "$2" link del "$4"; "$2" netns del "$3"'
        script = f'while {exists}; do kill -0 "$1" 2>/dev/null || {{ {ends}; }}; sleep 1; done'
        arguments = ["guardian", str(os.getpid()), str(IP), self.name, self._here]
        command = ["sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &", *arguments]
        subprocess.run(command, check=True, start_new_session=True)

    def unplug(self) -> None:
        """Pull the cable: nothing passes, and neither side is informed."""
        _ip("-n", self.name, "link", "set", self._there, "down")

    def plug_in(self) -> None:
        _ip("-n", self.name, "link", "set", self._there, "up")

    def close(self) -> None:
        for command in (("link", "del", self._here), ("netns", "del", self.name)):
            with suppress(subprocess.CalledProcessError):
                _ip(*command)


@contextmanager
def machine() -> Iterator[FarMachine]:
    """A machine that is gone afterwards."""
    made = FarMachine()
    try:
        made.open()
        yield made
    finally:
        made.close()


class FarChild(Child):
    """A process of `tests.crash.child` on that machine."""

    def __init__(self, place: FarMachine, url: str, log: Path, arguments: list[str]) -> None:
        self._log = log
        command = [str(IP), "netns", "exec", place.name, sys.executable, "-m", "tests.crash.child", *arguments]
        with log.open("wb") as output:
            environment = child_environment(TREADLE_STORE=url)
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        self.pid = self._process.pid

    def destroy(self) -> None:
        """Kill it with its lease sidecar, which cannot act if the cable is pulled."""
        sidecars = sidecars_of(self.pid)
        super().destroy()
        for pid in sidecars:
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)


def _ip(*arguments: str) -> None:
    subprocess.run([str(IP), *arguments], check=True, capture_output=True, timeout=BOUND)
