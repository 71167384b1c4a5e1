"""Migrations: bring the schema to a version, each migration in its own transaction, one process at a time."""

from __future__ import annotations

import asyncpg

from treadle.model.errors import SchemaBehind, SchemaTooNew
from treadle.stores.postgres.connection.connect import Connector, PostgresConnection, close_connection
from treadle.stores.statements import load_migrations, load_statements

_SQL = load_statements(__package__, "schema.sql")
_MIGRATIONS = load_migrations("treadle.stores.postgres")

_STATEMENT_TIMEOUT = 86_400.0
"""Timeout in seconds for each statement of a migration."""

LATEST = len(_MIGRATIONS)
"""The version of the schema that this code needs."""


async def read_version(connection: PostgresConnection) -> int:
    """Return the version of the database's schema; 0 without Treadle's tables."""
    try:
        version = await connection.fetchval(_SQL["read_version"])
    except asyncpg.UndefinedTableError:
        return 0
    return int(version or 0)


async def check_schema(connector: Connector, settings: dict[str, str], version: int, *, migrate: bool) -> None:
    """Migrate a schema of an older version if `migrate`, else raise `SchemaBehind`; raise `SchemaTooNew` for a newer one."""
    _refuse_newer(version)
    if version == LATEST:
        return
    behind = (
        f"The schema {connector.address.schema} of {connector.address.shown} is at version {version}, this Treadle needs {LATEST}"
    )
    if not migrate:
        raise SchemaBehind(f"{behind}: run `treadle store migrate`.")
    try:
        await _migrate(connector, settings, LATEST, only_up=True)
    except asyncpg.InsufficientPrivilegeError:
        raise SchemaBehind(
            f"{behind}, and this user may not migrate it: run `treadle store migrate` as the owner of the schema."
        ) from None


async def migrate_to(connector: Connector, settings: dict[str, str], target: int) -> None:
    """Bring the schema to exactly that version, up or down; down drops the objects of later versions."""
    if not 0 <= target <= LATEST:
        raise SchemaTooNew(f"This Treadle knows the schema versions 0 to {LATEST}, not {target}.")
    await _migrate(connector, settings, target, only_up=False)


async def _migrate(connector: Connector, settings: dict[str, str], target: int, *, only_up: bool) -> None:
    """Migrate on a separate connection, with a timeout that suffices for large tables and other processes.

    One transaction per migration, so that the locks of one are not held while the next builds an index.
    """
    connection = await connector.connect(settings, timeout=_STATEMENT_TIMEOUT)
    try:
        for _ in range(LATEST + 1):  # a bound, because another process may migrate in the other direction
            async with connector.session(connection, settings), connection.transaction():
                if not await _apply_next(connection, connector.address.schema, target, only_up=only_up):
                    return
    finally:
        await close_connection(connection)


async def _apply_next(connection: PostgresConnection, schema: str, target: int, *, only_up: bool) -> bool:
    """Apply the next migration towards the target; False if there is none."""
    await connection.execute(_SQL["lock_schema"], schema)
    await connection.execute(_SQL["create_schema"])
    version = await read_version(connection)
    _refuse_newer(version)
    if target == version or (only_up and target < version):
        return False
    if version < target:
        await connection.execute(_MIGRATIONS[version].up)
        await connection.execute(_SQL["write_version"], version + 1)
    else:
        await connection.execute(_MIGRATIONS[version - 1].down)
        await connection.execute(_SQL["write_version"], version - 1)
    return True


def _refuse_newer(version: int) -> None:
    if version > LATEST:
        raise SchemaTooNew(
            f"The database has schema version {version}, this Treadle knows {LATEST} only: upgrade Treadle. Nothing was changed."
        )
