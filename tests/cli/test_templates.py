"""Each project that `treadle init` writes: its commands work, and its work survives `kill -9`."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.commands import Treadle
from tests.limits import BOUND
from tests.sizes import sampled

from treadle.interfaces.cli.project import TEMPLATES

SHIPPED = ("charging order 7", "shipping for receipt 7", "shipped, receipt 7")
CRASHES = {
    "function": SHIPPED,
    "queue": ("attempt 1", "thumbnail of a.png, attempt 1", {"path": "small/a.png"}),
    "fastapi": SHIPPED,
    "django": SHIPPED,
    "agent": ("tool find_order 7", "model request 2", "Your order is on its way."),
    "afl": ("attempt 1", "attempt 1", {"texts": ["Hello, Ada!", "Hello, Grace!"]}),
}
"""By template: the line that a restart must not repeat, the line at which the worker is killed, and the result."""
SLOW = """
def greet(payload, ctx):
    print(f"attempt {ctx.attempt}", flush=True)
    if ctx.attempt == 1:
        ctx.wait_cancelled(600)
"""
EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def written(folder: Path, template: str) -> tuple[Treadle, list[list[str]]]:
    """The command in a new project, and the commands that `init` printed."""
    shown = Treadle(folder)("init", "my-shop", "--template", template)
    assert shown.code == 0, shown
    following = [shlex.split(line, comments=True) for line in shown.out.partition("Next:")[2].splitlines() if line.strip()]
    assert following[0] == ["cd", "my-shop"]
    return Treadle(folder / "my-shop"), following[1:]


@pytest.mark.parametrize("template", sampled(TEMPLATES))
def test_every_command_that_init_prints_works(tmp_path: Path, template: str) -> None:
    treadle, (test, dev, start) = written(tmp_path, template)
    done = subprocess.run([sys.executable, *test[1:]], cwd=treadle.folder, capture_output=True, text=True, timeout=BOUND)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b[12] passed", done.stdout)
    with treadle.started(*dev[1:]) as running:
        assert running.out.wait_for("Sign in:  http://127.0.0.1:"), running.ended()
        if template == "afl":
            assert running.out.wait_for("Flow:     my_shop version 1: my_shop.Hello")
            assert treadle("compile", "flows").code == 0
            assert treadle("run", "flows", "--handlers", "handlers.py").code == 0
        answer = treadle(*start[1:])
        assert answer.code == 0, answer
        stopped = running.stop(signal.SIGINT)
    assert (stopped.code, stopped.out.splitlines()[-1]) == (0, "Stopped"), stopped
    agents = (treadle.folder / "AGENTS.md").read_text()
    for line in agents.partition("## Commands")[2].partition("python -m pytest")[0].split("\n"):
        for command in line.strip().partition("#")[0].split(";"):
            if command.strip():
                words = shlex.split(command)
                below = words[2:3] if words[1] in ("runs", "functions") else []
                assert treadle(*words[1:2], *below, "--help").code == 0, command


@pytest.mark.parametrize("template", sampled(TEMPLATES))
def test_work_of_a_killed_worker_continues_without_repeating_finished_steps(tmp_path: Path, template: str) -> None:
    treadle, (*_, start) = written(tmp_path, template)
    once, killed_at, result = CRASHES[template]
    handlers = "handlers.py" if template == "afl" else "app.py"
    if template == "afl":
        path = treadle.folder / handlers
        path.write_text(path.read_text().replace("def greet(payload):\n", SLOW.lstrip()))
        assert treadle("flows", "publish", "my_shop", "flows").code == 0
    command = [*start[1:-1], "--idempotency-key", "first"]
    assert start[-1] == "--wait"
    with treadle.started("worker", "--handlers", handlers, "--json") as worker:
        assert treadle(*command).code == 0
        assert killed_at in worker.out.wait_for(killed_at), worker.ended()
        worker.process.kill()
    with treadle.started("worker", "--handlers", handlers, "--json") as worker:
        answer = treadle.json(*command, "--wait")
        assert (answer.get("outputs") or answer["result"]) == result
        repeated = worker.stop().out
    assert once not in repeated


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_files_for_containers_run_commands_that_exist(tmp_path: Path, template: str) -> None:
    treadle, _ = written(tmp_path, template)
    texts = {path.name: path.read_text() for path in treadle.folder.rglob("*") if path.is_file()}
    assert not [name for name, text in texts.items() if re.search(r"\b(PROJECT|START|EXTRAS)\b", text)]
    (extras,) = re.findall(r'"treadle\[(.*?)\]"', texts["Dockerfile"])
    assert set(extras.split(",")) <= EXTRAS.keys()
    called = json.loads(texts["Dockerfile"].rpartition("CMD ")[2])
    for words in [part.split() for part in called[-1].split(" && ")] if called[0] == "sh" else [called]:
        if words[0] == "treadle" or words[:2] == ["exec", "treadle"]:
            arguments = words[words.index("treadle") + 1 :]
            flags = {flag for flag in arguments if flag.startswith("--")}
            shown = treadle(*[word for word in arguments[:2] if not word.startswith("-")], "--help").out
            assert all(flag in shown for flag in flags)
    composed = yaml.safe_load(texts["compose.yaml"])
    assert "postgres" in composed["services"]
    built = [service for service in composed["services"].values() if service.get("build") == "."]
    assert all(service["environment"]["TREADLE_STORE"].startswith("postgresql://") for service in built)
