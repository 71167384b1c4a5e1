"""Named SQL statements from `.sql` files: `-- name: claim` starts one, the comment line after it says its purpose."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_(\w+)\.(up|down)\.sql$")


def load_statements(package: str, file: str) -> dict[str, str]:
    """All statements of the file, by name, comments and all."""
    parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


class Migration(NamedTuple):
    """One step of the schema, both ways."""

    version: int
    name: str
    up: str
    down: str


def load_migrations(package: str) -> list[Migration]:
    """The migrations of a store in order; versions are 1, 2, 3, ... without gaps."""
    found: dict[int, dict[str, str]] = {}
    names: dict[int, str] = {}
    for entry in files(package).joinpath("migrations").iterdir():
        if match := _MIGRATION.match(entry.name):
            version = int(match[1])
            names[version] = match[2]
            found.setdefault(version, {})[match[3]] = entry.read_text("utf-8")
    migrations = [Migration(version, names[version], found[version]["up"], found[version]["down"]) for version in sorted(found)]
    if [migration.version for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise RuntimeError(f"The migrations of {package} are not numbered 1, 2, 3, ...: {sorted(found)}")
    return migrations
