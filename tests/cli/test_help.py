"""The help: one screen for all commands, `-h` everywhere, the same options for every list, near names for wrong ones."""

from __future__ import annotations

from collections import Counter

import click
import pytest
from click.testing import CliRunner

from treadle.interfaces.cli.app import COMMANDS, FREQUENT, SECTIONS, make_app
from treadle.interfaces.cli.command import Branch, leaves, make

LEAVES = dict(leaves(COMMANDS))
LISTS = [name for name in LEAVES if name.endswith(" list")]


def test_the_help_of_all_commands_fits_one_screen() -> None:
    lines = CliRunner().invoke(make_app(), ["--help"], terminal_width=80).output.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_each_command_is_in_one_section_of_the_help() -> None:
    named = Counter(" ".join(SECTIONS.values()).split())
    assert named == Counter(entry.name for entry in COMMANDS)
    assert {name for name, _ in FREQUENT} <= named.keys()


@pytest.mark.parametrize("name", ["", *(entry.name for entry in COMMANDS if isinstance(entry, Branch)), *LEAVES])
def test_every_command_explains_itself_after_h(name: str) -> None:
    short, long = (CliRunner().invoke(make_app(), [*name.split(), flag]) for flag in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert short.output.startswith("Usage: treadle")


@pytest.mark.parametrize("name", LISTS)
def test_lists_have_the_same_options(name: str) -> None:
    options = {flag for param in make(LEAVES[name]).params if isinstance(param, click.Option) for flag in param.opts}
    assert {"--limit", "--before"} <= options or not {"--limit", "--before", "--after"} & options, "pages have both"
    assert not {"--status", "--states", "--task-list", "--run-id"} & options


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["task"], "tasks"),
        (["tasks", "lst"], "list"),
        (["tasks", "list", "--stat", "failed"], "--state"),
        (["objectives", "list", "--status", "DONE"], "--state"),
        (["enqueue", "greet", "--prio", "3"], "--priority"),
    ],
)
def test_a_wrong_word_names_the_near_one(words: list[str], near: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        make_app().main(words, standalone_mode=False)
    assert near in refused.value.format_message()
