"""The PostgreSQL store: many processes on many machines, leases by the database's clock."""

from __future__ import annotations

from treadle.model.errors import MissingDependency

try:
    import asyncpg as _asyncpg  # noqa: F401
except ImportError:
    raise MissingDependency("PostgreSQL needs asyncpg, which is not installed: pip install 'treadle[postgres]'") from None

from treadle.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
