"""Named SQL statements from `.sql` files: `-- name: claim` starts one, and the comment line after it states its purpose.

The first line may also name the parameters in order ($1, $2, ...), and a mode of execution, for statements that run through a
session (`stores/session.py`): `-- name: find_run(id) on hot`. A parameter `*rows` stands for one array for each column of the rows.

A statement may contain column lists of tasks, expanded when the file is loaded. `SET` is one of `COLUMN_SETS`:

    {SET}            id, queue_id, ...
    {t.SET}          t.id, t.queue_id, ...
    {json:t.SET}     'id', t.id, 'queue_id', t.queue_id, ...
    {text:t.SET}     t.id::text as id, t.queue_id, ...              (ids as text)
    {all:SET}        id, ..., null::bigint as seq, ...             (all columns; those outside the set have their default)
    {value:r.SET}    r.value ->> 0, r.value ->> 1, ...             (elements of a JSON array that has the columns of `given`)
    {array:SET}      $1::text::uuid[], $2::text::integer[], ...    (parameters, one array for each column)
    {scalar:SET}     $1::text::uuid, $2::integer, ...              (parameters, one for each column of a single task)
    {after:SET}      $20                                           (the parameter after these)
    {after:2.SET}    $21                                           (the second one)

Other forms:

    {sql:NAME}       the fragment of that name in `fragments.sql`
    {rank:ACTIVITY}  the rank of an activity (`model/runs.py`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import msgspec

from treadle.model.runs import RANKS, ActivityKind
from treadle.model.tasks import TASK_COLUMNS, ColumnUse, Task, TaskColumn

_NAME = re.compile(r"^-- name: (\w+)(?:\(([\w, *]*)\))?(?: (?:on|as) (\w+))?\s*$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_(\w+)\.(up|down)\.sql$")
_TEXT_ARRAY = re.compile(r"\$(\d+)::text::(\w+)\[\]")
_LIST = re.compile(r"\{(?:(json|text|all|value|array|scalar|after|sql|rank):)?(?:(\w+)\.)?(\w+)\}")


def _with(use: ColumnUse, *, without: tuple[str, ...] = ()) -> tuple[TaskColumn, ...]:
    return tuple(column for column in TASK_COLUMNS if use in column.use and column.name not in without)


_INPUTS = (
    TaskColumn("delay", "bigint", ColumnUse.NEW),
    TaskColumn("deadline_for", "bigint", ColumnUse.NEW),
    TaskColumn("root_id", "uuid", ColumnUse.NEW),
)
"""Values of a new task from which an insert computes columns."""

_LEASE = ("wake_at", "owner_id", "claim_version", "claimed_at", "heartbeat_at", "progress_at", "activity")
"""Columns that a claim sets."""

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Task)}

COLUMN_SETS: dict[str, tuple[TaskColumn, ...]] = {
    "live": _with(ColumnUse.LIVE),
    "finished": _with(ColumnUse.FINISHED),
    "new": _with(ColumnUse.NEW),
    "given": (*_with(ColumnUse.NEW), *_INPUTS),
    "carried": _with(ColumnUse.CARRIED),
    "redriven": _with(ColumnUse.REDRIVEN),
    "unclaimed": _with(ColumnUse.LIVE, without=("namespace", "blocked_by", "created_by", *_LEASE)),
    "claimed": _with(
        ColumnUse.LIVE,
        without=("namespace", "blocked_by", "owner_id", "heartbeat_at", "progress_at", "root_id", "activity", "created_by"),
    ),
}
"""Sets of task columns: an insert copies `new` from a new task, of which `given` are all values; a claim leaves `unclaimed`
unchanged, and PostgreSQL returns `claimed` from it, since the other values are known, cheaper to compute, or not needed by the
holder."""

LONG = ("policy", "payload")
"""Columns with long texts: PostgreSQL receives them as native arrays, all others as the text of an array, which is faster."""


def _expand(match: re.Match[str]) -> str:
    form, alias, name = match.groups()
    if form == "rank":
        return str(RANKS[ActivityKind(name)])
    if form == "sql":
        return _LIST.sub(_expand, _fragments()[name])
    columns = COLUMN_SETS.get(name) or tuple(column for column in COLUMN_SETS["given"] if form == "value" and column.name == name)
    if not columns:
        return match[0]
    prefix = f"{alias}." if alias else ""
    match form:
        case None:
            parts = [f"{prefix}{column.name}" for column in columns]
        case "json":
            parts = [f"'{column.name}', {prefix}{column.name}" for column in columns]
        case "text":
            parts = [
                f"{prefix}{column.name}::text as {column.name}" if column.type == "uuid" else f"{prefix}{column.name}"
                for column in columns
            ]
        case "all":
            parts = [column.name if column in columns else _default(column) for column in TASK_COLUMNS]
        case "value":
            parts = [f"{alias}.value ->> {COLUMN_SETS['given'].index(column)}" for column in columns]
        case "array":
            parts = [
                f"${number}::{column.type}[]" if column.name in LONG else f"${number}::text::{column.type}[]"
                for number, column in enumerate(columns, 1)
            ]
        case "scalar":
            parts = [
                f"${number}::text::uuid" if column.type == "uuid" else f"${number}::{column.type}"
                for number, column in enumerate(columns, 1)
            ]
        case _:
            parts = [f"${len(columns) + int(alias or 1)}"]
    return ", ".join(parts)


def _default(column: TaskColumn) -> str:
    default = _DEFAULTS[column.name]
    return f"{'null' if default is None else default}::{column.type} as {column.name}"


@cache
def _fragments() -> dict[str, str]:
    """Parts of statements that both stores use, by name, without their comments."""
    text = (_folder(__package__) / "fragments.sql").read_text("utf-8")
    return {name: body.strip().partition("\n")[2] for name, _, _, body in _split(text)}


def _split(text: str) -> Iterator[tuple[str, str | None, str | None, str]]:
    """Return name, parameters, mode and text of each statement."""
    parts = _NAME.split(text)
    return zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True)


def _folder(package: str) -> Path:
    """The folder of a package; `importlib.resources` would cost every process 10 ms."""
    return Path(import_module(package).__path__[0])


class Statement(NamedTuple):
    """A statement that a session runs."""

    text: str
    parameters: tuple[str, ...]
    """The names of $1, $2, ... (PostgreSQL), or of the columns of a row (SQLite, mode `each`)."""
    mode: str | None
    """PostgreSQL: the kind of connection; SQLite: `json` for a result that is one JSON array, `each` to run once for each row."""
    text_arrays: tuple[tuple[int, str], ...]
    """PostgreSQL: positions and types of the arrays that it receives as text (`$1::text::uuid[]`), faster than as lists."""


def load_statements(package: str, file: str) -> dict[str, str]:
    """Return all statements of the file by name, with their comments and with column lists expanded."""
    return {name: statement.text for name, statement in _load(package, file).items()}


def load_shared(package: str, *files: str) -> dict[str, Statement]:
    """Return all statements of the files by name, with their parameters; a name must not occur twice."""
    statements: dict[str, Statement] = {}
    for file in files:
        loaded = _load(package, file)
        if repeated := statements.keys() & loaded.keys():
            raise RuntimeError(f"These statements of {package} occur twice: {sorted(repeated)}")
        statements |= loaded
    return statements


@cache
def _load(package: str, file: str) -> dict[str, Statement]:
    text = (_folder(package) / file).read_text("utf-8")
    statements = {}
    for name, parameters, mode, body in _split(text):
        expanded = _LIST.sub(_expand, body.strip().rstrip(";"))
        arrays = sorted({(int(number) - 1, kind) for number, kind in _TEXT_ARRAY.findall(expanded)})
        statements[name] = Statement(expanded, tuple(parameters.split(", ")) if parameters else (), mode, tuple(arrays))
    return statements


class Migration(NamedTuple):
    """One step of the schema, up and down."""

    version: int
    name: str
    up: str
    down: str


def load_migrations(package: str) -> list[Migration]:
    """Return the migrations of a store in order; versions are 1, 2, 3, ... without gaps."""
    scripts: dict[int, dict[str, str]] = {}
    names: dict[int, str] = {}
    for entry in (_folder(package) / "migrations").iterdir():
        if match := _MIGRATION.match(entry.name):
            version = int(match[1])
            names[version] = match[2]
            scripts.setdefault(version, {})[match[3]] = entry.read_text("utf-8")
    migrations = [
        Migration(version, names[version], scripts[version]["up"], scripts[version]["down"]) for version in sorted(scripts)
    ]
    if [migration.version for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise RuntimeError(f"The migrations of {package} are not numbered 1, 2, 3, ...: {sorted(scripts)}")
    return migrations
