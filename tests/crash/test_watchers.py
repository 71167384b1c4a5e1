"""A process that looks is killed between the scan and the commit, or right after it: each change starts work once."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.scene import Scene, until

from treadle.model.values import decode

KILLED = -signal.SIGKILL


@pytest.mark.parametrize("point", ["look.before_commit", "look.after_commit"])
@pytest.mark.parametrize("number", [2, 3])
async def test_a_looker_that_is_killed_loses_no_change_and_doubles_none(
    scene: Scene, tmp_path: Path, point: str, number: int
) -> None:
    """The first commit is that of the first look, which finds nothing; the next ones tell of changes, and put the task back."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    await scene.engine.watchers.create("inbox", directory=str(inbox), every=1, settle=0, task="note")
    doomed = scene.start("worker", "--lease", 1, "--crash-at", f"{point}:{number}")

    async def begun() -> bool:
        return (await scene.engine.watchers.get("inbox")).body.begun or doomed.exit_code is not None

    await until(begun, doomed)
    names = [f"{index:02}" for index in range(30)]
    for name in names:
        (inbox / name).write_text(name)
    assert await doomed.ended() == KILLED
    other = await scene.start_worker("--lease", 1)

    async def told() -> bool:
        return (await scene.engine.watchers.get("inbox")).body.items == 30

    await until(told, other)
    (inbox / "00").write_text("changed")

    async def told_again() -> bool:
        recent = (await scene.engine.watchers.get("inbox")).body.recent
        return any((each.change, each.name) == ("modified", "00") for each in recent)

    await until(told_again, other)
    await scene.engine.watchers.pause("inbox")
    await until(scene.nothing_is_left, other)
    tasks = await scene.engine.list_tasks(name="note", limit=1000)
    told_of = Counter((each["change"], each["name"]) for each in (decode(task.payload)["change"] for task in tasks))
    seen_first = {key for key, _ in await scene.engine.watchers.list_seen("inbox")}
    assert seen_first == set(names)
    assert max(told_of.values()) == 1
    assert told_of[("modified", "00")] == 1
    assert {name for change, name in told_of if change == "created"} == set(names)
    assert (await scene.engine.kernel.verify()).problems == ()
