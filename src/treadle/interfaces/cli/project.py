"""A project: the table `[tool.treadle]` of its `pyproject.toml`, and the files that `treadle init` and `treadle skill` write."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import plain
from treadle.interfaces.cli.session import CommandSession
from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import check_name
from treadle.version import VERSION

FILE = "pyproject.toml"
_TABLE = "[tool.treadle]"
_KEYS = ("name", "handlers", "flows", "strict")


@dataclass(frozen=True, slots=True)
class Project:
    """`name` is the flow that `flows` are published as; `strict`: warnings about AFL are errors."""

    name: str
    handlers: tuple[str, ...] = ()
    flows: tuple[str, ...] = ()
    strict: bool = True


def find_project() -> Project | None:
    """Read the project of the current folder; None if there is none."""
    try:
        whole = tomllib.loads(Path(FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{FILE} cannot be read: {error}.") from None
    table = whole.get("tool", {}).get("treadle") if isinstance(whole.get("tool", {}), dict) else None
    if table is None:
        return None
    if not isinstance(table, dict) or (unknown := next((key for key in table if key not in _KEYS), None)) is not None:
        what = f"has an unknown key {unknown!r}" if isinstance(table, dict) else "is not a table"
        raise InvalidInput(f"{_TABLE} in {FILE} {what}; its keys are {', '.join(_KEYS)}.")
    strict, name = table.get("strict", True), table.get("name") or Path.cwd().name
    if not isinstance(strict, bool) or not isinstance(name, str):
        raise InvalidInput(f"In {_TABLE} of {FILE}, strict must be true or false, and name a text.")
    return Project(check_name(name, f"name in {_TABLE}"), _texts(table, "handlers"), _texts(table, "flows"), strict)


def _texts(table: dict[str, Any], key: str) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InvalidInput(f'In {_TABLE} of {FILE}, {key} must be a list of texts, such as ["{key}"].')
    return tuple(texts)


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of project: the extras of Treadle that it needs, and the command that starts its work."""

    extras: str
    start: str


TEMPLATES = {
    "function": Template("http", "treadle functions start order -p number=7 --wait"),
    "queue": Template("http", "treadle enqueue thumbnail -p name=a.png --wait"),
    "fastapi": Template("fastapi,http", "treadle functions start order -p number=7 --wait"),
    "django": Template("django,http", "treadle functions start order -p number=7 --wait"),
    "agent": Template("http", "treadle functions start agent -p question='Where is my order?' --wait"),
    "afl": Template("http", "treadle submit PROJECT --wait"),
}
"""The projects that `treadle init` writes: the files in `templates/common`, and those in the folder of that name."""
_ROOT = Path(__file__).parent / "templates"


def _texts_of(template: str, name: str) -> dict[str, str]:
    """The files of a new project by place; those of the template replace common ones."""
    texts, chosen = dict[str, str](), TEMPLATES[template]
    words = {"START": chosen.start, "EXTRAS": chosen.extras, "PROJECT": name}
    for folder in (_ROOT / "common", _ROOT / template):
        for path in sorted(folder.rglob("*.txt")):
            text = path.read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace(word, value)
            texts[path.relative_to(folder).as_posix().removesuffix(".txt")] = text
    return texts


def init(
    session: CommandSession,
    folder: Annotated[
        Path, argument(metavar="[DIR]", help="The folder of the project; it is created if it does not exist")
    ] = Path(),
    name: Annotated[
        str | None, option(metavar="NAME", help="The name of the project and of its AFL namespace; default: that of the folder")
    ] = None,
    template: Annotated[
        str, option(metavar="KIND", choices=tuple(TEMPLATES), help=f"The kind of project: {', '.join(TEMPLATES)}")
    ] = "function",
) -> None:
    """Write a small project that survives `kill -9`, with a test, a Dockerfile and a compose file. Overwrites nothing."""
    name = _checked(name) if name is not None else _named_after(folder)
    texts = _texts_of(template, name)
    existing = [place for place in texts if (folder / place).exists()]
    if existing:
        raise InvalidInput(
            f"{folder} already has {', '.join(existing)}; nothing was written. Choose another folder.", code="project_exists"
        )
    for place, text in texts.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    enter = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    start = TEMPLATES[template].start.replace("PROJECT", name)
    following = [*enter, "python -m pytest", "treadle dev", f"{start}    # in another terminal"]
    written = "\n".join(f"  {folder / place}" for place in texts)
    message = f"Wrote the project {name}:\n{written}\n\nNext:\n" + "\n".join(f"  {command}" for command in following)
    session.show({"name": name, "folder": str(folder.resolve()), "files": list(texts), "next": following}, lambda: plain(message))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise InvalidInput(
            f"The name of a project consists of letters, digits and underscores and begins with a letter, not {name!r}."
        )
    return name


def _named_after(folder: Path) -> str:
    name = re.sub(r"\W+", "_", folder.resolve().name, flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"project_{name}".rstrip("_")


_MARK = re.compile(r"^# Treadle (\S+)$", re.MULTILINE)
FOLDER = Path(".claude/skills")


def install(
    session: CommandSession,
    folder: Annotated[
        Path,
        option("--dir", metavar="DIR", help="The folder of skills, such as .agents/skills; treadle/SKILL.md is written into it"),
    ] = FOLDER,
) -> None:
    """Write SKILL.md, which teaches coding agents this version of Treadle; replaces that of another version."""
    path = folder / "treadle" / "SKILL.md"
    before = _MARK.search(path.read_text("utf-8")) if path.exists() else None
    if path.exists() and before is None:
        raise Refused(
            f"{path} exists and was not written by `treadle skill install`; remove it, or choose another --dir.",
            code="skill_exists",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(skill_text(), encoding="utf-8")
    replaced = None if before is None or before[1] == VERSION else before[1]
    message = f"Wrote {path} for Treadle {VERSION}" + (f", in place of {replaced}" if replaced else "")
    session.show({"path": str(path), "version": VERSION, "replaced": replaced}, lambda: plain(message))


def show(
    session: CommandSession,
    afl: Annotated[bool, option("--afl", help="The brief of the workflow language instead")] = False,
) -> None:
    """Print SKILL.md of this version."""
    text = files("treadle.interfaces.mcp").joinpath("brief.md").read_text("utf-8") if afl else skill_text()
    session.show({"version": VERSION, "text": text}, lambda: plain(text.rstrip()))


def skill_text() -> str:
    """The instructions, with the version that they match."""
    return files("treadle.interfaces.cli").joinpath("templates/SKILL.md.txt").read_text("utf-8").replace("VERSION", VERSION)
