"""Golden histories: runs that an earlier version left in the middle are resumed to the outputs that they had to come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.engines import ALL, url_of
from tests.golden.runs.histories import go_on, load
from tests.golden.runs.regenerate import HERE, STOPS
from tests.runs.driver import hands_on

HISTORIES = sorted(HERE.glob("*.json"))


def test_every_golden_history_exists() -> None:
    assert {path.stem for path in HISTORIES} >= set(STOPS)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ALL)
async def test_golden_histories_are_resumed_to_their_outputs(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with hands_on(url_of(kind, request, tmp_path)) as hands:
        for path in HISTORIES:
            history = json.loads(path.read_text(encoding="utf-8"))
            run = await load(hands.engine.kernel.store, history)
            assert (await hands.engine.kernel.verify()).problems == (), path.stem
            assert await go_on(hands, run.id) == history["outputs"], path.stem


@pytest.mark.parametrize("name", [path.stem for path in HISTORIES])
async def test_golden_histories_can_be_forked(name: str) -> None:
    async with hands_on("memory://") as hands:
        history = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
        run = await load(hands.engine.kernel.store, history)
        root = next(row for row in await hands.engine.kernel.runs.list_steps(run.id) if row.parent_id is None)
        forked = await hands.engine.runs.fork(run.id, root.id)
        assert await go_on(hands, forked.id) == history["outputs"]
