"""A namespace moves to another store with its history, also when the move is interrupted anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.databases import new_file
from tests.interfaces.engines import make_engine
from tests.limits import BOUND

from treadle import Context, Engine
from treadle.engine.wiring.namespace_move import NamespaceMove
from treadle.kernel.store.crashpoints import arm
from treadle.kernel.store.namespace_copy import Digest, NamespaceRows
from treadle.kernel.store.namespace_tables import REMOVAL
from treadle.kernel.store.system import SystemClock
from treadle.model.errors import NamespaceMoved, Refused
from treadle.model.tasks import LogLine
from treadle.settings import Directory, read_directory, write_directory
from treadle.stores import make_store
from treadle_conformance.task_steps import MINUTE

PAIRS = (("sqlite", "sqlite"), ("sqlite", "postgres"), ("postgres", "sqlite"))
FLOW = """namespace shop {
  event facet Pack(sku: String) => (box: String)
  workflow Order(sku: String) => (box: String) andThen {
    packed = Pack(sku = $.sku)
    yield Order(box = packed.box)
  }
}
"""


async def one() -> str:
    return "one"


class Scene:
    """A directory with the namespaces `red` and `blue` in one store, and another store."""

    def __init__(self, folder: Path, source: str, target: str) -> None:
        self.path, self.source, self.target = folder / "directory.toml", source, target
        write_directory(self.path, Directory({"red": source, "blue": source}))

    def mover(self, namespace: str = "red") -> NamespaceMove:
        return NamespaceMove(self.path, namespace, SystemClock(), verify=verify)

    def engine(self, namespace: str = "red") -> Engine:
        """An engine on the place of the namespace."""
        engine = make_engine(read_directory(self.path).namespaces[namespace], namespace=namespace)

        @engine.handler("work")
        async def work(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
            ctx.log("working")
            ctx.stream("tokens").write("hello")
            if payload.get("fail"):
                raise RuntimeError("no luck with the loom")
            return {"size": len(payload.get("text", ""))}

        @engine.handler("shop.Pack")
        async def pack(sku: str) -> dict[str, str]:
            return {"box": f"box of {sku}"}

        @engine.function("ask")
        async def ask(payload: dict[str, Any], ctx: Any) -> str:
            first = await ctx.step(one)
            answer = await ctx.wait_for("go")
            return f"{first} {answer}"

        return engine

    async def digest(self, url: str, namespace: str = "red") -> Digest:
        store = make_store(url, SystemClock())
        await store.open()
        try:
            first = await first_seq(store, namespace)
            return await NamespaceRows(store, namespace, first).digest()
        finally:
            await store.close()


async def first_seq(store: Any, namespace: str) -> int:
    """The least number of a move of the namespace, so that digests of two stores can be compared."""
    found = [row["seq"] for table in ("log", "finished") for row in (await store.read_rows(namespace, table, None, 10_000)).rows]
    return min(found, default=1)


async def verify(url: str, namespace: str) -> list[str]:
    async with make_engine(url, namespace=namespace) as engine:
        return list((await engine.kernel.verify()).problems)


async def fill(engine: Engine) -> None:
    """Some of everything: finished and live work, runs, records, settings."""
    async with engine:
        await engine.kernel.tokens.create("ci", ["read"])
        await engine.schedules.create("nightly", cron="0 3 * * *", task="work")
        await engine.kernel.lists.limit_key("printer", 2)
        await engine.kernel.flows.publish("shop", [("shop.afl", FLOW)])
        async with engine.worker():
            done = await engine.enqueue("work", {"text": "x" * 20_000}, tags={"customer": "acme"}, idempotency_key="once")
            broken = await engine.enqueue("work", {"fail": True}, retry=0)
            run = await engine.start_run("shop", "Order", {"sku": "a"})
            asked = await engine.start("ask", {})
            await engine.result(done, timeout=BOUND)
            await engine.run_result(run.id, timeout=BOUND)
            with pytest.raises(Exception, match="no luck"):
                await engine.result(broken, timeout=BOUND)
            await engine.signal(asked.id, "other", {"n": 1})
        await engine.enqueue("work", {"text": "later"}, delay=3600, limit_key="printer", unique_key="u")
        await engine.enqueue("work", {"text": "now"}, task_list="slow", limit_key="printer")
        await engine.kernel.lists.set_policy("slow", "ignore")


@pytest.fixture(params=PAIRS, ids=lambda pair: " to ".join(pair))
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return await make_scene(request, tmp_path, *request.param)


async def make_scene(request: pytest.FixtureRequest, folder: Path, source: str, target: str) -> Scene:
    def url(kind: str, name: str) -> str:
        (folder / name).mkdir()
        return (
            str(request.getfixturevalue("postgres_url")) if kind == "postgres" else f"sqlite:///{new_file(request, folder / name)}"
        )

    made = Scene(folder, url(source, "source"), url(target, "target"))
    for namespace in ("red", "blue"):
        await fill(made.engine(namespace))
    return made


async def test_a_namespace_moves_with_everything_and_leaves_the_others_alone(scene: Scene):
    before, others = await scene.digest(scene.source), await scene.digest(scene.source, "blue")
    moved = await scene.mover().move(scene.target)
    assert moved.rows == before.rows
    assert {"tasks", "finished", "runs", "steps", "records", "log", "lines", "blobs", "blob_uses", "tags", "mail"} <= set(
        moved.rows
    )
    assert {"streams", "stream_chunks", "flows", "flow_versions", "dedupe", "limits"} <= set(moved.rows)
    assert read_directory(scene.path).namespaces == {"red": scene.target, "blue": scene.source}
    assert (await scene.digest(scene.target)).differences(before) == []
    assert (await scene.digest(scene.source)).rows == {}
    assert (await scene.digest(scene.source, "blue")).differences(others) == []
    assert not scene.path.with_name("directory.toml.moving").exists()


async def test_work_goes_on_at_the_new_place_and_is_refused_at_the_old_one(scene: Scene):
    async with scene.engine() as old:
        await scene.mover().move(scene.target)
        with pytest.raises(NamespaceMoved):
            await old.enqueue("work")
    async with scene.engine() as engine:
        assert not (await engine.enqueue("work", {"text": "x" * 20_000}, idempotency_key="once")).created
        assert [each.name for each in await engine.schedules.list_schedules()] == ["nightly"]
        (waiting,) = await engine.kernel.reads.list_tasks(task_list="slow")
        (failed,) = await engine.kernel.reads.list_tasks(states=("failed",))
        (run,) = await engine.kernel.run_reads.list_runs(states=("running",))
        async with engine.worker(task_lists=["default", "slow"]):
            assert await engine.result(waiting.id, timeout=BOUND) == {"size": 3}
            await engine.signal(run.id, "go", "two")
            assert await engine.run_result(run.id, timeout=BOUND) == "one two"
            await engine.retry(failed.id, payload={"text": "ok"})
            assert await engine.result(failed.id, timeout=BOUND) == {"size": 2}
        assert (await engine.kernel.verify()).problems == ()
        found = await engine.kernel.search.list_tasks("tag.customer = acme")
        assert len(found.records) == 1


async def test_a_namespace_moves_there_and_back(scene: Scene):
    before = await scene.digest(scene.source)
    await scene.mover().move(scene.target)
    await scene.mover().move(scene.source)
    assert (await scene.digest(scene.source)).differences(before) == []
    assert (await scene.digest(scene.target)).rows == {}
    async with scene.engine() as engine:
        assert (await engine.enqueue("work")).created


async def test_a_kept_source_stays_paused(scene: Scene):
    before = await scene.digest(scene.source)
    assert (await scene.mover().move(scene.target, keep=True)).kept
    assert (await scene.digest(scene.source)).rows == before.rows
    async with make_engine(scene.source, namespace="red") as old:
        assert (await old.kernel.lists.get("default")).paused
    with pytest.raises(Refused, match="already has"):
        await scene.mover().move(scene.source)


@asynccontextmanager
async def crashing(point: str, times: int) -> AsyncIterator[None]:
    """Stop the caller when it reaches the point for the n-th time, as the end of its process would."""
    left = times

    def reached(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0 and name == point:
            raise KeyboardInterrupt(point)

    arm(reached)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        arm(None)


@pytest.fixture
async def two_files(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return await make_scene(request, tmp_path, "sqlite", "sqlite")


POINTS = [
    ("move.paused", 1, "source"),
    ("move.removing", 5, "source"),  # of the target, which may have an interrupted copy
    ("move.copying", 1, "source"),
    ("move.copying", 9, "source"),
    ("move.copied", 1, "source"),
    ("move.fenced", 1, "source"),
    ("move.switched", 1, "target"),
    ("move.removing", len(REMOVAL) + 12, "target"),
]


@pytest.mark.parametrize(("point", "times", "place"), POINTS)
async def test_an_interrupted_move_is_completed_by_the_same_call(two_files: Scene, point: str, times: int, place: str):
    scene = two_files
    before = await scene.digest(scene.source)
    async with crashing(point, times):
        await scene.mover().move(scene.target)
    with pytest.raises(Refused, match="was interrupted"):
        await scene.mover("blue").move(scene.target)
    assert read_directory(scene.path).namespaces["red"] == getattr(scene, place)
    assert (await scene.digest(getattr(scene, place))).rows == before.rows  # held by the paused lists, and otherwise as they were
    await scene.mover().move(scene.target)
    assert (await scene.digest(scene.target)).differences(before) == []
    assert (await scene.digest(scene.source)).rows == {}
    async with scene.engine() as engine:
        assert (await engine.enqueue("work")).created


async def test_a_namespace_with_held_tasks_is_not_moved(two_files: Scene):
    scene = two_files
    async with scene.engine() as engine:
        task = await engine.get_task((await engine.enqueue("work")).id)
        assert await engine.kernel.store.claim([task.lane_id], "someone", MINUTE, 1)
        before = await scene.digest(scene.source)
        for wait in (0.0, 0.01):
            with pytest.raises(Refused, match=r"hold 1 task"):
                await scene.mover().move(scene.target, wait=wait)
        assert (await scene.digest(scene.source)).differences(before) == []
        assert (await engine.enqueue("work")).created
    assert read_directory(scene.path).namespaces["red"] == scene.source


async def test_from_the_last_comparison_on_every_change_is_refused_at_the_old_place(scene: Scene):
    before = await scene.digest(scene.source)
    async with crashing("move.fenced", 1):
        await scene.mover().move(scene.target)
    async with scene.engine() as old:
        (failed,) = await old.kernel.reads.list_tasks(states=("failed",))
        (waiting,) = await old.kernel.reads.list_tasks(task_list="slow")
        (run,) = await old.kernel.run_reads.list_runs(states=("running",))
        changes: list[Callable[[], Awaitable[Any]]] = [
            lambda: old.enqueue("work"),
            lambda: old.start("ask", {}),
            lambda: old.cancel(waiting.id),
            lambda: old.runs.cancel(run.id),
            lambda: old.retry(failed.id),
            lambda: old.signal(run.id, "go", 1),
            lambda: old.kernel.tokens.create("late", ["read"]),
            lambda: old.schedules.create("late", cron="0 4 * * *", task="work"),
            lambda: old.kernel.lists.limit_key("printer", 7),
            lambda: old.kernel.flows.publish("late", [("shop.afl", FLOW)]),
        ]
        for change in changes:
            with pytest.raises(NamespaceMoved, match="nothing was written"):
                await change()
    async with scene.engine("blue") as other, other.worker():
        assert await other.result((await other.enqueue("work", {"text": "ab"})).id, timeout=BOUND) == {"size": 2}
    await scene.mover().move(scene.target)
    assert (await scene.digest(scene.target)).differences(before) == []


async def test_a_namespace_that_changes_during_the_copy_is_not_switched(two_files: Scene):
    scene = two_files

    async def change(url: str, namespace: str) -> list[str]:
        async with scene.engine() as engine:
            await engine.kernel.tokens.create("late", ["read"])
        return []

    mover = NamespaceMove(scene.path, "red", SystemClock(), verify=change)
    with pytest.raises(Refused, match="changed while it was copied"):
        await mover.move(scene.target)
    assert read_directory(scene.path).namespaces["red"] == scene.source
    assert (await scene.digest(scene.target)).rows == {}
    async with scene.engine() as engine:
        assert (await engine.enqueue("work")).created


async def test_log_lines_that_arrive_during_the_copy_are_moved(two_files: Scene):
    scene, tasks = two_files, []

    async def write(url: str, namespace: str) -> list[str]:
        async with scene.engine() as engine:
            line = LogLine(task_id=tasks[0], at=engine.kernel.clock.now(), level="info", message="late")
            await engine.kernel.store.append_lines([line])
        return []

    async with scene.engine() as engine:
        tasks.append((await engine.enqueue("work")).id)
    await NamespaceMove(scene.path, "red", SystemClock(), verify=write).move(scene.target)
    async with scene.engine() as engine:
        assert [line.message for line in await engine.kernel.store.list_lines(tasks[0], 10)] == ["late"]
