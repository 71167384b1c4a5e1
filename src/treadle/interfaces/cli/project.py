"""A project: the table `[tool.treadle]` of the `pyproject.toml` in the current folder."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.model.errors import InvalidInput
from treadle.model.names import check_name

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
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise InvalidInput(f'In {_TABLE} of {FILE}, {key} must be a list of texts, such as ["{key}"].')
    return tuple(found)
