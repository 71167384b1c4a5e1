"""Shell completion: a real bash completes commands, options, states and the names of what there is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import Treadle
from tests.limits import BOUND

from treadle.model.access import Scope

_TAB = """
source <({treadle} completion bash)
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_treadle_completion treadle "${{COMP_WORDS[COMP_CWORD]}}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def tab(treadle: Treadle, *words: str) -> list[str]:
    """The completions that bash offers after the last of the words."""
    command = str(Path(sys.executable).with_name("treadle"))
    text = _TAB.format(treadle=command, words=" ".join(f"'{word}'" for word in (command, *words)))
    ended = subprocess.run(
        ["bash", "--norc", "-c", text],
        cwd=treadle.folder,
        env=treadle._environment({}),
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=True,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


def test_bash_completes_commands_options_and_values(treadle: Treadle):
    assert tab(treadle, "ta") == ["tasks"]
    assert tab(treadle, "tasks", "li") == ["list"]
    assert tab(treadle, "tasks", "list", "--state", "=", "fai") == ["failed"]


def words(treadle: Treadle, *typed: str) -> list[str]:
    ended = treadle("completion", "fish", "--", *typed)
    assert (ended.code, ended.err) == (0, "")
    return [line.partition("\t")[0] for line in ended.out.splitlines()]


def test_options_values_and_names_are_completed(treadle: Treadle):
    assert words(treadle, "lists", "pause", "") == []
    assert not (treadle.folder / "treadle.db").exists()
    treadle.json("enqueue", "greet", "--list", "night")
    treadle.json("schedules", "add", "early", "--cron", "0 3 * * *", "--task", "greet")
    assert words(treadle, "lists", "pause", "ni") == ["night"]
    assert words(treadle, "tasks", "list", "--list=n") == ["--list=night"]
    assert words(treadle, "schedules", "show", "") == ["early"]
    assert words(treadle, "tasks", "list", "--s") == ["--state", "--store", "--server"]
    assert words(treadle, "--json", "runs", "list", "--state", "p") == ["pending", "paused"]
    assert words(treadle, "lists", "policy", "night", "") == ["wait", "ignore"]
    assert words(treadle, "token", "create", "me", "--scope", "") == [*Scope]
    assert words(treadle, "--ver") == ["--verbose", "--version"]
    assert words(treadle, "objectives", "topology", "") == ["check"]
    assert words(treadle, "nothing", "") == []
    assert words(treadle, "lists", "pause", "--store", "sqlite:///other.db", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_for_its_shell_and_can_be_installed(treadle: Treadle, shell: str):
    script = treadle("completion", shell).out
    assert f"completion {shell} --" in script
    installed = treadle.json("completion", shell, "--install", HOME=str(treadle.folder))
    place = Path(installed["path"])
    assert place.is_relative_to(treadle.folder)
    assert place.read_text().strip() == script.strip()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(place)], check=True)


def test_an_unknown_shell_is_refused(treadle: Treadle):
    ended = treadle("completion", "cmd", "--json")
    assert (ended.code, ended.error["code"]) == (2, "usage")
