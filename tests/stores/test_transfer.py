"""A namespace is exported to a file and imported into another store, with its history, completely or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Treadle
from tests.contract.databases import new_file
from tests.engines import make_engine
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import Context, Engine
from treadle.kernel.store.transfer import Header, export_namespace, import_namespace
from treadle.model.errors import InvalidInput, Refused
from treadle_conformance.task_steps import MINUTE

PAIRS = (
    ("sqlite", "sqlite"),
    pytest.param(("sqlite", "postgres"), marks=pytest.mark.postgres_all),
    pytest.param(("postgres", "sqlite"), marks=pytest.mark.postgres_all),
)
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


def open_engine(url: str, namespace: str) -> Engine:
    engine = make_engine(url, namespace=namespace)

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


class Scene:
    """Two stores; the namespaces `red` and `blue` are in the first."""

    def __init__(self, folder: Path, source: str, target: str) -> None:
        self.path, self.source, self.target = folder / "red.jsonl", source, target
        self.ids: dict[str, str] = {}

    async def fill(self, namespace: str) -> None:
        """Some of everything: finished and live work, runs, records, settings."""
        engine = open_engine(self.source, namespace)
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
            now = await engine.enqueue("work", {"text": "now"}, task_list="slow", limit_key="printer")
            await engine.kernel.lists.set_policy("slow", "ignore")
        if namespace == "red":
            self.ids = {"done": done.id, "run": run.id, "asked": asked.id, "now": now.id}

    async def export(self, path: Path | None = None, *, url: str | None = None) -> Header:
        async with make_engine(url or self.source, namespace="red") as engine:
            return await export_namespace(engine.kernel.store, "red", path or self.path)

    async def load(self, path: Path | None = None, namespace: str = "red") -> Header:
        async with make_engine(self.target, namespace=namespace) as engine:
            return await import_namespace(engine.kernel.store, namespace, path or self.path)

    async def count_rows(self, url: str) -> int:
        rows = 0

        def receive(table: str, row: Any) -> None:
            nonlocal rows
            rows += table not in ("lists", "queues")

        async with make_engine(url, namespace="red") as engine:
            await engine.kernel.store.namespaces.export_rows("red", receive)
        return rows


@pytest.fixture(params=PAIRS, ids=lambda pair: " to ".join(pair))
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return await make_scene(request, tmp_path, *request.param)


@pytest.fixture
async def files(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return await make_scene(request, tmp_path, "sqlite", "sqlite")


async def make_scene(request: pytest.FixtureRequest, folder: Path, source: str, target: str) -> Scene:
    def url(kind: str, name: str) -> str:
        (folder / name).mkdir()
        if kind == "postgres":
            return str(request.getfixturevalue("postgres_url"))
        return f"sqlite:///{new_file(request, folder / name)}"

    scene = Scene(folder, url(source, "source"), url(target, "target"))
    for namespace in ("red", "blue"):
        await scene.fill(namespace)
    return scene


@pytest.mark.postgres
async def test_an_imported_namespace_is_complete_and_continues(scene: Scene):
    header = await scene.export()
    assert await scene.load() == header
    tables = set(header.tables)
    assert {"tasks", "finished", "runs", "steps", "records", "log", "lines", "blobs", "blob_uses", "tags", "mail"} <= tables
    assert {"streams", "stream_chunks", "flows", "flow_versions", "dedupe", "limits"} <= tables
    copy = await scene.export(scene.path.with_name("again.jsonl"), url=scene.target)
    assert {name: digest.rows for name, digest in copy.tables.items()} == {
        name: digest.rows for name, digest in header.tables.items()
    }
    async with make_engine(scene.target, namespace="blue") as blue:
        assert await blue.kernel.reads.list_tasks(kind="handler") == []
    engine = open_engine(scene.target, "red")
    async with engine:
        assert (await engine.kernel.verify()).problems == ()
        assert await engine.result(scene.ids["done"]) == {"size": 20_000}
        again = await engine.enqueue("work", {"text": "x" * 20_000}, tags={"customer": "acme"}, idempotency_key="once")
        assert (again.id, again.created) == (scene.ids["done"], False)
        failed = [task.id for task in await engine.kernel.reads.list_tasks(kind="handler", states=("failed",))]
        assert [match.id for match in (await engine.tasks.list(where="error ~ loom")).tasks] == failed
        assert [schedule.name for schedule in (await engine.schedules.list()).schedules] == ["nightly"]
        async with engine.worker(task_lists=("default", "slow")):
            assert await engine.result(scene.ids["now"], timeout=BOUND) == {"size": 3}
            await engine.signal(scene.ids["asked"], "go", "home")
            assert await engine.run_result(scene.ids["asked"], timeout=BOUND) == "one home"
        assert (await engine.kernel.verify()).problems == ()
        assert await engine.run_result(scene.ids["run"]) == {"box": "box of a"}


async def test_a_namespace_with_a_held_task_is_not_exported(scene: Scene):
    engine = make_engine(scene.source, namespace="red")
    async with engine:
        store = engine.kernel.store
        queues = [queue_id for queue_id, queue in (await store.tasks.list_queues()).items() if queue.namespace == "red"]
        assert await store.tasks.claim(queues, "w", MINUTE, 10)
        with pytest.raises(Refused, match="A worker holds the task"):
            await scene.export()
    assert [path.name for path in scene.path.parent.iterdir() if path.is_file()] == []


async def test_a_namespace_is_imported_once(scene: Scene):
    await scene.export()
    await scene.load()
    before = await scene.count_rows(scene.target)
    with pytest.raises(Refused, match="already has"):
        await scene.load()
    assert await scene.count_rows(scene.target) == before
    with pytest.raises(Refused, match="exists"):
        await scene.export()


def _replace(before: bytes, after: bytes) -> Callable[[bytes], bytes]:
    def change(text: bytes) -> bytes:
        assert before in text
        return text.replace(before, after, 1)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _replace(b"later", b"never"),
        _replace(b'"state":"completed"', b'"state":"failed"'),
        lambda text: text[: text.rindex(b'["')],
        lambda text: text + text[text.rindex(b'["') :],
        lambda text: text[:-20],
        _replace(b'["tasks"', b'["task;"'),
    ],
    ids=["payload", "state", "missing row", "repeated row", "cut", "table"],
)
@pytest.mark.parametrize("target", ["sqlite", POSTGRES])
async def test_a_changed_file_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, target: str, change: Callable[[bytes], bytes]
):
    scene = await make_scene(request, tmp_path, "sqlite", target)
    await scene.export()
    scene.path.write_bytes(change(scene.path.read_bytes()))
    with pytest.raises((Refused, InvalidInput)):
        await scene.load()
    assert await scene.count_rows(scene.target) == 0


async def test_a_compressed_file_is_read_and_a_damaged_one_refused(files: Scene):
    path = files.path.with_suffix(".jsonl.gz")
    header = await files.export(path)
    assert json.loads(gzip.decompress(path.read_bytes()).partition(b"\n")[0])["treadle_namespace"] == "red"
    damaged = path.with_name("damaged.gz")
    damaged.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Refused, match="damaged"):
        await files.load(damaged)
    assert await files.load(path) == header


async def test_a_file_of_something_else_is_refused(files: Scene):
    await files.export()
    with pytest.raises(InvalidInput, match="--namespace red"):
        await files.load(namespace="blue")
    with pytest.raises(InvalidInput, match="cannot be read"):
        await files.load(files.path.with_name("missing"))
    exported = files.path.read_bytes()
    for changed, reason in ((b'"format":2', "the format 2"), (b'"form":1', "no header")):
        files.path.write_bytes(exported.replace(b'"format":1', changed, 1))
        with pytest.raises(InvalidInput, match=reason):
            await files.load()
    with pytest.raises(InvalidInput, match="cannot be written"):
        await files.export(files.path / "below" / "a file")


def test_the_commands_export_and_import(treadle: Treadle):
    task_id = json.loads(treadle("enqueue", "greet", "--json", "--namespace", "red").out)["id"]
    exported = json.loads(treadle("store", "export", "red.jsonl", "--namespace", "red", "--json").out)
    assert exported["rows"]["tasks"] == 1
    other = f"sqlite:///{treadle.folder}/other.db"
    loaded = treadle("store", "import", "red.jsonl", "--namespace", "red", "--store", other)
    assert loaded.code == 0, loaded.err
    (entry,) = treadle.json("audit", "--namespace", "red", "--store", other)["changes"]
    assert (entry["operation"], entry["after"]["path"]) == ("store.import", "red.jsonl")
    assert treadle("tasks", "show", task_id, "--namespace", "red", "--store", other).code == 0
    assert treadle("store", "verify", "--namespace", "red", "--store", other).code == 0
    assert treadle("store", "import", "red.jsonl", "--namespace", "red", "--store", other).code != 0
