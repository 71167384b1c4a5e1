"""Namespaces as a whole."""

from __future__ import annotations

from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.parts import Part, reads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")


class Namespaces(Part):
    """The `NamespaceStore` of PostgreSQL."""

    @reads
    async def list_namespaces(self, connection: Connection) -> list[str]:
        return [row[0] for row in await connection.fetch(_SQL["list_namespaces"])]
