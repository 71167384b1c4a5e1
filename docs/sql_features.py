"""The features of PostgreSQL that Treadle's statements use and that compatible databases often lack, found in its `.sql` files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from treadle.stores.statements import load_migrations, load_statements

PACKAGE = "treadle.stores.postgres"
FOLDER = Path(__file__).parents[1] / "src" / "treadle" / "stores" / "postgres"
_BLOCK = re.compile(r"<!-- sql features -->\n.*?<!-- /sql features -->", re.S)
_COMMENT = re.compile(r"--[^\n]*")
_ARGUMENT = r"(?:[^(),]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"

FEATURES = {
    "advisory locks": r"\bpg_(?:try_)?advisory_|'advisory'",
    "NOTIFY (and LISTEN, by the driver)": r"\bpg_notify\(",
    "row locks with `skip locked`": r"\bskip locked\b",
    "`lock table`": r"\block table\b",
    "triggers": r"\bcreate (?:or replace )?(?:constraint )?trigger\b",
    "PL/pgSQL": r"\blanguage plpgsql\b|^\s*do \$",
    "declarative partitioning": r"\bpartition (?:by (?:range|list|hash) \(|of )|\battach partition\b|\bdetach partition\b",
    "settings (`set_config`, `current_setting`)": r"\bset_config\(|\bcurrent_setting\(|\bset local \w+",
    "`unnest` with several arrays": rf"\bunnest\s*\({_ARGUMENT},",
    "data-modifying `with`": r"\bas (?:not )?(?:materialized )?\(\s*(?:insert into|update|delete from)\b",
    "`on conflict`": r"\bon conflict\b",
    "partial indexes": r"\bcreate (?:unique )?index\b[^;]*\bwhere\b",
    "GIN indexes": r"\busing gin\b",
    "functions about replication and the write-ahead log": r"\bpg_(?:control_|walfile_|current_wal_|is_in_recovery|logical_emit_)",
}
"""Patterns of features, matched in SQL without comments."""


class Use(NamedTuple):
    """The number of named statements and of migrations that use a feature, and the first file that does."""

    statements: int
    migrations: int
    file: str


def with_sql_features(text: str) -> str:
    """Return the page with the table between `<!-- sql features -->` and `<!-- /sql features -->`."""
    return _BLOCK.sub(lambda _: f"<!-- sql features -->\n\n{table()}\n<!-- /sql features -->", text)


def table() -> str:
    """Return the features as a table, the most used first."""
    statements, migrations = list(_statements()), list(_migrations())
    found = {feature: find_use(pattern, statements, migrations) for feature, pattern in FEATURES.items()}
    ordered = sorted(((feature, use) for feature, use in found.items() if use), key=lambda each: (-each[1][0], -each[1][1]))
    lines = [f"| feature | of {len(statements)} statements | of {len(migrations)} migrations | first in |", "|---|---|---|---|"]
    lines += [f"| {feature} | {use.statements} | {use.migrations} | `{use.file}` |" for feature, use in ordered]
    return "\n".join(lines) + "\n"


def find_use(pattern: str, statements: list[tuple[str, str]], migrations: list[tuple[str, str]]) -> Use | None:
    """Return the use of a feature in (file, SQL) pairs; None if there is none."""
    wanted = re.compile(pattern, re.I | re.M)
    first, second = ([file for file, sql in given if wanted.search(_COMMENT.sub("", sql))] for given in (statements, migrations))
    return Use(len(first), len(second), (first or second)[0]) if first or second else None


def _statements() -> Iterator[tuple[str, str]]:
    """Every named statement with its file."""
    for path in sorted(FOLDER.rglob("*.sql")):
        inner = path.relative_to(FOLDER)
        if inner.parts[0] != "migrations":
            package = ".".join((PACKAGE, *inner.parts[:-1]))
            yield from ((inner.as_posix(), sql) for sql in load_statements(package, path.name).values())


def _migrations() -> Iterator[tuple[str, str]]:
    """Every migration, upwards."""
    for each in load_migrations(PACKAGE):
        yield f"migrations/{each.version:04}_{each.name}.up.sql", each.up
