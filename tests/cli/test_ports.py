"""Servers listen where they were told to: a chosen port that is taken is an error; only the default one may move, with a note."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.commands import Treadle

from treadle.interfaces.http.server import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
HANDS = "from treadle import Engine\n\nengine = Engine()\n"
SERVERS = (("up",), ("serve",), ("mcp", "--http"), ("dev", "--handlers", "hands.py"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("command", SERVERS, ids=" ".join)
@pytest.mark.parametrize("chosen_by", ["--port", "TREADLE_HTTP_PORT"])
def test_a_chosen_port_that_is_taken_is_an_error(treadle: Treadle, taken_port: int, command: tuple[str, ...], chosen_by: str):
    Path(treadle.folder, "hands.py").write_text(HANDS)
    flags = [chosen_by, str(taken_port)] if chosen_by == "--port" else []
    environment = {} if flags else {chosen_by: str(taken_port)}
    ended = treadle(*command, *flags, "--json", **environment)
    assert ended.code == 1
    assert ended.out == ""
    assert ended.error["code"] == "cannot_listen"
    assert str(taken_port) in ended.error["message"]


def test_a_taken_default_port_is_replaced_with_a_note(treadle: Treadle):
    default = socket.socket()
    with closing(default):
        default.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            default.bind(("127.0.0.1", DEFAULT_PORT))
            default.listen()
        except OSError:
            pass  # another program of this machine has it
        with treadle.started("up", "--json", TREADLE_HTTP_PORT="") as running:
            assert json.loads(running.first)["url"] != f"http://127.0.0.1:{DEFAULT_PORT}"
            assert f"Port {DEFAULT_PORT} is taken" in running.err.wait_for("is taken")


@pytest.mark.parametrize("ignoring", [".gitignore", "src/treadle/interfaces/cli/templates/common/.gitignore.txt"])
def test_git_ignores_the_files_of_a_server(treadle: Treadle, ignoring: str):
    with treadle.started("up", "--json"):
        pass
    names = {path.name for path in treadle.folder.iterdir()}
    assert {"treadle.db", "treadle.db.token"} <= names
    (treadle.folder / ".gitignore").write_text((ROOT / ignoring).read_text())
    subprocess.run(["git", "init", "--quiet"], cwd=treadle.folder, check=True)
    status = ["git", "status", "--porcelain", "--untracked-files=all"]
    left = subprocess.run(status, cwd=treadle.folder, check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in left if name.startswith("treadle")] == []
