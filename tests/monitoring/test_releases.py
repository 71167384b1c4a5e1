"""The release of the application: recorded by workers, and shown with what they executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of
from tests.errors import raises_code

from treadle.engine.operations import Operations
from treadle.model.access import OPEN
from treadle.model.errors import TaskFailed
from treadle.settings import Settings, find_commit, find_release

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("kind", SHARED)
async def test_tasks_runs_and_failures_name_the_release_that_executed_them(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    task_ids = []
    for release in ("r1", "r2"):
        async with make_engine(url, release=release) as engine:

            @engine.handler("fail")
            async def fail(payload: dict[str, Any]) -> None:
                raise RuntimeError("no luck")

            @engine.function("tour")
            async def tour(ctx: Any) -> None:
                await ctx.sleep(0)

            async with engine.worker(name=release, grace=0):
                task_ids.append((await engine.enqueue("fail", {}, retry=0)).id)
                with pytest.raises(TaskFailed):
                    await engine.result(task_ids[-1])
                run = await engine.start("tour")
                await engine.result(run)
                waiting = await engine.enqueue("nobody", {})
            api = Operations(engine, OPEN)
            servers = (await api.servers.list()).servers
            assert {server.name: server.release for server in servers}[release] == release
            assert [(await api.tasks.get(task_id)).release for task_id in task_ids] == ["r1", "r2"][: len(task_ids)]
            assert (await api.tasks.get(waiting.id)).release is None
            assert (await api.runs.get(run.id)).release == release
            (group,) = (await api.dead_letters.groups()).groups
            assert (group.count, group.since_release) == (len(task_ids), "r1"), "that of the first failure"


async def test_an_external_worker_names_its_release() -> None:
    async with make_engine("memory://") as engine:
        api = Operations(engine, OPEN)
        worker = await api.work.register("ada", ["greet"], release="v7")
        assert (await api.servers.get(worker.worker_id)).release == "v7"
        with raises_code("invalid_input"):
            await api.work.register("ada", ["greet"], release="v\x007")


def test_the_release_is_the_setting_or_the_commit_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / ".git"
    (git / "refs/heads/fix").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    assert find_release(Settings(release="v1")) == "v1"
    assert find_release(Settings()) == "", "a repository without a commit"
    (git / "HEAD").write_text("ref: refs/heads/fix/it\n")
    assert find_release(Settings()) == ""
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{'f' * 40} refs/heads/other\n{COMMIT} refs/heads/fix/it\n")
    assert find_release(Settings()) == COMMIT[:12]
    (git / "refs/heads/fix/it").write_text(f"{COMMIT[::-1]}\n")
    assert find_release(Settings()) == COMMIT[::-1][:12], "a loose reference is newer than a packed one"
    (git / "HEAD").write_text(f"{COMMIT}\n")
    assert find_commit(tmp_path / "src") == COMMIT[:12]


def test_a_worktree_names_the_commit_of_its_repository(tmp_path: Path) -> None:
    own, shared = tmp_path / "main/.git/worktrees/tree", tmp_path / "main/.git"
    own.mkdir(parents=True)
    (shared / "refs/heads").mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/tree\n")
    (own / "commondir").write_text("../..\n")
    (shared / "refs/heads/tree").write_text(f"{COMMIT}\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert find_commit(tree) == COMMIT[:12]
