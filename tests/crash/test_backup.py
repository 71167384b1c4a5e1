"""Back up under load, lose the store, restore the backup elsewhere: what was acknowledged before is done (operations/backup.md)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from tests.crash.private_server import PrivateServer, private_server
from tests.crash.scene import Scene, until
from tests.crash.test_effects import EffectServer, doubts
from tests.limits import BOUND

from treadle import Engine
from treadle.model.errors import RunFailed
from treadle.settings import Settings
from treadle.testing import ManualClock


class SlowService(EffectServer):
    """Counts an effect when it is requested, and answers when the test allows it."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        super().__init__()

    def before_answer(self) -> None:
        assert self.may_answer.wait(BOUND)


@pytest.fixture
def service() -> Iterator[SlowService]:
    made = SlowService()
    yield made
    made.may_answer.set()
    made.close()


class Sqlite:
    """`treadle store backup` to a file; the file is the restored store."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'treadle.db'}"
        self._file = folder / "backup.db"

    async def back_up(self, engine: Engine) -> None:
        await engine.kernel.store.health.backup(str(self._file))

    @contextmanager
    def restored(self) -> Iterator[str]:
        yield f"sqlite:///{self._file}"


class Dumped:
    """`pg_dump` of the schema; `pg_restore` into another database."""

    def __init__(self, server: PrivateServer, folder: Path) -> None:
        self.url, self._server, self._file = server.url, server, str(folder / "treadle.dump")

    async def back_up(self, engine: Engine) -> None:
        arguments = ("--format=custom", "--schema=treadle", f"--file={self._file}", self.url)
        await asyncio.to_thread(self._server.run, "pg_dump", *arguments)

    @contextmanager
    def restored(self) -> Iterator[str]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("create database restored")
        url = urlunsplit(urlsplit(self.url)._replace(path="/restored"))
        self._server.run("pg_restore", "--exit-on-error", f"--dbname={url}", self._file)
        yield url


class Copied(Dumped):
    """`pg_basebackup` of the server, with the log written meanwhile; a second server starts from it."""

    async def back_up(self, engine: Engine) -> None:
        await asyncio.to_thread(
            self._server.run, "pg_basebackup", f"--dbname={self.url}", f"--pgdata={self._file}", "--checkpoint=fast"
        )

    @contextmanager
    def restored(self) -> Iterator[str]:
        self._server.stop("immediate")
        with private_server(copy_of=Path(self._file)) as second:
            yield second.url


CASES = [
    ("sqlite", 20),
    *[pytest.param(kind, 3000, marks=pytest.mark.soak) for kind in ("sqlite", "pg_dump", "pg_basebackup")],
]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sqlite | Dumped]:
    if request.param == "sqlite":
        yield Sqlite(tmp_path)
        return
    with private_server() as server:
        yield (Dumped if request.param == "pg_dump" else Copied)(server, tmp_path)


@pytest.mark.parametrize(("store", "load"), CASES, indirect=["store"])
async def test_a_store_that_is_backed_up_under_load_continues_elsewhere(
    store: Sqlite | Dumped, load: int, service: SlowService, tmp_path: Path
) -> None:
    """`load` tasks are acknowledged before the backup, and others go on being enqueued and done meanwhile."""
    lost = Scene(store.url, tmp_path)
    acknowledged: list[str] = []
    enough = asyncio.Event()

    async def keep_enqueueing() -> None:
        while not enough.is_set() and len(acknowledged) < 5 * load:
            acknowledged.append((await lost.engine.enqueue("work")).id)

    try:
        async with lost.engine as engine:
            worker = await lost.start_worker()
            held = (await engine.enqueue("gated")).id
            ordered = (await engine.enqueue("note", idempotency_key="order-1")).id
            pay = {"url": service.url, "steps": 2}
            repeated = (await engine.start_function("pay_all", pay, version=1)).id
            refused = (await engine.start_function("pay_all", pay | {"on_unknown": "fail"}, version=1)).id
            await until(lambda: len(service.calls) == 2 and len(lost.effects("gated")) == 1, worker)
            enqueuers = [asyncio.ensure_future(keep_enqueueing()) for _ in range(4)]
            await until(lambda: len(acknowledged) >= load and bool(lost.effects("work")), worker)
            before = list(acknowledged)
            await store.back_up(engine)
            enough.set()
            await asyncio.gather(*enqueuers)
            # The old store goes on for a while: everything ends, in it and at the service; then it is lost.
            late = (await engine.enqueue("note", idempotency_key="order-2")).id
            lost.go.touch()
            service.may_answer.set()
            await lost.finished([held, ordered, late, *acknowledged])
            for run in (repeated, refused):
                assert await engine.run_result(run, timeout=BOUND) == ["step-0", "step-1"]
    finally:
        enough.set()
        lost.destroy()
    assert service.made == {"step-0": 2, "step-1": 2}

    with store.restored() as url:
        restored = Scene(url, tmp_path / "elsewhere")
        (tmp_path / "elsewhere").mkdir()
        restored.go.touch()
        try:
            async with restored.engine as engine:
                assert (await engine.kernel.verify()).problems == ()
                assert await engine.kernel.store.tasks.find_many([late], ended=True) == []
                copy = engine.kernel.store
                await copy.tasks.expire_leases_of([server.id for server in await copy.servers.list_all()])
                worker = await restored.start_worker()
                ended = await restored.finished([held, ordered, *before])
                assert {task.state for task in ended} == {"completed"}
                # The holder at the time of the backup is not there: its task is taken over when its lease expires.
                assert await restored.transitions(held) == ["expire", "succeed"]
                # A key of before means the same task; one of after is unknown, and its task is made again.
                assert (await engine.enqueue("note", idempotency_key="order-1")).id == ordered
                again = await engine.enqueue("note", idempotency_key="order-2")
                assert again.created
                assert again.id != late
                # An effect in progress is unknown, and the log says so. One that came later is repeated, and nothing can say so.
                assert await engine.run_result(repeated, timeout=BOUND) == ["step-0", "step-1"]
                with pytest.raises(RunFailed, match="unknown whether the effect pay-0 happened"):
                    await engine.run_result(refused, timeout=BOUND)
                assert service.made == {"step-0": 3, "step-1": 3}
                assert len({key for _, _, key in service.calls}) == 4  # a service that deduplicates did each once
                for run, told in ((repeated, {"step-0": 1}), (refused, {"step-0": 1})):
                    (task,) = await engine.kernel.reads.list_tasks(kind="function", run_id=run)
                    assert doubts(await engine.kernel.reads.list_transitions(task.id)) == told
                await restored.finished([again.id])
                await until(restored.nothing_is_left, worker)
                assert (await engine.kernel.verify()).problems == ()
                worker.send(signal.SIGTERM)
                assert await worker.ended() == 0
        finally:
            restored.destroy()


@pytest.mark.parametrize(("policy", "fired"), [("skip", 0), ("latest", 1), ("all", 3)])
async def test_ticks_after_a_backup_are_missed_ticks_of_the_restored_store(tmp_path: Path, policy: str, fired: int) -> None:
    clock = ManualClock()

    def opened(name: str) -> Engine:
        engine = Engine(f"sqlite:///{tmp_path / name}", settings=Settings(), clock=clock)
        engine.handler("report")(lambda payload: {})
        return engine

    async with opened("treadle.db") as engine:
        await engine.schedules.create("hourly", every=3600, task="report", catch_up=policy, overlap="allow")
        await engine.kernel.store.health.backup(str(tmp_path / "backup.db"))
    clock.advance(3 * 3600 + 600)
    async with opened("backup.db") as engine:
        async with engine.worker():
            await until(lambda: _considered(engine, clock.now()))
        assert len(await engine.kernel.reads.list_tasks(name="report")) == fired


async def _considered(engine: Engine, now: int) -> bool:
    """Whether the schedule has processed all ticks up to now."""
    next_at = (await engine.schedules.get("hourly")).next_at
    return next_at is not None and next_at.ms > now
