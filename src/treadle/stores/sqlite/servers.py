"""Servers and handlers' lines: rows beside the queue that nothing depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from treadle.kernel.store.queries import Touch
from treadle.model.tasks import LogLine, Server
from treadle.stores.sqlite.connection import read_value, writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "servers.sql")
_encode = msgspec.json.Encoder().encode
_decode_servers = msgspec.json.Decoder(list[Server]).decode
_decode_server = msgspec.json.Decoder(Server).decode
_decode_lines = msgspec.json.Decoder(list[LogLine]).decode


def save_server(connection: apsw.Connection, server: Server, now: int) -> None:
    """Insert or update the server's row."""
    values = msgspec.structs.asdict(server)
    values["handlers"] = _encode(server.handlers).decode()
    values["task_lists"] = _encode(server.task_lists).decode()
    values["topics"] = _encode(server.topics).decode()
    values["counts"] = _encode(server.counts).decode()
    values["now"] = now
    with writing(connection):
        connection.execute(_SQL["save_server"], values)


def touch_servers(connection: apsw.Connection, touches: Sequence[Touch], now: int) -> list[Server]:
    """Note that servers are alive; the rows of those that have not stopped."""
    rows = [(touch.server_id, touch.state, touch.handled, touch.failed, touch.running) for touch in touches]
    with writing(connection):
        found = connection.execute(_SQL["touch_servers"], {"rows": _encode(rows).decode(), "now": now}).fetchall()
    return [_decode_server(str(row[0])) for row in found]


def list_servers(connection: apsw.Connection) -> list[Server]:
    """All servers, newest first."""
    found = read_value(connection, _SQL["list_servers"])
    return _decode_servers(found)


def append_lines(connection: apsw.Connection, lines: Sequence[LogLine]) -> None:
    """Store what handlers wrote."""
    rows = [(line.task_id, line.at, line.level, line.message, line.details, line.run_id, line.step_id) for line in lines]
    with writing(connection):
        connection.execute(_SQL["append_lines"], {"rows": _encode(rows).decode()})


def list_lines(connection: apsw.Connection, task_id: str, limit: int) -> list[LogLine]:
    """The task's last lines, oldest first."""
    found = read_value(connection, _SQL["list_lines"], {"task_id": task_id, "limit": max(limit, 0)})
    return _decode_lines(found)


def list_run_lines(connection: apsw.Connection, run_id: str, limit: int) -> list[LogLine]:
    """The run's last lines, oldest first."""
    found = read_value(connection, _SQL["list_run_lines"], {"run_id": run_id, "limit": max(limit, 0)})
    return _decode_lines(found)


def page_run_lines(
    connection: apsw.Connection, run_id: str, limit: int, before: int | None, after: int | None
) -> list[tuple[int, LogLine]]:
    """Lines about the run with their numbers, oldest first."""
    name = "list_run_lines_before" if after is None else "list_run_lines_after"
    number = {"before": before} if after is None else {"after": after}
    rows: list[Any] = connection.execute(_SQL[name], {"run_id": run_id, "limit": max(limit, 0)} | number).fetchall()
    found = [
        (
            int(row[0]),
            LogLine(task_id=row[1], at=row[2], level=row[3], message=row[4], details=row[5], run_id=row[6], step_id=row[7]),
        )
        for row in rows
    ]
    return found[::-1] if after is None else found
