"""Effects of signals on worker processes: SIGKILL, SIGSTOP, SIGTERM."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import apsw
import pytest
from tests.crash.scene import Child, Scene, until
from tests.limits import BOUND

from treadle import TaskSpec
from treadle.model.errors import ClocksApart
from treadle.model.values import decode


@pytest.mark.postgres
async def test_a_task_of_a_killed_worker_is_completed_once_by_another(scene: Scene) -> None:
    task = await scene.engine.enqueue("hang_once")
    first = await scene.start_worker()
    await until(lambda: bool(scene.effects("start")), first)
    first.send(signal.SIGKILL)
    await scene.died(first)
    second = await scene.start_worker()
    (ended,) = await scene.finished([task.id])
    assert (ended.state, decode(ended.result), ended.takeovers) == ("completed", {"pid": second.pid}, 1)
    assert await scene.transitions(task.id) == ["expire", "succeed"]
    assert scene.effects() == [
        ("start", task.id, 1, first.pid),
        ("start", task.id, 2, second.pid),
        ("end", task.id, 2, second.pid),
    ]
    await scene.check(1)


async def test_work_of_another_process_arrives_by_a_signal_alone(scene: Scene) -> None:
    worker = await scene.start_worker("--poll-every", BOUND)
    for _ in range(3):  # the first may be found by the first claim, later ones only through the signal
        task = await scene.engine.enqueue("note")
        await scene.finished([task.id])
    assert worker.exit_code is None


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
async def test_a_killed_worker_leaves_no_socket_behind_for_long(scene: Scene, tmp_path: Path) -> None:
    first = await scene.start_worker()
    first.send(signal.SIGKILL)
    await scene.died(first)
    sockets = tmp_path / "treadle.db-signals"
    (left,) = sockets.iterdir()
    await scene.engine.enqueue("note")
    await until(lambda: not left.exists())  # the signal follows the commit
    second = await scene.start_worker()
    assert len(list(sockets.iterdir())) == 1
    second.send(signal.SIGTERM)
    assert await second.ended() == 0
    assert not sockets.exists()


async def stop_between_writes(child: Child, scene: Scene, folder: Path) -> None:
    """SIGSTOP, but not while it has SQLite's one write lock: stopped there, it would stop everybody."""

    def stopped() -> bool:
        child.send(signal.SIGSTOP)
        if not scene.url.startswith("sqlite"):
            return True
        connection = apsw.Connection(str(folder / "treadle.db"))
        try:
            connection.execute("begin immediate; rollback")
        except apsw.BusyError:
            child.send(signal.SIGCONT)
            return False
        finally:
            connection.close()
        return True

    await until(stopped, child)


async def test_a_worker_that_slept_past_its_lease_has_its_late_result_refused(scene: Scene, tmp_path: Path) -> None:
    task = await scene.engine.enqueue("late_once")
    first = await scene.start_worker("--lease", 1)
    await until(lambda: bool(scene.effects("start")), first)
    await stop_between_writes(first, scene, tmp_path)
    second = await scene.start_worker()
    (ended,) = await scene.finished([task.id])
    assert decode(ended.result) == {"pid": second.pid}
    scene.go.touch()
    first.send(signal.SIGCONT)
    dropped = await first.told("ResultDropped")
    assert (dropped["task_id"], dropped["transition"]) == (task.id, "succeed")
    assert scene.effects() == [
        ("start", task.id, 1, first.pid),
        ("start", task.id, 2, second.pid),
        ("end", task.id, 2, second.pid),
        ("end", task.id, 1, first.pid),
    ]
    assert await scene.engine.kernel.reads.get_task(task) == ended
    assert await scene.transitions(task.id) == ["expire", "succeed"]
    await scene.check(1)
    first.send(signal.SIGTERM)
    assert await first.ended() == 0


