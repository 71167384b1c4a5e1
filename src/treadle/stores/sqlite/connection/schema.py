"""Read the version of the schema, and migrate to another version in one transaction."""

from __future__ import annotations

from functools import cache

import apsw

from treadle.model.errors import InvalidInput, SchemaBehind, SchemaTooNew
from treadle.stores.sqlite.connection.connect import read_value, writing
from treadle.stores.statements import load_migrations, load_statements

MIGRATIONS = load_migrations("treadle.stores.sqlite")
NEWEST = len(MIGRATIONS)
IN_MEMORY = "the database in memory"

_SQL = load_statements(__package__, "schema.sql")


def read_version(connection: apsw.Connection) -> int:
    """Return the version of the schema; 0 without a schema."""
    table = read_value(connection, _SQL["find_schema"])
    if not table:
        return 0
    version = read_value(connection, _SQL["read_version"])
    return int(version or 0)


def check_version(version: int, shown: str, *, migrate: bool) -> None:
    """Raise `SchemaTooNew`, or `SchemaBehind` unless `migrate`."""
    if version > NEWEST:
        raise SchemaTooNew(
            f"{shown} has schema {version}, and this version of Treadle knows {NEWEST} at most. Upgrade Treadle, or use another "
            "file."
        )
    if version < NEWEST and not migrate and shown == IN_MEMORY:
        raise SchemaBehind("A database in memory lives and ends with one process: there is nothing to see here. Choose a file.")
    if version < NEWEST and not migrate:
        raise SchemaBehind(
            f"{shown} has schema {version}, and this version of Treadle needs {NEWEST}. Run `treadle store migrate`."
        )


def migrate_to(connection: apsw.Connection, version: int, shown: str) -> None:
    """Bring the schema to the version, up or down, atomically; a no-op if another process already did."""
    if version > NEWEST:
        raise SchemaTooNew(f"This version of Treadle knows no schema {version}; choose 0 to {NEWEST}, or upgrade Treadle.")
    if version < 0:
        raise InvalidInput(f"There is no schema {version}; choose 0 to {NEWEST}.")
    with writing(connection):
        current = read_version(connection)
        check_version(current, shown, migrate=True)
        if current == version:
            return
        steps = [migration.up for migration in MIGRATIONS[current:version]]
        steps += [migration.down for migration in reversed(MIGRATIONS[version:current])]
        for step in steps:
            connection.execute(step).fetchall()
        connection.execute(_SQL["create_schema"])
        connection.execute(_SQL["clear_version"])
        connection.execute(_SQL["write_version"], {"version": version})


def create_in_memory(connection: apsw.Connection) -> None:
    """Create the newest schema in a new database in memory: a copy, which takes a tenth of the time of the migrations."""
    source = apsw.Connection(":memory:")
    source.deserialize("main", _migrated())
    with connection.backup("main", source, "main") as copying:
        copying.step(-1)
    source.close()


@cache
def own_names() -> frozenset[str]:
    """Return the names of all tables, views and indexes of the newest schema."""
    source = apsw.Connection(":memory:")
    source.deserialize("main", _migrated())
    names = frozenset(str(row[0]).lower() for row in source.execute(_SQL["list_names"]))
    source.close()
    return names


@cache
def _migrated() -> bytes:
    """Return a database that the migrations have created."""
    connection = apsw.Connection(":memory:")
    migrate_to(connection, NEWEST, IN_MEMORY)
    image = connection.serialize("main")
    connection.close()
    return image
