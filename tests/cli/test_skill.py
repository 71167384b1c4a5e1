"""The skill for coding agents: its code runs, it is installed for the version, and the documentation is served to models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import Treadle

from treadle.interfaces.cli.app import COMMANDS
from treadle.interfaces.cli.command import leaves
from treadle.interfaces.cli.project import skill_text
from treadle.lang import compile_sources
from treadle.testing.workflows import compile_program
from treadle.version import VERSION
from treadle.workers.flow_dry_run import dry_run_flow

TEXT = skill_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("code", PYTHON, ids=["tasks", "functions"])
def test_the_python_of_the_skill_runs(code: str) -> None:
    """No example raises."""
    exec(compile(code, "SKILL.md", "exec"), {"__name__": "__main__"})


def test_the_test_of_the_skill_passes(tmp_path: Path) -> None:
    [code] = re.findall(r"```python test\n(.*?)```", TEXT, re.S)
    (tmp_path / "test_it.py").write_text(code)
    plugins = ["-p", "treadle.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", ".", "-c", "/dev/null", "test_it.py"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


async def test_the_workflow_of_the_skill_compiles_strictly_and_runs() -> None:
    [source] = re.findall(r"```afl\n(.*?)```", TEXT, re.S)
    assert compile_sources([("skill.afl", source)]).diagnostics == ()
    program = compile_program(source)
    facet = program.find_facet("shop.Checkout")
    assert facet is not None
    answers = {"sys.approval": {}, "Charge": {"@error": "declined"}, "Pack": {"box": "b"}}
    ended = await dry_run_flow(program, facet, {"order": "o", "items": ["x", "y"]}, answers)
    assert ended.outputs == {"receipt": "none: declined", "boxes": ["b", "b"]}


def test_every_command_of_the_skill_exists_and_it_is_short() -> None:
    known = {name for name, _ in leaves(COMMANDS)}
    named = [each.split() for each in re.findall(r"(?:`|; |    )treadle ([a-z][a-z -]+[a-z])", TEXT)]
    assert len(named) > 12
    for words in named:
        assert {" ".join(words[:2]), words[0]} & known, words
    assert len(TEXT) < 10_000, "about 2,500 tokens"


def test_the_skill_is_installed_and_replaced_but_overwrites_no_other_file(tmp_path: Path) -> None:
    treadle = Treadle(tmp_path)
    first = treadle.json("skill", "install")
    path = tmp_path / first["path"]
    assert path == tmp_path / ".claude/skills/treadle/SKILL.md"
    assert (path.read_text(), first["version"], first["replaced"]) == (TEXT, VERSION, None)
    path.write_text(TEXT.replace(f"# Treadle {VERSION}", "# Treadle 0.0.1"))
    assert "in place of 0.0.1" in treadle("skill", "install").out
    path.write_text("mine")
    assert "skill_exists" in treadle("skill", "install").err
    assert path.read_text() == "mine"
    assert treadle.json("skill", "install", "--dir", "other")["path"] == "other/treadle/SKILL.md"
    assert treadle.json("skill", "show")["text"] == TEXT
    assert treadle("skill", "show", "--afl").out.startswith("# AFL in brief")
