"""An upgrade from the last release while its workers run, on both stores: the procedure of docs/operations/upgrades.md."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.limits import BOUND

import treadle
from treadle import Engine
from treadle.kernel.store.records import RecordFilter

pytestmark = [pytest.mark.xdist_group("stores release upgrade"), pytest.mark.soak, pytest.mark.new_schema]

ROOT = Path(__file__).parents[2]
OLD_SCHEMA = 3
"""The schema of 0.3, whose baseline is the first that can be upgraded."""

WORKER = """
import asyncio, json, os, sys
from treadle import Engine, Waiting
from treadle.settings import Settings

async def main(version, url, folder):
    engine = Engine(url, settings=Settings())

    def note(what):
        with open(f"{folder}/{what}", "a") as file:
            file.write(version + "\\n")

    @engine.handler("work")
    async def work(payload):
        note(payload["n"])
        return {"by": version}

    @engine.handler("hang")
    async def hang(payload, ctx):
        # Wait to be killed in the version that the payload names; the other one leaves it to that, and then ends it.
        if payload["n"] == version:
            note("held-by-" + version)
            await asyncio.Event().wait()
        return {"by": version} if os.path.exists(f"{folder}/held-by-{payload['n']}") else Waiting(100)

    @engine.function("order", version=1)
    async def order(payload, ctx):
        async def reserve():
            note("reserve-" + payload["n"])
            return version

        async def ship():
            note("ship-" + payload["n"])
            return version

        reserved = await ctx.step(reserve, name="reserve")
        await ctx.wait_for("paid")
        return [reserved, await ctx.step(ship, name="ship")]

    async def obey(verb, *arguments):
        match verb:
            case "enqueue":
                return [(await engine.enqueue(arguments[0], {"n": n})).id for n in arguments[1:]]
            case "start":
                return (await engine.start_function("order", {"n": arguments[0]})).id
            case "schedule":
                return (await engine.schedules.create("nightly", cron="0 3 * * *", task="work")).id
            case "pause":
                return (await engine.schedules.pause("nightly")).id

    async with engine, engine.worker(lease=3, concurrency=4):
        print(json.dumps("ready"), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await obey(*line.split())), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def last_release() -> str:
    """The last commit with schema 3, a state of version 0.3; empty as long as there is no later schema."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=BOUND)
        return done.stdout.strip() if done.returncode == 0 else ""

    first_of_next = sorted((ROOT / "src/treadle/stores/sqlite/migrations").glob(f"{OLD_SCHEMA + 1:04}_*.up.sql"))
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(first_of_next[0])).splitlines() if first_of_next else []
    return git("rev-parse", "--verify", "--quiet", f"{added[-1]}^") if added else ""


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the last release."""
    commit = last_release()
    if not commit:
        pytest.skip("needs a schema after that of 0.3, and the history of the repository")
    folder = tmp_path_factory.mktemp("release")
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src/treadle"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path) + ("x" if request.param == "sqlite" else "")  # no copy of the newest schema


