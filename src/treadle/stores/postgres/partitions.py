"""Retention, and partitions of finished tasks and of the log by the time in the ids: prepared for new work, dropped with old tasks.

Both tables have partitions with the same bounds. The first one, `rest`, is what existed before, and takes over the ids of
partitions that were dropped; `default` has whatever has no partition of its own. Changing partitions takes the role that owns
the schema. With another role, rows are removed one by one. A crash during the first split leaves a constraint on new ids; any role
removes it when an id does not fit (`treadle_open_rest`), and the next pass of the owner begins the split again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import Pruned, Rules
from treadle.model.errors import Unsupported
from treadle.model.ids import id_time
from treadle.stores.postgres.connection.connect import READS, PostgresConnection, close_connection
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.postgres.database import PostgresDatabase, PostgresSession
from treadle.stores.retention import RetentionPort
from treadle.stores.rules.encoding import first_id
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "partitions.sql")

HOUR_FOR = 3_600_000
WEEK_FOR = 7 * 24 * HOUR_FOR

_TIMEOUT = 3600.0
_SETTINGS = READS | {"statement_timeout": "0", "lock_timeout": "500ms", "max_parallel_workers_per_gather": "2"}
"""For changes of partitions: a lock that others would wait for is given up soon, and tried again in the next pass."""

_PAGE, _GROUP, _TRANSACTIONS = 5_000, 100, 20
"""Roots that are read together, trees that are removed together, and transactions after which a call returns."""

_NOT_NOW = (
    asyncpg.InsufficientPrivilegeError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.CheckViolationError,  # an id in the future
)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of both tables, by the end of its name; `now` is the clock at which it was read."""

    part: str
    lower_id: str | None
    upper_id: str | None
    is_default: bool
    is_valid: bool
    now: int

    @property
    def ends_at(self) -> int:
        return id_time(self.upper_id) if self.upper_id else 2**62


