"""The first minutes: `treadle init` writes a project that runs, and `treadle dev` runs it and reloads it without losing work."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.test_worker import wait_for
from tests.commands import Running, Treadle

from treadle.interfaces.cli.project import Project, find_project
from treadle.model.errors import InvalidInput

GATE = """
from pathlib import Path
import time


@engine.handler("shop.Gate")
def gate(payload, ctx):
    Path("started").touch()
    while not Path("open").exists() and not ctx.cancelled:
        time.sleep(0.01)
    return {"version": "old", "attempt": ctx.attempt}
"""


@pytest.fixture
def project(tmp_path: Path) -> Treadle:
    """The command in a project that `init` has written."""
    made = Treadle(tmp_path).json("init", "shop", "--template", "afl")
    assert made["folder"] == str(tmp_path / "shop")
    return Treadle(tmp_path / "shop")


def event(dev: Running, name: str) -> dict:
    line = dev.out.wait_for(f'"event": "{name}"')
    assert line, dev.ended()
    return json.loads(line)


def test_init_overwrites_no_file(tmp_path: Path) -> None:
    treadle = Treadle(tmp_path)
    (tmp_path / "app.py").write_text("mine")
    refused = treadle("init", "--json")
    assert (refused.code, refused.error["code"]) == (2, "project_exists")
    assert "app.py" in refused.error["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert treadle("init", "x", "--name", "a b").code == 2
    assert not (tmp_path / "x").exists()


def test_warnings_about_the_flows_of_a_project_are_errors(project: Treadle) -> None:
    flow = project.folder / "flows" / "hello.afl"
    flow.write_text(flow.read_text().replace("Greet(name = name)", 'Greet(name = name, loud = "yes")'))
    assert project("compile", "flows").code == 2
    assert project("run", "flows", "--handlers", "handlers.py").code == 2
    assert project("flows", "publish", "shop", "flows").code == 2
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace("strict = true", "strict = false"))
    assert project("compile", "flows").code == 0
    assert project("compile", "flows", "--strict").code == 2


def test_dev_runs_changed_code_and_keeps_the_last_working_version(project: Treadle) -> None:
    handlers, flow = project.folder / "handlers.py", project.folder / "flows" / "hello.afl"
    with project.started("dev", "--json") as dev:
        assert json.loads(dev.first)["handlers"] == ["shop.Greet"]
        assert event(dev, "published")["workflows"] == ["shop.Hello"]
        assert project.json("submit", "shop", "--wait")["outputs"] == {"texts": ["Hello, Ada!", "Hello, Grace!"]}
        handlers.write_text(handlers.read_text().replace("Hello", "Howdy"))
        assert event(dev, "reloaded")["changed"] == ["handlers.py"]
        assert project.json("submit", "shop", "--wait")["outputs"] == {"texts": ["Howdy, Ada!", "Howdy, Grace!"]}
        handlers.write_text(handlers.read_text() + "def x(:")
        assert "SyntaxError" in dev.err.wait_for("handlers_broken")
        assert "keeps the previous version" in dev.err.wait_for("not_reloaded")
        flow.write_text(flow.read_text().replace("greeting.text", "greeting.txt"))
        assert "has no attribute `txt`" in dev.err.wait_for("invalid_flow")
        assert project.json("submit", "shop", "--wait")["outputs"] == {"texts": ["Howdy, Ada!", "Howdy, Grace!"]}
        flow.write_text(flow.read_text().replace("greeting.txt", "greeting.text"))
        assert dev.out.wait_for('"version": 1')
        flow.write_text(flow.read_text().replace("greeting.text", '"Oh: " ++ greeting.text'))
        assert dev.out.wait_for('"version": 2')
        assert project.json("submit", "shop", "--wait")["outputs"] == {"texts": ["Oh: Howdy, Ada!", "Oh: Howdy, Grace!"]}
        assert dev.stop(signal.SIGINT).code == 0
    assert project.json("workers", "--live")["servers"] == []


def test_a_reload_waits_for_running_tasks(project: Treadle) -> None:
    handlers = project.folder / "handlers.py"
    handlers.write_text(handlers.read_text() + GATE)
    with project.started("dev", "--json", "--grace", "60") as dev:
        task = project.json("enqueue", "shop.Gate")
        wait_for(project.folder / "started", dev)
        handlers.write_text(handlers.read_text().replace('"old"', '"new"'))
        assert dev.err.wait_for("stopping: no new tasks")  # the new one runs, and the old one waits for its work
        (project.folder / "open").touch()
        assert event(dev, "reloaded")
        assert project.json("tasks", "show", task["id"])["result"] == {"version": "old", "attempt": 1}
        assert project.json("enqueue", "shop.Gate", "--wait")["result"] == {"version": "new", "attempt": 1}
        assert dev.stop().code == 0


def test_dev_needs_a_project_and_a_store_that_processes_can_share(tmp_path: Path, project: Treadle) -> None:
    (tmp_path / "empty").mkdir()
    refused = Treadle(tmp_path / "empty")("dev")
    assert (refused.code, "treadle init" in refused.err) == (2, True)
    project.store = "memory://"
    assert "cannot share a store in memory" in project("dev").err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.treadle", "cannot be read"),
        ("[tool]\ntreadle = 1", "is not a table"),
        ("[tool.treadle]\nhandler = ['a']", "unknown key 'handler'"),
        ("[tool.treadle]\nhandlers = 'a.py'", "handlers must be a list of texts"),
        ("[tool.treadle]\nflows = [1]", "flows must be a list of texts"),
        ("[tool.treadle]\nstrict = 1", "strict must be true or false"),
        ("[tool.treadle]\nname = 'a b'", "name"),
    ],
)
def test_a_wrong_project_file_is_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_project() is None
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert find_project() is None
    (tmp_path / "pyproject.toml").write_text("[tool.treadle]\nname = 'x'\nflows = ['f']\n")
    assert find_project() == Project("x", (), ("f",), True)
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        find_project()
