"""Settings that operators change: task lists, rates, limits, and handler registrations."""

from __future__ import annotations

import apsw

from treadle.stores.shared import Settings
from treadle.stores.sqlite import limits
from treadle.stores.sqlite.database import Part, uses_writer, writes
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "operators.sql")


class Operators(Part, Settings):
    """The `OperatorStore` of SQLite."""

    @writes
    def set_list(
        self,
        connection: apsw.Connection,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
    ) -> tuple[int, ...]:
        values = {
            "namespace": namespace,
            "task_list": task_list,
            "paused": paused,
            "accepting": accepting,
            "no_handler": no_handler,
        }
        connection.execute(_SQL["set_list"], values)
        lanes = {lane_id for (lane_id,) in connection.execute(_SQL["mark_lanes"], values)}
        if paused is not None:
            find = limits.recall_list if paused else limits.list_waiting_keys
            lanes |= limits.admit(connection, find(connection, namespace, task_list), self._database.now())
        return tuple(sorted(lanes))

    async def set_rate(self, lane_id: int, rate: float | None, burst: int | None) -> None:
        await self._database.execute("set_rate", lane_id=lane_id, rate=rate, burst=burst)

    @uses_writer
    def set_limit(self, connection: apsw.Connection, namespace: str, key: str, max_running: int | None) -> tuple[int, ...]:
        return tuple(sorted(limits.set_limit(connection, namespace, key, max_running, self._database.now())))

    @uses_writer
    def set_key_rate(
        self, connection: apsw.Connection, namespace: str, key: str, rate: float | None, burst: int | None
    ) -> tuple[int, ...]:
        return tuple(sorted(limits.set_key_rate(connection, namespace, key, rate, burst, self._database.now())))

    @uses_writer
    def set_handler_key(self, connection: apsw.Connection, namespace: str, name: str, key: str | None) -> tuple[int, ...]:
        return tuple(sorted(limits.set_handler_key(connection, namespace, name, key, self._database.now())))
