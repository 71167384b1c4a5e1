"""Ctrl-C takes effect whatever a command is doing: real processes that interrupt themselves while they are busy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.nested import tree
from tests.limits import BOUND

from treadle.settings import child_environment

PRESS = """
import os, signal, sys

import treadle.interfaces.cli


def press():
    os.kill(os.getpid(), signal.SIGINT)


def busy(*_, **__):
    press()
    while True:  # as a program of any size would
        pass


"""
COMPILE = """
import treadle.lang
treadle.lang.compile_sources = busy
sys.exit(treadle.interfaces.cli.main(sys.argv[1:]))
"""
SLICES = """
from treadle.kernel.runs import advancer

calls, evaluate = 0, advancer.advance


def advance(*given):
    global calls
    calls += 1
    if calls == 5:
        press()
    changes = evaluate(*given)
    with open("calls", "w") as file:
        file.write(str(calls))
    return changes


advancer.advance = advance
sys.exit(treadle.interfaces.cli.main(sys.argv[1:]))
"""
STUCK = """
from treadle.kernel.runs import advancer


def stuck(*_):
    press()
    busy()


advancer.advance = stuck
sys.exit(treadle.interfaces.cli.main(sys.argv[1:]))
"""


def run(folder: Path, script: str, *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of the command in a process that was changed by the script."""
    environment = child_environment(TREADLE_STORE="sqlite:///treadle.db")
    command = [sys.executable, "-c", PRESS + script, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=-1, stderr=-1, text=True) as process:
        try:
            _, err = process.communicate(timeout=BOUND)
        finally:
            process.kill()
    return process.returncode, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nested.afl").write_text(tree(17).source)
    (tmp_path / "none.py").write_text("from treadle import Engine\nengine = Engine()\n")
    return tmp_path


@pytest.mark.parametrize(
    "command", [("compile", "nested.afl"), ("run", "nested.afl"), ("graph", "nested.afl")], ids=["sync", "event loop", "thread"]
)
def test_a_compiler_that_is_busy_is_interrupted(folder: Path, command: tuple[str, ...]) -> None:
    code, err = run(folder, COMPILE, *command)
    assert (code, err.strip()) == (130, "")


def test_a_run_is_paused_after_the_advance_in_progress(folder: Path) -> None:
    code, err = run(folder, SLICES, "run", "nested.afl")
    assert code == 130
    assert "is paused. Continue with `treadle runs resume" in err
    assert int((folder / "calls").read_text()) <= 8  # of 262, each of 2,000 rows


def test_a_worker_stops_after_the_advance_in_progress(folder: Path) -> None:
    assert run(folder, "sys.exit(treadle.interfaces.cli.main(sys.argv[1:]))", "submit", "nested.afl")[0] == 0
    code, err = run(folder, SLICES, "worker", "--handlers", "none.py")
    assert (code, "stopping" in err) == (0, True)
    assert int((folder / "calls").read_text()) <= 8


@pytest.mark.parametrize("command", [("run", "nested.afl"), ("worker", "--handlers", "none.py")], ids=["run", "worker"])
def test_a_second_interrupt_ends_a_process_that_is_busy(folder: Path, command: tuple[str, ...]) -> None:
    if command[0] == "worker":
        assert run(folder, "sys.exit(treadle.interfaces.cli.main(sys.argv[1:]))", "submit", "nested.afl")[0] == 0
    code, err = run(folder, STUCK, *command)
    assert (code, "Stopped immediately" in err) == (130, True)
