"""Servers, and the lease connection through which they renew leases from a thread of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw
import msgspec

from treadle.kernel.store.operator_ports import LeaseConnection
from treadle.kernel.store.queries import Renewal, Roll, Sighting, Touch
from treadle.model.clock import Clock
from treadle.model.tasks import LOST_AFTER, Claim, Server
from treadle.stores.rules.encoding import SERVER_JSON, server_of
from treadle.stores.sqlite.connection.clocks import ClockWatch
from treadle.stores.sqlite.connection.connect import read_value, to_json, writing
from treadle.stores.sqlite.database import Channel, Part, reads, uses_writer, writes
from treadle.stores.sqlite.tasks import held, renew
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "servers.sql")
_decode = msgspec.json.Decoder().decode


class Servers(Part):
    """The `ServerStore` of SQLite."""

    def lease_connection(self) -> LeaseConnection:
        database = self._database
        watch = None if database.shared is None else ClockWatch(database.clock, database.shared)
        return SqliteLeaseConnection(database.writer, database.clock, watch)

    @reads
    def list_all(self, connection: apsw.Connection, namespace: str | None = None) -> list[Server]:
        return _list(connection, namespace)

    @uses_writer
    def save(self, connection: apsw.Connection, server: Server) -> None:
        _save(connection, server, self._database.now())

    async def touch(self, touches: Sequence[Touch]) -> list[Server]:
        return await self._touch_servers(touches) if touches else []

    @writes
    def _touch_servers(self, connection: apsw.Connection, touches: Sequence[Touch]) -> list[Server]:
        rows = [(touch.server_id, touch.state, touch.handled, touch.failed, touch.running) for touch in touches]
        found = connection.execute(_SQL["touch_servers"], {"rows": to_json(rows), "now": self._database.now()}).fetchall()
        return [server_of(_decode(str(row[0]))) for row in found]

    async def attend(self, server_id: str) -> None:
        """Do nothing: a file has no sessions."""

    async def leave(self, server_id: str) -> None:
        """Do nothing."""

    @reads
    def list_sightings(self, connection: apsw.Connection) -> list[Sighting]:
        return [Sighting(*row) for row in connection.execute(_SQL["list_sightings"], {"now": self._database.now()})]

    async def end(self, evidence: Mapping[str, str | None]) -> list[str]:
        return await self._end_servers(evidence) if evidence else []

    @writes
    def _end_servers(self, connection: apsw.Connection, evidence: Mapping[str, str | None]) -> list[str]:
        found = connection.execute(_SQL["end_servers"], {"rows": to_json(list(evidence.items()))}).fetchall()
        return [str(row[0]) for row in found]


def _list(connection: apsw.Connection, namespace: str | None = None) -> list[Server]:
    return [server_of(row) for row in _decode(read_value(connection, _SQL["list_servers"], {"namespace": namespace}))]


def _save(connection: apsw.Connection, server: Server, now: int) -> Roll:
    values = msgspec.structs.asdict(server) | {"now": now}
    for name in SERVER_JSON:
        values[name] = to_json(values[name])
    with writing(connection):
        ((lost_by, others),) = connection.execute(_SQL["read_roll"], {"id": server.id, "now": now, "lost_after": LOST_AFTER})
        connection.execute(_SQL["save_server"], values)
    return Roll(int(others), lost_by)


class SqliteLeaseConnection:
    """A `LeaseConnection`: the writing thread runs its blocking calls in turn, so no event loop can delay them."""

    def __init__(self, writer: Channel, clock: Clock, watch: ClockWatch | None = None) -> None:
        """`watch` compares the clocks of the processes that share a file."""
        self._writer = writer
        self._clock = clock
        self._watch = watch

    def renew(self, renewals: Sequence[Renewal], lease_for: int) -> set[str]:
        if not renewals:
            return set()
        return self._writer.call_blocking(lambda connection: renew(connection, self._clock, renewals, lease_for))

    def held(self, claims: Sequence[Claim]) -> set[str]:
        return self._writer.call_blocking(lambda connection: held(connection, claims))

    def beat(self, server: Server) -> Roll:
        return self._writer.call_blocking(lambda connection: self._beat(connection, server))

    def _beat(self, connection: apsw.Connection, server: Server) -> Roll:
        roll = _save(connection, server, self._clock.now())
        if self._watch is not None and (found := self._watch.look(server.id, _list(connection))) is not None:
            other_id, error = found
            order = [str(row[0]) for row in connection.execute(_SQL["list_by_arrival"])]
            if order.index(other_id) < order.index(server.id):  # the process that came later may not write any more
                self._writer.fuse.refuse(error)
            raise error
        return roll

    def now(self) -> int:
        return self._clock.now()

    def close(self) -> None:
        """Do nothing: the connection belongs to the store."""
