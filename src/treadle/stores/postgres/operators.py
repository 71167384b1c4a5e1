"""Settings that operators change: task lists, rates, limits, and handler registrations."""

from __future__ import annotations

import msgspec

from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.records import HandlerRegistration
from treadle.stores.postgres import limits
from treadle.stores.postgres.connection.connect import Connection, row_count
from treadle.stores.postgres.database import Part, reads, works
from treadle.stores.postgres.limits import list_rules, lock_lists
from treadle.stores.rules.encoding import registration_of
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "operators.sql")


class Operators(Part):
    """The `OperatorStore` of PostgreSQL."""

    @reads
    async def list_lists(self, connection: Connection) -> list[TaskList]:
        return [TaskList(**row) for row in await connection.fetch(_SQL["list_lists"])]

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

    @reads
    async def list_lane_rules(self, connection: Connection) -> list[LaneRule]:
        return await list_rules(connection)

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        async with self._database.working() as connection:
            await connection.execute(_SQL["set_rate"], lane_id, rate, burst)
        await self._database.list_lanes()

    @works
    async def set_backlog_limit(self, connection: Connection, lane_id: int, backlog_limit: int | None) -> None:
        await connection.execute(_SQL["set_backlog_limit"], lane_id, backlog_limit)

    @reads
    async def list_limits(self, connection: Connection, namespace: str) -> list[Limit]:
        return await limits.list_limits(connection, namespace)

    @reads
    async def list_admitted(self, connection: Connection, namespace: str, key: str, limit: int) -> list[str]:
        return await limits.list_admitted(connection, namespace, key, limit)

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

    @reads
    async def list_handler_keys(self, connection: Connection, namespace: str) -> dict[str, str]:
        return await limits.list_handler_keys(connection, namespace)

    @reads
    async def list_handlers(self, connection: Connection, namespace: str) -> list[HandlerRegistration]:
        rows = [list(row) for row in await connection.fetch(_SQL["list_handlers"], namespace)]
        return [registration_of(row) for row in rows]

    @works
    async def save_handler(self, connection: Connection, namespace: str, registration: HandlerRegistration) -> None:
        await connection.execute(
            _SQL["save_handler"],
            namespace,
            registration.facet_name,
            registration.module_uri,
            registration.entrypoint,
            registration.version,
            registration.checksum,
            registration.timeout_ms,
            msgspec.json.encode(registration.requirements).decode(),
            msgspec.json.encode(registration.metadata).decode(),
        )

    @works
    async def delete_handler(self, connection: Connection, namespace: str, facet_name: str) -> bool:
        return row_count(await connection.execute(_SQL["delete_handler"], namespace, facet_name)) > 0
