"""`treadle namespaces`, and workers that serve several namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import Treadle


@pytest.fixture
def placed(treadle: Treadle) -> dict[str, str]:
    """The environment with a directory that places `red` and `blue`."""
    path = Path(treadle.folder) / "directory.toml"
    path.write_text(f'[namespaces]\nred = "sqlite:///{treadle.folder}/red.db"\nblue = "sqlite:///{treadle.folder}/blue.db"\n')
    return {"TREADLE_DIRECTORY": str(path)}


def test_commands_use_the_store_of_their_namespace(treadle: Treadle, placed: dict[str, str]):
    assert treadle("enqueue", "greet", "--namespace", "red", **placed).code == 0
    assert (Path(treadle.folder) / "red.db").exists()
    assert len(json.loads(treadle("tasks", "list", "--json", "--namespace", "red", **placed).out)["tasks"]) == 1
    found = json.loads(treadle("namespaces", "list", "--json", **placed).out)["namespaces"]
    assert {(each["namespace"], each["reachable"]) for each in found} == {("red", True), ("blue", False)}
    assert "red.db" in treadle("namespaces", "list", **placed).out


def test_a_worker_serves_several_namespaces(treadle: Treadle, placed: dict[str, str]):
    with treadle.started("worker", "--handlers", "jobs", "--namespace", "red", "--also", "blue", "--json", **placed):
        for name in ("red", "blue"):
            show = treadle("enqueue", "greet", "--wait", "--namespace", name, "--json", **placed)
            assert json.loads(show.out)["state"] == "completed", show.err


def test_serving_further_namespaces_needs_a_directory(treadle: Treadle):
    assert "TREADLE_DIRECTORY" in treadle("worker", "--also", "red").err
