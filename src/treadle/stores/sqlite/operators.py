"""Settings that operators change: task lists, rates, limits, and handler registrations."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from treadle.model.lists import LaneRule, Limit, TaskList
from treadle.model.records import HandlerRegistration
from treadle.stores.rules.encoding import registration_of
from treadle.stores.sqlite import limits
from treadle.stores.sqlite.connection.connect import fetch_as, to_json
from treadle.stores.sqlite.database import Part, reads, uses_writer, writes
from treadle.stores.sqlite.limits import list_rules
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "operators.sql")


class Operators(Part):
    """The `OperatorStore` of SQLite."""

    @reads
    def list_lists(self, connection: apsw.Connection) -> list[TaskList]:
        return [
            msgspec.structs.replace(found, paused=bool(found.paused), accepting=bool(found.accepting))
            for found in fetch_as(connection, TaskList, _SQL["list_lists"], {})
        ]

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

    @reads
    def list_lane_rules(self, connection: apsw.Connection) -> list[LaneRule]:
        return list_rules(connection)

    @writes
    def set_rate(self, connection: apsw.Connection, lane_id: int, rate: float | None, burst: int | None) -> None:
        connection.execute(_SQL["set_rate"], {"lane_id": lane_id, "rate": rate, "burst": burst, "now": self._database.now()})

    @writes
    def set_backlog_limit(self, connection: apsw.Connection, lane_id: int, backlog_limit: int | None) -> None:
        connection.execute(_SQL["set_backlog_limit"], {"lane_id": lane_id, "backlog_limit": backlog_limit})

    @reads
    def list_limits(self, connection: apsw.Connection, namespace: str) -> list[Limit]:
        return limits.list_limits(connection, namespace)

    @reads
    def list_admitted(self, connection: apsw.Connection, namespace: str, key: str, limit: int) -> list[str]:
        return limits.list_admitted(connection, namespace, key, limit)

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

    @reads
    def list_handler_keys(self, connection: apsw.Connection, namespace: str) -> dict[str, str]:
        return limits.list_handler_keys(connection, namespace)

    @reads
    def list_handlers(self, connection: apsw.Connection, namespace: str) -> list[HandlerRegistration]:
        rows: list[list[Any]] = [list(row) for row in connection.execute(_SQL["list_handlers"], {"namespace": namespace})]
        return [registration_of(row) for row in rows]

    @writes
    def save_handler(self, connection: apsw.Connection, namespace: str, registration: HandlerRegistration) -> None:
        values = {
            "namespace": namespace,
            "facet_name": registration.facet_name,
            "module_uri": registration.module_uri,
            "entrypoint": registration.entrypoint,
            "version": registration.version,
            "checksum": registration.checksum,
            "timeout_for": registration.timeout_ms,
            "requirements": to_json(registration.requirements),
            "metadata": to_json(registration.metadata),
            "now": self._database.now(),
        }
        connection.execute(_SQL["save_handler"], values)

    @writes
    def delete_handler(self, connection: apsw.Connection, namespace: str, facet_name: str) -> bool:
        connection.execute(_SQL["delete_handler"], {"namespace": namespace, "facet_name": facet_name})
        return connection.changes() > 0
