"""Settings that operators change: task lists, rates, limits, and handler registrations."""

from __future__ import annotations

from treadle.stores.postgres import limits
from treadle.stores.postgres.connection.connect import Connection
from treadle.stores.postgres.database import Part, reads
from treadle.stores.postgres.limits import lock_lists
from treadle.stores.shared import Settings
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "operators.sql")


class Operators(Part, Settings):
    """The `OperatorStore` of PostgreSQL."""

    @reads
    async def set_list(
        self,
        connection: Connection,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        async with connection.transaction():
            await lock_lists(connection)
            await connection.execute(_SQL["set_list"], namespace, task_list, paused, accepting, no_handler)
            lanes = {row[0] for row in await connection.fetch(_SQL["mark_lanes"], namespace, task_list)}
            if paused is not None:
                find = limits.recall_list if paused else limits.list_waiting_keys
                if keys := await find(connection, namespace, task_list):
                    lanes |= await limits.admit(connection, keys)
        return tuple(sorted(lanes))

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        async with self._database.working() as connection:
            await connection.execute(_SQL["set_rate"], lane_id, rate, burst)
        await self._database.list_lanes()

    @reads
    async def set_limit(self, connection: Connection, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        return tuple(sorted(await limits.set_limit(connection, namespace, key, max_running)))

    @reads
    async def set_key_rate(
        self, connection: Connection, namespace: str, key: str, rate: float | None, burst: int | None
    ) -> tuple[int, ...]:
        return tuple(sorted(await limits.set_key_rate(connection, namespace, key, rate, burst)))

    @reads
    async def set_handler_key(self, connection: Connection, namespace: str, name: str, key: str | None) -> tuple[int, ...]:
        return tuple(sorted(await limits.set_handler_key(connection, namespace, name, key)))
