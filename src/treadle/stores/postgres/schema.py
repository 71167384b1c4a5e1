"""Migrations: the schema is brought to a version in one transaction, by one process at a time."""

from __future__ import annotations

import asyncpg

from treadle.model.errors import SchemaBehind, SchemaTooNew
from treadle.stores.postgres.connect import PACKAGE, Connection, Connector, close_connection
from treadle.stores.statements import load_migrations, load_statements

_SQL = load_statements(PACKAGE, "schema.sql")
_MIGRATIONS = load_migrations(PACKAGE)

_PATIENCE = 86_400.0
"""Seconds for each statement of a migration."""

LATEST = len(_MIGRATIONS)
"""The version of the schema that this code works with."""


async def read_version(connection: Connection) -> int:
    """The version that the database has; 0 if it has none of our tables."""
    try:
        version = await connection.fetchval(_SQL["read_version"])
    except asyncpg.UndefinedTableError:
        return 0
    return int(version or 0)


async def check_schema(connector: Connector, settings: dict[str, str], *, migrate: bool) -> None:
    """Return if the schema is just right, or was made so; else `SchemaBehind` or `SchemaTooNew`. Writes only if behind."""
    connection = await connector.connect(settings)
    try:
        async with connector.session(connection, settings):
            version = await read_version(connection)
        _refuse_newer(version)
        if version < LATEST and not migrate:
            raise SchemaBehind(
                f"The schema {connector.address.schema} of {connector.address.shown} is at version {version}, this Treadle "
                f"needs {LATEST}: run `treadle store migrate`."
            )
    finally:
        await close_connection(connection)
    if version < LATEST:
        await _migrate(connector, settings, LATEST, only_up=True)


async def migrate_to(connector: Connector, settings: dict[str, str], target: int) -> None:
    """Bring the schema to exactly that version, up or down; down drops what the later versions made."""
    if not 0 <= target <= LATEST:
        raise SchemaTooNew(f"This Treadle knows the schema versions 0 to {LATEST}, not {target}.")
    await _migrate(connector, settings, target, only_up=False)


async def _migrate(connector: Connector, settings: dict[str, str], target: int, *, only_up: bool) -> None:
    """On a connection of its own, which waits for an answer as long as big tables and other processes take."""
    connection = await connector.connect(settings, timeout=_PATIENCE)
    try:
        async with connector.session(connection, settings), connection.transaction():
            await _apply(connection, connector.address.schema, target, only_up=only_up)
    finally:
        await close_connection(connection)


async def _apply(connection: Connection, schema: str, target: int, *, only_up: bool) -> None:
    await connection.execute(_SQL["lock_schema"], schema)
    await connection.execute(_SQL["create_schema"])
    version = await read_version(connection)
    _refuse_newer(version)
    if target == version or (only_up and target < version):
        return
    for migration in _MIGRATIONS[version:target]:
        await connection.execute(migration.up)
    for migration in reversed(_MIGRATIONS[target:version]):
        await connection.execute(migration.down)
    await connection.execute(_SQL["write_version"], target)


def _refuse_newer(version: int) -> None:
    if version > LATEST:
        raise SchemaTooNew(
            f"The database has schema version {version}, this Treadle knows {LATEST} only: upgrade Treadle. Nothing was changed."
        )
