"""`treadle init`: a small project that runs."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.session import Session
from treadle.model.errors import InvalidInput

_PLACES = {
    "pyproject.toml": "pyproject.toml.txt",
    "handlers.py": "handlers.py.txt",
    "flows/hello.afl": "flows/hello.afl.txt",
    "tests/test_hello.py": "tests/test_hello.py.txt",
    "AGENTS.md": "AGENTS.md.txt",
    ".gitignore": "gitignore.txt",
}
_NEXT = (
    "treadle compile flows",
    "treadle run flows --handlers handlers.py",
    "python -m pytest",
    "treadle dev",
)


class ProjectExists(InvalidInput):
    """A file that `treadle init` would write is already there."""

    code = "project_exists"


def init(
    session: Session,
    folder: Annotated[
        Path, argument(metavar="[DIR]", help="The folder of the project; it is created if it does not exist")
    ] = Path(),
    name: Annotated[
        str | None, option(metavar="NAME", help="The name of the project and of its AFL namespace; default: that of the folder")
    ] = None,
) -> None:
    """Write a small project: handlers, a flow, a test, an AGENTS.md. Overwrites nothing."""
    name = _checked(name) if name is not None else _named_after(folder)
    taken = [place for place in _PLACES if (folder / place).exists()]
    if taken:
        raise ProjectExists(f"{folder} already has {', '.join(taken)}; nothing was written. Choose another folder.")
    template = files("treadle.interfaces.cli") / "template"
    for place, source in _PLACES.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.joinpath(source).read_text(encoding="utf-8").replace("NAME", name), encoding="utf-8")
    enter = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    following = [*enter, *_NEXT]
    written = "\n".join(f"  {folder / place}" for place in _PLACES)
    shown = f"Wrote the project {name}:\n{written}\n\nNext:\n" + "\n".join(f"  {each}" for each in following)
    session.show({"name": name, "folder": str(folder.resolve()), "files": list(_PLACES), "next": following}, lambda: plain(shown))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise InvalidInput(
            f"The name of a project consists of letters, digits and underscores and begins with a letter, not {name!r}."
        )
    return name


def _named_after(folder: Path) -> str:
    name = re.sub(r"\W+", "_", folder.resolve().name, flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"project_{name}".rstrip("_")
