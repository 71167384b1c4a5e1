"""Namespaces as a whole."""

from __future__ import annotations

import apsw

from treadle.stores.sqlite.parts import Part, reads
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "namespaces.sql")


class Namespaces(Part):
    """The `NamespaceStore` of SQLite."""

    @reads
    def list_namespaces(self, connection: apsw.Connection) -> list[str]:
        return [str(row[0]) for row in connection.execute(_SQL["list_namespaces"])]
