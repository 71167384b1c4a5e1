"""A table of commands as a command line: what is not chosen is not loaded, so that commands start fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand

from treadle.cli.help import Command, Group
from treadle.cli.session import command

_STYLE: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command."""

    name: str
    place: str
    """`module:function` of its body, below `treadle.cli`."""
    help: str = ""
    """The first paragraph of its help, where it is listed without being loaded."""
    quiet: bool = True
    """Whether it logs only errors, as what it has to say is its output."""
    store_only: str = ""
    """Why it refuses `--server`; empty: it does the same on a store and on a server."""

    def load(self) -> Callable[..., None]:
        """What Typer calls for it."""
        module, _, function = self.place.partition(":")
        return command(getattr(import_module(f"treadle.cli.{module}"), function), quiet=self.quiet, store_only=self.store_only)


@dataclass(frozen=True, slots=True)
class Branch:
    """A group of commands."""

    name: str
    help: str
    below: tuple[Leaf | Branch, ...]


def leaves(table: Sequence[Leaf | Branch], before: str = "") -> Iterator[tuple[str, Leaf]]:
    """All commands with their full names, those of groups after the others."""
    for each in table:
        if isinstance(each, Leaf):
            yield f"{before}{each.name}", each
    for each in table:
        if isinstance(each, Branch):
            yield from leaves(each.below, f"{before}{each.name} ")


def make_root(callback: Callable[..., None], table: Sequence[Leaf | Branch], **options: Any) -> Group:
    """The command line with those commands; `callback` takes the options before their names."""
    return _make_group(typer.Typer(cls=_Chosen, callback=callback, no_args_is_help=True, **options, **_STYLE), table)


@cache
def make(entry: Leaf | Branch) -> Any:
    """The command or group itself."""
    if isinstance(entry, Branch):
        whole = typer.Typer(name=entry.name, cls=_Chosen, help=entry.help, callback=_nothing, no_args_is_help=True, **_STYLE)
        return _make_group(whole, entry.below)
    alone = typer.Typer(**_STYLE)
    alone.command(entry.name, cls=Command)(entry.load())
    return typer.main.get_command(alone)


def _nothing() -> None:
    """A group does nothing by itself."""


def _make_group(whole: typer.Typer, table: Sequence[Leaf | Branch]) -> Group:
    group = typer.main.get_group(whole)
    assert isinstance(group, _Chosen)
    group.table = {each.name: each for each in table}
    group.commands = cast(dict[str, Any], dict.fromkeys(group.table))  # Typer looks for similar names in it
    return group


class _Chosen(Group):
    """A group that loads the command that is chosen."""

    table: dict[str, Leaf | Branch]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        return _Later(entry) if entry.help else make(entry)


class _Later(TyperCommand):
    """Stands for a command or group in lists of them, and becomes it when it is run."""

    def __init__(self, entry: Leaf | Branch) -> None:
        super().__init__(name=entry.name, help=entry.help, rich_markup_mode="markdown")
        self._entry = entry

    def make_context(self, *args: Any, **options: Any) -> Any:
        return make(self._entry).make_context(*args, **options)