def length_for(rules: Rules) -> int:
    """Return the time of one partition: a quarter of the retention, but so that at most 24 have failed tasks; at most a week."""
    wanted = max(rules.keep_completed_for // 4, rules.keep_failed_for // 24)
    return min(max(wanted // HOUR_FOR, 1) * HOUR_FOR, WEEK_FOR)


class PostgresRetention(RetentionPort):
    """The `RetentionStore` of PostgreSQL."""

    _database: PostgresDatabase

    async def prepare(self, rules: Rules) -> None:
        with translated(self._database.url):
            async with self._maintaining() as connection:
                try:
                    await self._bound_rest(connection, length_for(rules))
                    while await self._add_next(connection, length_for(rules)):
                        pass
                    for partition in await self._list(connection):
                        if partition.upper_id is not None and not partition.is_valid:
                            await self._do(connection, "validate", partition.part)
                except _NOT_NOW:
                    return

    async def drop_expired(self, rules: Rules, limit: int) -> Pruned:
        with translated(self._database.url):
            async with self._maintaining() as connection:
                for partition in await self._list(connection) if await self._may_change(connection) else ():
                    if partition.lower_id is None or partition.ends_at + rules.keep_completed_for > partition.now:
                        continue
                    pruned = await self._prune_mixed(connection, rules, partition, limit)
                    if pruned.more:
                        return pruned
                    dropped = await self._drop(connection, rules, partition)
                    if pruned.trees or dropped.trees:
                        return add(add(pruned, dropped), Pruned(more=True))
        return Pruned()

    async def _waiting(self, session: PostgresSession, rules: Rules) -> tuple[str, str]:
        row = await session.connection.fetchrow(_SQL["find_waiting"], rules.keep_completed_for, first_id(0))
        assert row is not None
        return row[0], row[1]

    async def compact(self, *, whole: bool = False, tight: bool = False) -> int:
        """Do nothing: autovacuum does it."""
        if whole:
            raise Unsupported(
                f"{self._database.url} returns space by itself (autovacuum). To rewrite a table, run `vacuum full finished`."
            )
        return 0

    async def split(self, first_at: int, until_at: int, length: int) -> None:
        """Bound the first partition at an instant, and add partitions of that length; for stores without ids after it."""
        async with self._maintaining() as connection:
            await self._bound(connection, first_id(first_at))
            for at in range(first_at, until_at, length):
                await self._do(connection, "add_part", first_id(at), first_id(at + length))

    @asynccontextmanager
    async def _maintaining(self) -> AsyncIterator[PostgresConnection]:
        connection = await self._database.connector.connect(_SETTINGS, direct=True, timeout=_TIMEOUT)
        try:
            yield connection
        finally:
            await close_connection(connection)

    async def _may_change(self, connection: PostgresConnection) -> bool:
        async with self._database.connector.session(connection, _SETTINGS):
            return bool(await connection.fetchval(_SQL["may_change"]))

    async def _list(self, connection: PostgresConnection) -> list[Partition]:
        async with self._database.connector.session(connection, _SETTINGS):
            return [Partition(*row) for row in await connection.fetch(_SQL["list_partitions"])]

    async def _do(self, connection: PostgresConnection, name: str, *values: object) -> asyncpg.Record | None:
        """Run a change in its own transaction; None if another process is changing partitions."""
        async with self._database.connector.session(connection, _SETTINGS), connection.transaction():
            if not await connection.fetchval(_SQL["lock_partitions"]):
                return None
            return await connection.fetchrow(_SQL[name], *values)

    async def _bound_rest(self, connection: PostgresConnection, length: int) -> None:
        """Bound the first partition in the near future, unless it is bounded; leave it if an id is after that."""
        (rest, *_) = await self._list(connection)
        if rest.upper_id is None:
            await self._bound(connection, first_id(_whole_hour(rest.now + max(length // 4, HOUR_FOR))))

    async def _bound(self, connection: PostgresConnection, upper_id: str) -> None:
        async with self._database.connector.session(connection, _SETTINGS):
            if await connection.fetchval(_SQL["has_later_ids"], upper_id):
                return
        await self._do(connection, "bound_rest", upper_id)
        failpoint("partitions.bounded")
        try:
            await self._do(connection, "validate", "rest")
            failpoint("partitions.validated")
            await self._do(connection, "open_parts", upper_id)
        except asyncpg.PostgresError:
            async with self._database.connector.session(connection, _SETTINGS):
                await PostgresSession(connection).execute("open_rest")
            raise

    async def _add_next(self, connection: PostgresConnection, length: int) -> bool:
        """Add the next partition, if there are fewer than two for the future; return whether it was added."""
        async with self._database.connector.session(connection, _SETTINGS), connection.transaction():
            if not await connection.fetchval(_SQL["lock_partitions"]):
                return False
            parts = [Partition(*row) for row in await connection.fetch(_SQL["list_partitions"])]
            if parts[0].upper_id is None:
                return False
            now, last_at = parts[-1].now, max(part.ends_at for part in parts if not part.is_default)
            if last_at >= now + 2 * length:
                return False
            start = last_at if last_at > now else _whole_hour(now + HOUR_FOR)
            await connection.fetchrow(_SQL["add_part"], first_id(start), first_id(start + length))
            return True

    async def _prune_mixed(self, connection: PostgresConnection, rules: Rules, partition: Partition, limit: int) -> Pruned:
        """Remove the expired trees of a partition that have more than one task and its transitions; they have rows elsewhere."""
        total, used, after = Pruned(), 0, partition.lower_id
        while True:
            async with self._database.connector.session(connection, _SETTINGS):
                rows = await connection.fetch(_SQL["list_mixed"], partition.lower_id, partition.upper_id, after, _PAGE)
            roots = [row[0] for row in rows]
            for at in range(0, len(roots), _GROUP):
                more = True
                while more:
                    pruned = await self.prune_trees(rules, roots[at : at + _GROUP], limit)
                    more = pruned.more and pruned != Pruned(more=True)
                    total, used = add(total, pruned), used + 1
                if used >= _TRANSACTIONS and total.trees:
                    return add(total, Pruned(more=True))
            if len(roots) < _PAGE:
                return add(total, Pruned())
            after = roots[-1]

    async def _drop(self, connection: PostgresConnection, rules: Rules, partition: Partition) -> Pruned:
        values = partition.part, rules.namespace, rules.keep_completed_for, rules.keep_failed_for
        try:
            row = await self._do(connection, "drop_part", *values)
        except _NOT_NOW:
            return Pruned()
        tasks, transitions = (row[0] or 0, row[1] or 0) if row is not None else (0, 0)
        return Pruned(trees=tasks, tasks=tasks, transitions=transitions)


def add(first: Pruned, second: Pruned) -> Pruned:
    """Return the sums; there is more if the second has more."""
    counts = {name: getattr(first, name) + getattr(second, name) for name in Pruned.__struct_fields__ if name != "more"}
    return Pruned(**counts, more=second.more)


def _whole_hour(at: int) -> int:
    return -(-at // HOUR_FOR) * HOUR_FOR
