"""A PostgreSQL server of any version on TCP, and a PgBouncer in front of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from tests.chaos.cluster import wait_until
from tests.installations import Installation, as_user, guard, server_user
from tests.limits import BOUND
from tests.ports import free_port

POOLER = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")


class OwnServer:
    """A server on TCP, in a folder of its own."""

    def __init__(self, place: Path, installation: Installation, **settings: str) -> None:
        self.place, self.port, self._installation = place, free_port(), installation
        self.data = place / "data"
        installation.run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync")
        own = {"fsync": "off", "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"} | settings
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in own.items())
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def require(self, method: str, *, tls: bool = False, network: str = "127.0.0.1/32") -> None:
        """Let clients of that network in by that method only."""
        (self.data / "pg_hba.conf").write_text(f"{'hostssl' if tls else 'host'} all all {network} {method}\n")

    def start(self) -> None:
        self._installation.run(
            "pg_ctl", "start", "-D", str(self.data), "-w", "-l", str(self.place / "log"), "-o", f"-p {self.port}"
        )

    def reload(self) -> None:
        self._installation.run("pg_ctl", "reload", "-D", str(self.data))

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self._installation.run("pg_ctl", "stop", "-D", str(self.data), "-w", "-m", "immediate")

    def own(self, path: Path) -> None:
        """Give the file to the user that the server runs as, and to nobody else."""
        path.chmod(0o600)
        if (user := server_user()) is not None:
            shutil.chown(path, user)


@contextmanager
def own_server(installation: Installation, **settings: str) -> Iterator[OwnServer]:
    """A server that is not started yet, and gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix="treadle-pg-"))
    place.chmod(0o755)
    if (user := server_user()) is not None:
        shutil.chown(place, user)
    guard(place)
    server = OwnServer(place, installation, **settings)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def pgbouncer(server: OwnServer, mode: str) -> Iterator[int]:
    """The port of a PgBouncer in front of the server."""
    assert POOLER is not None
    port = free_port()
    configuration = server.place / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\npostgres = user=postgres host=127.0.0.1 port={server.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"unix_socket_dir =\nauth_type = any\npool_mode = {mode}\nmax_client_conn = 100\ndefault_pool_size = 20\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    process = subprocess.Popen([POOLER, str(configuration)], stderr=subprocess.PIPE, cwd="/", **as_user())
    try:
        wait_until(lambda: psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close() is None)
        yield port
    finally:
        process.kill()
        process.communicate(timeout=BOUND)
