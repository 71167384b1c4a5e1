"""Work of a killed process restarts elsewhere before its lease could have expired, at the default lease of a minute."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from tests.crash.private_server import PrivateServer, private_server
from tests.crash.scene import UNSHARE, Child, Scene, until
from tests.crash.test_lease_sidecar import sidecars_of

from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.store.queries import TaskFilter
from treadle.model.errors import StoreError
from treadle.stores.postgres.connection.address import parse_address

LEASE = 60


def stop_keeping(child: Child) -> None:
    """Kill the lease sidecar of the process, with the process, as the end of a container does."""
    child.send(signal.SIGSTOP)  # neither of them sees the end of the other
    for pid in sidecars_of(child.pid):
        os.kill(int(pid), signal.SIGKILL)
    child.send(signal.SIGKILL)


async def leases_end_at(scene: Scene) -> int:
    held = await scene.engine.kernel.store.tasks.list_matching(TaskFilter(held=True), 100)
    return min(task.wake_at or 0 for task in held)


@pytest.mark.postgres
@pytest.mark.parametrize("sidecar", ["sidecar lives", "sidecar dies"])
async def test_work_of_a_killed_worker_restarts_before_its_lease_expires(scene: Scene, sidecar: str) -> None:
    first = await scene.start_worker("--lease", LEASE)
    task = await scene.engine.enqueue("hang_once")
    await until(lambda: len(scene.effects("start")) == 1, first)
    second = await scene.start_worker("--lease", LEASE)
    ends_at = await leases_end_at(scene)
    if sidecar == "sidecar dies":
        stop_keeping(first)
    else:
        first.send(signal.SIGKILL)
    (ended,) = await scene.finished([task.id])
    assert await scene.engine.kernel.store.now() < ends_at
    assert (ended.state, ended.attempt, ended.takeovers) == ("completed", 2, 1)
    assert [pid for _, _, _, pid in scene.effects("end")] == [second.pid]
    (dead,) = [each for each in await scene.engine.kernel.store.servers.list_all() if each.pid == first.pid]
    now = await scene.engine.kernel.store.now()
    assert (dead.evidence, shown_server_state(dead, now), dead.running) == ("process", "lost", 0)
    assert await scene.transitions(task.id) == ["expire", "succeed"]
    await scene.check(1)


async def test_a_worker_that_starts_after_the_only_one_was_killed_takes_over_before_the_lease_expires(scene: Scene) -> None:
    first = await scene.start_worker("--lease", LEASE)
    task = await scene.engine.enqueue("hang_once")
    await until(lambda: len(scene.effects("start")) == 1, first)
    ends_at = await leases_end_at(scene)
    stop_keeping(first)
    await first.ended()
    second = await scene.start_worker("--lease", LEASE)
    (ended,) = await scene.finished([task.id])
    assert await scene.engine.kernel.store.now() < ends_at
    assert (ended.state, ended.attempt) == ("completed", 2)
    assert second.exit_code is None


def has_namespaces() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not has_namespaces(), reason="namespaces cannot be created here")
@pytest.mark.parametrize("name", ["named", "unnamed"])
async def test_workers_that_are_pid_1_of_their_containers_leave_each_others_work_alone(scene: Scene, name: str) -> None:
    """They share the host name, and with it the default name of earlier versions, or the name of one configuration."""
    named = ("--name", "HOST-1") if name == "named" else ()
    tasks = [(await scene.engine.enqueue("gated")).id for _ in range(5)]
    workers = [await scene.start_worker("--lease", LEASE, *named, isolated=True)]
    await until(lambda: len(scene.effects("gated")) == 5, *workers)
    for _ in range(2):
        workers.append(await scene.start_worker("--lease", LEASE, *named, isolated=True))
        assert workers[-1].events("Recovered") == []
    assert {server.pid for server in await scene.engine.kernel.store.servers.list_all()} == {1}
    assert await scene.engine.kernel.store.tasks.list_matching(TaskFilter(held=True, name="gated"), 10) != []
    scene.go.touch()
    ended = await scene.finished(tasks)
    assert {(task.state, task.attempt, task.takeovers) for task in ended} == {("completed", 1, 0)}
    assert len(scene.effects("gated")) == 5


async def until_tied(scene: Scene, *children: Child) -> None:
    """Wait until every process is known by its session, and others have seen that."""

    async def are_tied() -> bool:
        servers = {each.pid: each for each in await scene.engine.kernel.store.servers.list_all()}
        return all(servers[child.pid].session is not None for child in children)

    await until(are_tied, *children)


@pytest.mark.parametrize("scene", ["postgres"], indirect=True)
async def test_a_dead_worker_of_another_machine_is_detected_by_its_session(scene: Scene) -> None:
    first = await scene.start_worker("--lease", LEASE, "--kernel", "one")
    tasks = [(await scene.engine.enqueue("hang_once")).id for _ in range(5)]
    await until(lambda: len(scene.effects("start")) == 5, first)
    second = await scene.start_worker("--lease", LEASE, "--kernel", "two")
    await until_tied(scene, first, second)
    ends_at = await leases_end_at(scene)
    stop_keeping(first)
    ended = await scene.finished(tasks)
    assert await scene.engine.kernel.store.now() < ends_at
    assert {(task.state, task.attempt, task.takeovers) for task in ended} == {("completed", 2, 1)}
    (dead,) = [each for each in await scene.engine.kernel.store.servers.list_all() if each.pid == first.pid]
    assert dead.evidence == "session"
    told = await second.told("PresumedDead")
    assert (told["evidence"], told["leases"]) == ("its session with the database has ended", 5)


@pytest.mark.parametrize("scene", ["postgres"], indirect=True)
async def test_a_repeatedly_cut_session_only_repeats_attempts(scene: Scene) -> None:
    """The database ends the sessions; a process that could not connect again in time is taken for dead, which is harmless."""
    workers = [await scene.start_worker("--lease", LEASE, "--kernel", name) for name in ("one", "two")]
    await until_tied(scene, *workers)
    tasks = [(await scene.engine.enqueue("gated")).id for _ in range(10)]
    await until(lambda: {each[1] for each in scene.effects("gated")} == set(tasks), *workers)
    line = await asyncpg.connect(parse_address(scene.url).dsn)

    async def sessions() -> set[int]:
        held = (
            "select distinct pid from pg_locks join pg_stat_activity using (pid) "
            "where locktype = 'advisory' and objsubid = 1 and granted and application_name = $1"  # other tests have sessions, too
        )
        return {row[0] for row in await line.fetch(held, parse_address(scene.url).schema)}

    try:
        for _ in range(10):
            before = await sessions()
            await line.fetch("select pg_terminate_backend(pid) from unnest($1::int[]) as cut (pid)", sorted(before))

            async def are_back(before: set[int] = before) -> bool:
                now = await sessions()
                return len(now) == 2 and now.isdisjoint(before)

            await until(are_back, *workers)
    finally:
        await line.close()
    scene.go.touch()
    ended = await scene.finished(tasks)
    assert {task.state for task in ended} == {"completed"}
    assert all(task.attempt == 1 + task.takeovers for task in ended)
    assert [worker.exit_code for worker in workers] == [None, None]
    await scene.check(10)


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    with private_server() as made:
        yield made


async def test_no_worker_is_declared_dead_when_the_database_restarts(server: PrivateServer, tmp_path: Path) -> None:
    scene = Scene(server.url, tmp_path)
    try:
        async with scene.engine:
            workers = [await scene.start_worker("--lease", LEASE, "--kernel", name) for name in ("one", "two")]
            await until_tied(scene, *workers)
            tasks = [(await scene.engine.enqueue("gated")).id for _ in range(10)]
            await until(lambda: len(scene.effects("gated")) == 10, *workers)
            before = {each.session for each in await scene.engine.kernel.store.servers.list_all()}
            await asyncio.to_thread(server.stop, "fast")
            await asyncio.to_thread(server.start)

            async def are_back() -> bool:
                try:
                    now = {each.session for each in await scene.engine.kernel.store.servers.list_all()}
                except StoreError:
                    return False
                return now.isdisjoint(before)

            await until(are_back, *workers)
            scene.go.touch()
            ended = await scene.finished(tasks)
    finally:
        scene.destroy()
    assert {(task.state, task.attempt, task.takeovers) for task in ended} == {("completed", 1, 0)}
    assert [worker.events("PresumedDead") for worker in workers] == [[], []]
