"""Servers of PostgreSQL as they are run: every version, behind PgBouncer, with TLS, new passwords and few connections."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from tests.crash.own_server import POOLER, own_server, pgbouncer
from tests.crash.scene import Scene, until
from tests.crash.test_takeover import LEASE, leases_end_at, stop_keeping, until_tied
from tests.engines import make_engine
from tests.fork_server import ROOT
from tests.installations import Installation, list_installations
from tests.limits import BOUND

from treadle import TaskSpec
from treadle.kernel.store.health import findings
from treadle.kernel.store.process import SystemClock
from treadle.model.errors import StoreUnavailable
from treadle.settings import child_environment
from treadle.stores.postgres import PostgresStore

INSTALLATIONS = list_installations()
CONNECTIONS = 10
PATHS = ("tests/contract", "tests/stores/test_postgres_roles.py")
"""The tests of the version matrix: the conformance suite, kernel services, and the documented roles."""


async def work_through(url: str, count: int = 40) -> None:
    """Run tasks, a function with steps, and a signal."""
    engine = make_engine(url)

    @engine.handler("double")
    async def double(payload: Any) -> Any:
        return {"n": 2 * payload["n"]}

    @engine.function("sum", version=1)
    async def add(payload: Any, ctx: Any) -> Any:
        told = await ctx.wait_for("told")
        return [await ctx.step(lambda: 1, name="one"), await ctx.call("double", {"n": 2}), told]

    async with engine, engine.worker(), asyncio.timeout(2 * BOUND):
        run = await engine.start_function("sum")
        tasks = [await engine.enqueue("double", {"n": n}) for n in range(count)]
        await engine.signal(run, "told", "go")
        assert [await engine.result(task) for task in tasks] == [{"n": 2 * n} for n in range(count)]
        assert await engine.run_result(run) == [1, {"n": 4}, "go"]


def test_the_version_of_postgresql_is_available() -> None:
    assert INSTALLATIONS


@pytest.mark.soak
@pytest.mark.timeout(3600)  # it runs hundreds of tests: five minutes on two busy cores
@pytest.mark.parametrize("installation", INSTALLATIONS, ids=lambda each: each.version)
def test_the_contract_holds_on_every_version(installation: Installation) -> None:
    settings = {"synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off", "max_prepared_transactions": "0"}
    with own_server(installation, **settings) as server:
        server.start()
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", "postgres or Postgres", "-p", "no:cacheprovider", *PATHS]
        environment = child_environment(TREADLE_TEST_POSTGRES_URL=server.url)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000)
        print(*done.stdout.splitlines()[-1:])
        assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.skipif(POOLER is None, reason="PgBouncer is missing: apt-get install pgbouncer")
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_work_passes_through_pgbouncer(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with own_server(INSTALLATIONS[-1]) as server:
        server.start()
        with pgbouncer(server, mode) as port:
            pooled = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            store = PostgresStore(pooled, clock=SystemClock())
            with pytest.raises(StoreUnavailable, match="add `pgbouncer=1` to the URL") as refused:
                await store.open()
            assert refused.value.rejected
            await store.close()
            await work_through(f"{pooled}?pgbouncer=1&direct_url={quote(server.url, safe='')}")
            assert "PgBouncer does not support LISTEN" not in caplog.text
            await work_through(f"{pooled}?pgbouncer=1", count=3)
            assert "PgBouncer does not support LISTEN" in caplog.text


@pytest.mark.skipif(POOLER is None, reason="PgBouncer is missing: apt-get install pgbouncer")
@pytest.mark.parametrize("direct", [True, False], ids=["with direct_url", "without direct_url"])
async def test_takeover_behind_pgbouncer(direct: bool, tmp_path: Path) -> None:
    """With a way to the database itself, the session shows that a worker of another machine is dead; otherwise its lease ends."""
    lease = LEASE if direct else 5
    with own_server(INSTALLATIONS[-1]) as server:
        server.start()
        with pgbouncer(server, "transaction") as port:
            pooled = f"postgresql://postgres@127.0.0.1:{port}/postgres?pgbouncer=1"
            scene = Scene(f"{pooled}&direct_url={quote(server.url, safe='')}" if direct else pooled, tmp_path)
            try:
                async with scene.engine:
                    store = scene.engine.kernel.store
                    (found,) = [each for each in findings(await store.health.check()) if each.name == "takeover"]
                    assert found.verdict == ("ok" if direct else "warn")
                    first = await scene.start_worker("--lease", lease, "--kernel", "one")
                    task = await scene.engine.enqueue("hang_once")
                    await until(lambda: len(scene.effects("start")) == 1, first)
                    second = await scene.start_worker("--lease", lease, "--kernel", "two")
                    if direct:
                        await until_tied(scene, first, second)
                    stop_keeping(first)
                    await first.ended()
                    ends_at = await leases_end_at(scene)
                    (ended,) = await scene.finished([task.id])
                    assert (ended.state, ended.attempt, ended.takeovers) == ("completed", 2, 1)
                    assert ended.finished_at is not None
                    assert (ended.finished_at < ends_at) is direct
                    assert len(second.events("PresumedDead")) == direct
                    (dead,) = [each for each in await store.servers.list_all() if each.pid == first.pid]
                    assert (dead.evidence, dead.session) == ("session" if direct else None, None)
            finally:
                scene.destroy()


async def test_a_password_that_changes_is_read_from_its_file(tmp_path: Path) -> None:
    """New connections read the password file; open ones stay."""
    passwords = tmp_path / "pgpass"

    def write(password: str) -> None:
        passwords.write_text(f"127.0.0.1:{server.port}:postgres:ann:{password}\n")
        passwords.chmod(0o600)

    with own_server(INSTALLATIONS[-1]) as server:
        server.start()
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("create role ann login superuser password 'old'")
            server.require("scram-sha-256")
            write("old")
            store = PostgresStore(f"postgresql://ann@127.0.0.1:{server.port}/postgres?passfile={passwords}", clock=SystemClock())
            server.reload()
            await store.open()
            admin.execute("alter role ann password 'new'")
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'ann'")
            with pytest.raises(StoreUnavailable, match="refuses this user or password"):
                await use_until_rejected(store)
            write("new")
            await store.tasks.list_queues()
            await store.close()


async def use_until_rejected(store: PostgresStore) -> None:
    """Use the store until a connection that was lost is opened again."""
    async with asyncio.timeout(BOUND):
        while True:
            try:
                await store.tasks.list_queues()
            except StoreUnavailable as error:
                if error.rejected:
                    raise


@pytest.mark.skipif(not any(each.has_tls for each in INSTALLATIONS), reason="no PostgreSQL with TLS: apt-get install postgresql")
async def test_tls_with_verification(tmp_path: Path) -> None:
    def openssl(arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True, cwd=tmp_path)

    for name in ("ca", "other"):
        openssl(f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={name} -keyout {name}.key -out {name}.crt")
    openssl("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr")
    (tmp_path / "names").write_text("subjectAltName = DNS:localhost\n")
    openssl("x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile names -out server.crt")
    with own_server(next(each for each in INSTALLATIONS if each.has_tls), ssl="on") as server:
        for name in ("server.key", "server.crt"):
            shutil.copy(tmp_path / name, server.data / name)
            server.own(server.data / name)
        server.require("trust", tls=True)
        server.start()
        place = f"postgresql://postgres@localhost:{server.port}/postgres"
        right = f"{place}?sslmode=verify-full&sslrootcert={tmp_path}/ca.crt"
        store = PostgresStore(right, clock=SystemClock())
        await store.open()
        await store.close()
        for wrong in (
            right.replace("/ca.crt", "/other.crt"),
            right.replace("@localhost", "@127.0.0.1"),
            f"{place}?sslmode=disable",
        ):
            store = PostgresStore(wrong, clock=SystemClock())
            with pytest.raises(StoreUnavailable):
                await store.open()
            await store.close()


async def test_a_server_without_free_connections_is_reported_as_such() -> None:
    with own_server(INSTALLATIONS[-1], max_connections="5", superuser_reserved_connections="0", max_wal_senders="0") as server:
        server.start()
        held = [psycopg.connect(server.url) for _ in range(5)]
        store = PostgresStore(server.url, clock=SystemClock())
        with pytest.raises(StoreUnavailable, match="has no connection left: raise max_connections"):
            await store.open()
        await store.close()
        for line in held:
            line.close()


async def test_a_worker_uses_the_documented_number_of_connections() -> None:
    """Of docs/how-to/postgresql.md."""
    with own_server(INSTALLATIONS[-1]) as server:
        server.start()
        engine = make_engine(server.url)

        @engine.handler("rest")
        async def rest(payload: Any) -> None:
            with psycopg.connect(server.url) as admin:
                row = admin.execute("select count(*) from pg_stat_activity where application_name = 'treadle'").fetchone()
            assert row is not None
            counts.append(row[0])

        counts: list[int] = []
        async with engine, engine.worker(), asyncio.timeout(BOUND):
            tasks = await engine.enqueue_many([TaskSpec(name="rest") for _ in range(100)])
            for task in tasks:
                await engine.result(task.id)
        assert 0 < max(counts) <= CONNECTIONS