class Worker:
    """A worker process of one version, which does what a line on its stdin says."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process, self._log = process, log

    async def __call__(self, *words: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        return await self.answer()

    async def answer(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            line = await self.process.stdout.readline()
        assert line, self._log.read_text()
        return json.loads(line)

    async def end(self, number: signal.Signals | None = None) -> None:
        if self.process.returncode is None:
            if number is not None:
                self.process.send_signal(number)
            await self.process.communicate()


def _run(source: Path, *arguments: str) -> dict[str, Any]:
    environment = {"PATH": os.defpath, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    return {"args": [sys.executable, *arguments], "env": environment, "cwd": "/"}


@asynccontextmanager
async def worker(version: str, source: Path, url: str, folder: Path) -> AsyncIterator[Worker]:
    log = folder.with_name(f"{version}-{len(list(folder.parent.iterdir()))}.log")
    what = _run(source, "-c", WORKER, version, url, str(folder))
    pipe = asyncio.subprocess.PIPE
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *what["args"], stdin=pipe, stdout=pipe, stderr=errors, env=what["env"], cwd=what["cwd"]
        )
    made = Worker(process, log)
    try:
        assert await made.answer() == "ready"
        yield made
    finally:
        await made.end(signal.SIGKILL)


def command(source: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        **_run(source, "-m", "treadle", "--store", url, *arguments), capture_output=True, text=True, timeout=BOUND
    )


async def results(engine: Engine, *task_ids: str) -> set[str]:
    async with asyncio.timeout(BOUND):
        return {(await engine.result(task_id))["by"] for task_id in task_ids}


async def test_workers_of_the_last_release_and_of_this_one_share_a_store(url: str, old_source: Path, tmp_path: Path) -> None:
    folder, new_source = tmp_path / "notes", Path(treadle.__file__).parents[1]
    folder.mkdir()
    assert command(old_source, url, "store", "migrate").returncode == 0
    async with worker("old", old_source, url, folder) as old:
        first = await old("enqueue", "work", *range(20))
        runs = [await old("start", n) for n in ("a", "b")]
        await old("schedule")

        # Before the migration, the new version only says what to do; the migration does not stop the old worker.
        behind = command(new_source, url, "tasks", "list", "--json")
        assert (behind.returncode, json.loads(behind.stderr)["error"]["code"]) == (4, "schema_behind")
        migrated = command(new_source, url, "store", "migrate")
        assert migrated.returncode == 0, migrated.stderr
        engine = make_engine(url)
        async with engine:
            assert await results(engine, *first) == {"old"}
            assert await results(engine, *await old("enqueue", "work", *range(20, 40))) == {"old"}

            # An old process that starts now is refused and changes nothing.
            late = command(old_source, url, "worker")
            assert late.returncode == 4
            assert "upgrade Treadle" in late.stderr.replace("Upgrade", "upgrade")

            async with worker("new", new_source, url, folder) as new:
                # Fields of the new version survive changes by the old one.
                await engine.schedules.edit("nightly", fairness_key="tenant-1", tags={"team": "ops"})
                await old("pause")
                (record,) = await engine.kernel.store.records.list_matching(RecordFilter("schedule"), 10)
                target = json.loads(record.document)["target"]
                assert (target["fairness_key"], target["tags"]) == ("tenant-1", {"team": "ops"})
                assert (await engine.schedules.get("nightly")).state == "paused"

                mixed = await old("enqueue", "work", *range(40, 140)) + await new("enqueue", "work", *range(140, 240))
                assert await results(engine, *mixed) <= {"old", "new"}

                # Each version takes over the tasks of the other's killed worker.
                (held,) = await old("enqueue", "hang", "new")
                await _there(folder / "held-by-new")
                await new.end(signal.SIGKILL)
                assert await results(engine, held) == {"old"}
            async with worker("new", new_source, url, folder) as new:
                (held,) = await new("enqueue", "hang", "old")
                await _there(folder / "held-by-old")
                await old.end(signal.SIGKILL)
                assert await results(engine, held) == {"new"}
                for run in runs:  # they continue with the steps that the old version recorded
                    await engine.signal(run, "paid")
                    assert await engine.run_result(run, timeout=BOUND) == ["old", "new"]
            for name in ("reserve-a", "reserve-b", "ship-a", "ship-b"):
                assert len((folder / name).read_text().splitlines()) == 1
            for n in range(240):
                assert len((folder / str(n)).read_text().splitlines()) == 1
            assert (await engine.kernel.verify()).problems == ()

    # The way back: down to the old schema with everything stopped, then the old version works again.
    down = command(new_source, url, "store", "migrate", "--to", str(OLD_SCHEMA), "--yes")
    assert down.returncode == 0, down.stderr
    assert command(old_source, url, "store", "verify").returncode == 0
    async with worker("old", old_source, url, folder) as old:
        (last,) = await old("enqueue", "work", 240)
        await _there(folder / "240")
    assert last


async def _there(file: Path) -> None:
    async with asyncio.timeout(BOUND):
        while not file.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
