"""The engine's own tasks are not operated on as tasks: every interface names their owner and the command for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engines import make_engine

from treadle.model.errors import Refused
from treadle.model.names import SCHEDULE, WATCHER


@pytest.mark.parametrize("transition", ["cancel", "pause", "resume", "retry"])
async def test_the_engines_own_tasks_name_their_owner_and_stay_as_they_are(transition: str, tmp_path: Path) -> None:
    async with make_engine("memory://") as engine:
        await engine.schedules.create("nightly", every=3600, task="report")
        await engine.watchers.create("inbox", directory=str(tmp_path), task="report")
        tasks = await engine.kernel.reads.list_tasks(states=("pending",))
        own = {task.kind: task for task in tasks if task.kind in (SCHEDULE, WATCHER)}
        assert {SCHEDULE, WATCHER} <= own.keys()
        command = "resume" if transition in ("resume", "retry") else "pause"
        for kind, name in ((SCHEDULE, "nightly"), (WATCHER, "inbox")):
            with pytest.raises(Refused, match=f"belongs to the {kind} {name}; use `treadle {kind}s {command} {name}`"):
                await getattr(engine, transition)(own[kind].id)
            assert (await engine.kernel.reads.get_task(own[kind].id)).shown_state == "pending"
