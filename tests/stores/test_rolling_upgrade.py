"""Two versions of the package share one store: the older one works on the newer one's rows and keeps their new fields."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.limits import BOUND

import treadle
from treadle.kernel.store.records import RecordFilter

FIELD = "    more: dict[str, Any] | UnsetType = msgspec.field(default=UNSET, name=MORE)\n"
NOVELTY = '    novelty: str = msgspec.field(default_factory=lambda: "new")\n'
"""The field that every stored structure of the newer version has."""

WRITER = """
import asyncio, sys
from treadle import Engine, RetryPolicy
from treadle.settings import Settings

async def main(url, folder):
    async with Engine(url, settings=Settings()) as engine:
        print((await engine.enqueue("work", {}, retry=RetryPolicy(retries=4))).id)
        await engine.schedules.create("nightly", cron="0 3 * * *", task="report", retry=2)
        await engine.watchers.create("incoming", directory=folder, task="report")
        await engine.kernel.tokens.create("ci", ["read"])

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The folder of a copy of the package in which every stored structure has one more field."""
    copy = tmp_path / "newer"
    shutil.copytree(Path(treadle.__file__).parent, copy / "treadle", ignore=shutil.ignore_patterns("__pycache__"))
    stored = copy / "treadle" / "model" / "stored.py"
    text = stored.read_text()
    assert text.count(FIELD) == 2
    stored.write_text(text.replace(FIELD, FIELD + NOVELTY))
    return copy


def write_with(newer: Path, url: str, folder: Path) -> str:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(newer), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WRITER, url, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.postgres
async def test_an_older_version_works_on_rows_of_a_newer_one_and_keeps_its_fields(url: str, newer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    engine = make_engine(url)
    calls: list[Any] = []

    @engine.handler("work")
    async def work(payload: Any) -> dict[str, Any]:
        calls.append(payload)
        return {"done": True}

    async with engine:
        task_id = await asyncio.to_thread(write_with, newer, url, folder)
        store = engine.kernel.store
        task = await store.tasks.find(task_id)
        assert task is not None
        assert json.loads(task.policy or "") == {"retries": 4, "novelty": "new"}
        async with engine.worker(), asyncio.timeout(BOUND):
            assert await engine.result(task_id) == {"done": True}
        assert len(calls) == 1

        await engine.schedules.edit("nightly", catch_up="all", priority=3)
        await engine.schedules.pause("nightly")
        await engine.watchers.edit("incoming", every=60)
        await engine.watchers.pause("incoming")
        (token,) = (await engine.kernel.tokens.list()).tokens
        await engine.kernel.tokens.revoke(token.id)

        documents = {}
        for entity in ("schedule", "watcher", "token"):
            (record,) = await store.records.list_matching(RecordFilter(entity), 10)
            assert record.version > 0
            documents[entity] = json.loads(record.document)
        assert all(document["novelty"] == "new" for document in documents.values())
        schedule, watcher = documents["schedule"], documents["watcher"]
        parts = (schedule["when"], schedule["target"], schedule["target"]["retry"], watcher["source"], watcher["target"])
        assert all(part["novelty"] == "new" for part in parts)
        assert schedule["target"]["priority"] == 3


WORKER = """
import asyncio, sys
from treadle import Engine, RetryPolicy
from treadle.settings import Settings

async def main(url, folder):
    engine = Engine(url, settings=Settings())

    @engine.handler("note")
    async def note(payload):
        with open(f"{folder}/{payload['n']}", "a") as file:
            file.write("newer\\n")
        return {"by": "newer"}

    async with engine, engine.worker(concurrency=2):
        ids = [(await engine.enqueue("note", {"n": n}, retry=RetryPolicy(retries=4))).id for n in range(20, 40)]
        print(*ids, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_workers_of_two_versions_share_the_work_and_run_no_task_twice(url: str, newer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    engine = make_engine(url)
    both = asyncio.Event()

    @engine.handler("note")
    async def note(payload: Any) -> dict[str, Any]:
        with (folder / str(payload["n"])).open("a") as file:
            file.write("older\n")
        await both.wait()  # the newer worker takes some of the tasks meanwhile
        return {"by": "older"}

    environment = {"PATH": os.defpath, "PYTHONPATH": str(newer), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, "-c", WORKER, url, str(folder))
    pipe = asyncio.subprocess.PIPE
    async with engine:
        old = [(await engine.enqueue("note", {"n": n}, retry=3)).id for n in range(20)]
        async with engine.worker(concurrency=2), asyncio.timeout(BOUND):
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
            try:
                assert process.stdout is not None
                new = (await process.stdout.readline()).decode().split()
                while not any("newer" in each.read_text() for each in folder.iterdir()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                both.set()
                results = [await engine.result(task_id) for task_id in (*old, *new)]
            finally:
                await process.communicate(b"")
        assert len(results) == 40
        assert {each["by"] for each in results} == {"older", "newer"}
        assert [len(each.read_text().splitlines()) for each in folder.iterdir()] == [1] * 40
        policies = [json.loads((await engine.kernel.reads.get_task(task_id)).policy or "{}") for task_id in new]
        assert [policy.get("novelty") for policy in policies] == ["new"] * 20
        assert (await engine.kernel.verify()).problems == ()
