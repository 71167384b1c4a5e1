"""`treadle skill ...`: instructions for coding agents that match the installed version."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.session import Session
from treadle.model.errors import Refused
from treadle.version import VERSION

_MARK = re.compile(r"^# Treadle (\S+)$", re.MULTILINE)
FOLDER = Path(".claude/skills")


class SkillExists(Refused):
    """A file that `treadle skill install` did not write is already there."""

    code = "skill_exists"


def install(
    session: Session,
    folder: Annotated[
        Path,
        option("--dir", metavar="DIR", help="The folder of skills, such as .agents/skills; treadle/SKILL.md is written into it"),
    ] = FOLDER,
) -> None:
    """Write SKILL.md, which teaches coding agents this version of Treadle; replaces that of another version."""
    path = folder / "treadle" / "SKILL.md"
    before = _MARK.search(path.read_text("utf-8")) if path.exists() else None
    if path.exists() and before is None:
        raise SkillExists(f"{path} exists and was not written by `treadle skill install`; remove it, or choose another --dir.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(skill_text(), encoding="utf-8")
    replaced = None if before is None or before[1] == VERSION else before[1]
    shown = f"Wrote {path} for Treadle {VERSION}" + (f", in place of {replaced}" if replaced else "")
    session.show({"path": str(path), "version": VERSION, "replaced": replaced}, lambda: plain(shown))


def show(
    session: Session,
    afl: Annotated[bool, option("--afl", help="The brief of the workflow language instead")] = False,
) -> None:
    """Print SKILL.md of this version."""
    text = files("treadle.interfaces.mcp").joinpath("brief.md").read_text("utf-8") if afl else skill_text()
    session.show({"version": VERSION, "text": text}, lambda: plain(text.rstrip()))


def skill_text() -> str:
    """The instructions, with the version that they match."""
    return files("treadle.interfaces.cli").joinpath("template/SKILL.md.txt").read_text("utf-8").replace("VERSION", VERSION)