async def test_sigterm_waits_for_running_tasks(scene: Scene) -> None:
    task = await scene.engine.enqueue("late_once")
    waiting = await scene.engine.enqueue("note", delay=3600)
    worker = await scene.start_worker()
    await until(lambda: bool(scene.effects("start")), worker)
    worker.send(signal.SIGTERM)
    scene.go.touch()
    assert await worker.ended() == 0
    (ended,) = await scene.finished([task.id])
    assert decode(ended.result) == {"pid": worker.pid}
    assert worker.events("end") == [{"event": "end", "handled": 1, "released": 0}]
    assert (await scene.engine.kernel.reads.get_task(waiting)).state == "pending"
    (server,) = await scene.engine.kernel.reads.list_servers()
    assert server.state == "stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_releases_tasks_that_do_not_finish_in_time(scene: Scene, number: signal.Signals) -> None:
    task = await scene.engine.enqueue("hang_once")
    first = await scene.start_worker("--grace", 0.1, "--lease", 3600)
    await until(lambda: bool(scene.effects("start")), first)
    first.send(number)
    assert await first.ended() == 0
    assert first.events("end") == [{"event": "end", "handled": 0, "released": 1}]
    assert (await scene.engine.kernel.reads.get_task(task)).owner_id is None
    second = await scene.start_worker()
    (ended,) = await scene.finished([task.id])
    assert (decode(ended.result), ended.attempt, ended.takeovers) == ({"pid": second.pid}, 2, 0)
    assert await scene.transitions(task.id) == ["release", "succeed"]
    await scene.check(1)


async def test_two_processes_drain_two_thousand_tasks_and_each_is_handled_once(scene: Scene) -> None:
    workers = [await scene.start_worker("--concurrency", 100) for _ in range(2)]
    tasks = await scene.engine.enqueue_many([TaskSpec(name="note") for _ in range(2000)])
    ids = [task.id for task in tasks]
    ended = await scene.finished(ids)
    assert {task.state for task in ended} == {"completed"}
    assert Counter(task_id for _, task_id, _, _ in scene.effects()) == Counter(ids)
    by = Counter(pid for _, _, _, pid in scene.effects())
    assert set(by) <= {worker.pid for worker in workers}
    await scene.check(2000)
    for worker in workers:
        worker.send(signal.SIGTERM)
    assert [await worker.ended() for worker in workers] == [0, 0]
    assert sum(worker.events("end")[0]["handled"] for worker in workers) == 2000


async def test_repeatedly_killed_workers_lose_no_task(scene: Scene) -> None:
    tasks = await scene.engine.enqueue_many([TaskSpec(name="work") for _ in range(300)])
    ids = [task.id for task in tasks]
    for _ in range(3):
        worker = await scene.start_worker("--concurrency", 10)
        before = len(scene.effects())
        await until(lambda before=before: len(scene.effects()) >= before + 20, worker)
        worker.send(signal.SIGKILL)
        await scene.died(worker)
    await scene.start_worker("--concurrency", 50)
    ended = await scene.finished(ids)
    assert {task.state for task in ended} == {"completed"}
    assert {task_id for _, task_id, _, _ in scene.effects()} == set(ids)
    assert len(scene.effects()) <= len(ids) + sum(task.takeovers for task in ended)
    assert all(task.takeovers <= 3 for task in ended)
    await scene.check(300)


async def test_an_isolated_handler_process_ends_with_its_worker(scene: Scene, tmp_path: Path) -> None:
    """Nobody would be there to end it when its time is over, its task is canceled or its lease is lost. So with what it started."""
    file = tmp_path / "pid"
    await scene.engine.enqueue("isolated", {"file": str(file)})
    worker = await scene.start_worker()
    await until(lambda: file.exists() and file.read_text() != "", worker)
    pid = int(file.read_text())
    assert is_running(pid)
    worker.send(signal.SIGKILL)
    assert await worker.ended() == -signal.SIGKILL
    await until(lambda: not is_running(pid), worker)


def is_running(pid: int) -> bool:
    """Whether the process does anything; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_a_process_does_not_open_a_file_that_a_live_one_uses_with_a_clock_hours_ahead(tmp_path: Path) -> None:
    scene = Scene(f"sqlite:///{tmp_path / 'treadle.db'}", tmp_path)
    try:
        ahead = await scene.start_worker("--clock-off-by", 36_000_000)
        with pytest.raises(ClocksApart, match=f"pid {ahead.pid}"):
            async with scene.engine:
                pass
        ahead.send(signal.SIGKILL)
        await ahead.ended()
        async with scene.engine:  # its heartbeat is hours ahead, but it is dead
            pass
    finally:
        scene.destroy()
