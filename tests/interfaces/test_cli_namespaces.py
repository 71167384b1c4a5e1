"""`treadle namespaces`, and workers that serve several namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.interfaces.commands import Treadle


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


def test_a_namespace_is_moved_and_a_worker_of_several_namespaces_serves_it_there(treadle: Treadle, placed: dict[str, str]):
    ids = {
        name: json.loads(treadle("enqueue", "greet", "--json", "--namespace", name, **placed).out)["id"] for name in ("red", "blue")
    }
    target = f"sqlite:///{treadle.folder}/new.db"
    moved = treadle("namespaces", "move", "red", "--to", target, "--json", **placed)
    assert moved.code == 0, moved.err
    assert json.loads(moved.out)["rows"]["tasks"] >= 1
    assert treadle("namespaces", "move", "red", "--to", target, **placed).code != 0
    with treadle.started("worker", "--handlers", "jobs", "--namespace", "red", "--also", "blue", "--json", **placed):
        for name, task_id in ids.items():
            show = treadle("enqueue", "greet", "--wait", "--namespace", name, "--json", **placed)
            assert json.loads(show.out)["state"] == "completed", show.err
            assert (
                json.loads(treadle("tasks", "show", task_id, "--json", "--namespace", name, **placed).out)["state"] == "completed"
            )


def test_moving_needs_a_directory(treadle: Treadle):
    refused = treadle("namespaces", "move", "red", "--to", "sqlite:///other.db")
    assert refused.code == 2
    assert "TREADLE_DIRECTORY" in refused.err
    assert "TREADLE_DIRECTORY" in treadle("worker", "--also", "red").err


@pytest.mark.parametrize("point", ["move.copying:3", "move.switched"])
def test_a_killed_move_is_completed_by_the_same_command(treadle: Treadle, placed: dict[str, str], point: str):
    task_id = json.loads(treadle("enqueue", "greet", "--json", "--namespace", "red", **placed).out)["id"]
    target = f"sqlite:///{treadle.folder}/new.db"
    assert treadle("namespaces", "move", "red", "--to", target, TREADLE_CRASH_AT=point, **placed).code != 0
    assert treadle("namespaces", "move", "red", "--to", f"{target}2", **placed).code != 0
    assert treadle("namespaces", "move", "red", "--to", target, **placed).code == 0
    assert treadle("tasks", "show", task_id, "--namespace", "red", **placed).code == 0
    assert "new.db" in treadle("namespaces", "list", **placed).out
    assert treadle("enqueue", "greet", "--namespace", "red", **placed).code == 0


def test_a_running_worker_follows_further_namespaces_and_leaves_when_its_own_is_moved(treadle: Treadle, placed: dict[str, str]):
    def finished_in(name: str, store: str) -> None:
        shown = treadle("enqueue", "greet", "--wait", "--namespace", name, "--json", **placed)
        assert json.loads(shown.out)["state"] == "completed", shown.err
        task_id = json.loads(shown.out)["id"]
        assert treadle("tasks", "show", task_id, "--namespace", name, "--store", store).code == 0

    target = f"sqlite:///{treadle.folder}/new.db"
    serving = treadle.started("serve", "--namespace", "red", "--json", **placed)
    working = treadle.started("worker", "--handlers", "jobs", "--namespace", "red", "--also", "blue", "--json", **placed)
    with serving as server, working as worker:
        finished_in("blue", f"sqlite:///{treadle.folder}/blue.db")
        moved = treadle("namespaces", "move", "blue", "--to", target, "--wait", "30", **placed)
        assert moved.code == 0, moved.err
        finished_in("blue", target)
        moved = treadle("namespaces", "move", "red", "--to", target, "--wait", "30", **placed)
        assert moved.code == 0, moved.err
        for process in (worker, server):
            assert process.process.wait() == 5
            assert process.err.wait_for("namespace red was moved")
