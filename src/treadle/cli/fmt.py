"""`treadle fmt`: one layout for all AFL; comments stay, meaning too."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.cli.command import option
from treadle.cli.exits import FAILED, printable
from treadle.cli.format import plain
from treadle.cli.session import Session
from treadle.cli.sources import Files, read_sources
from treadle.model.errors import InvalidFlow, InvalidInput

if TYPE_CHECKING:
    from treadle.lang import Diagnostic


@dataclass(frozen=True)
class _Formatted:
    name: str
    before: str
    after: str

    @property
    def changed(self) -> bool:
        return self.before != self.after


def fmt(
    session: Session,
    files: Files,
    check: Annotated[bool, option("--check", help="Change nothing; exit 1 if something would change")] = False,
    diff: Annotated[bool, option("--diff", help="Change nothing; show what would change")] = False,
) -> None:
    """Format AFL files in place; `-` formats stdin to stdout. If one cannot be parsed, none is changed."""
    if "-" in files and len(files) > 1:
        raise InvalidInput("- (stdin) stands alone.")
    done = _format(read_sources(files))
    changed = [each for each in done if each.changed]
    if files == ["-"] and not (check or diff):
        sys.stdout.write(done[0].after)
        return
    if not (check or diff):
        for each in changed:
            _write(each)
    value = {"files": [{"file": each.name, "changed": each.changed} for each in done], "written": not (check or diff)}
    session.show(value, lambda: plain(_told(done, changed, check=check, diff=diff)))
    if check and changed:
        raise Exit(FAILED)


def _format(sources: list[tuple[str, str]]) -> list[_Formatted]:
    from treadle.lang import CannotFormat, format_source  # the parser is loaded by those who need it

    done: list[_Formatted] = []
    problems: list[Diagnostic] = []
    for name, text in sources:
        try:
            done.append(_Formatted(name, text, format_source(text, name)))
        except CannotFormat as error:
            problems += error.diagnostics
    if problems:
        raise InvalidFlow("There are syntax errors; nothing was changed.", tuple(problems))
    return done


def _write(each: _Formatted) -> None:
    try:
        Path(each.name).write_text(each.after, "utf-8")
    except OSError as error:
        raise InvalidInput(f"{each.name} cannot be written: {error.strerror}.") from None


def _told(done: list[_Formatted], changed: list[_Formatted], *, check: bool, diff: bool) -> str:
    if diff:
        return "\n".join(_diff(each) for each in changed) or f"{len(done)} already formatted"
    verb = "would be formatted" if check else "formatted"
    lines = [f"{each.name}: {verb}" for each in changed]
    unchanged = len(done) - len(changed)
    return "\n".join([*lines, f"{len(changed)} {verb}, {unchanged} unchanged"])


def _diff(each: _Formatted) -> str:
    lines = difflib.unified_diff(
        each.before.splitlines(), each.after.splitlines(), each.name, f"{each.name} (formatted)", lineterm=""
    )
    return printable("\n".join(lines))
