"""A process that looks is killed between the scan and the commit, or right after it: each change starts work once."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from tests.crash.scene import Scene, until
from tests.sizes import sampled

from treadle.model.states import WATCHER
from treadle.model.values import decode


def write_whole(path: Path, text: str) -> None:
    """Write a file that nobody sees half-written, which would be a change of its own."""
    new = path.parent.parent / path.name
    new.write_text(text)
    new.replace(path)


@pytest.mark.postgres
@pytest.mark.parametrize(("number", "point"), sampled([*product([2, 3], ["look.before_commit", "look.after_commit"])]))
async def test_a_killed_scanner_neither_loses_nor_repeats_a_change(scene: Scene, tmp_path: Path, point: str, number: int) -> None:
    """The first commit is that of the first look, which finds nothing; the next ones tell of changes, and put the task back."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    await scene.engine.watchers.create("inbox", directory=str(inbox), every=1, settle=0, task="note")
    doomed = scene.start("worker", "--crash-at", f"{point}:{number}")

    async def begun() -> bool:
        kernel = scene.engine.kernel
        record = await kernel.store.records.find_named("default", WATCHER.entity, "inbox")
        assert record is not None
        return (await kernel.value_store.unpack(record.document)).get("begun") or doomed.exit_code is not None

    await until(begun, doomed)
    names = [f"{index:02}" for index in range(30)]
    for name in names:
        write_whole(inbox / name, name)
    await scene.died(doomed)
    other = await scene.start_worker()

    async def told() -> bool:
        return (await scene.engine.watchers.get("inbox")).items == 30

    await until(told, other)
    write_whole(inbox / "00", "changed")

    async def told_again() -> bool:
        recent = (await scene.engine.watchers.get("inbox")).recent
        return any((each.change, each.name) == ("modified", "00") for each in recent)

    await until(told_again, other)
    await scene.engine.watchers.pause("inbox")
    await until(scene.nothing_is_left, other)
    tasks = await scene.engine.kernel.reads.list_tasks(kind="handler", name="note", limit=1000)
    told_of = Counter((each["change"], each["name"]) for each in (decode(task.payload)["change"] for task in tasks))
    seen_first = {item.name for item in (await scene.engine.watchers.seen("inbox")).seen}
    assert seen_first == set(names)
    assert max(told_of.values()) == 1
    assert told_of[("modified", "00")] == 1
    assert {name for change, name in told_of if change == "created"} == set(names)
    assert (await scene.engine.kernel.verify()).problems == ()
