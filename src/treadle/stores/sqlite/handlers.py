"""Handler registrations, and steps found by nothing but their id: what agents need of the store."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from treadle.model.handlers import HandlerRegistration
from treadle.model.runs import Step
from treadle.stores.sqlite.connection import writing
from treadle.stores.statements import load_statements

_SQL = load_statements(__package__, "handlers.sql")
_decode = msgspec.json.decode


def _registration(*row: Any) -> HandlerRegistration:
    facet_name, module_uri, entrypoint, version, checksum, timeout_ms, requirements, metadata, created, updated = row
    return HandlerRegistration(
        facet_name,
        module_uri,
        entrypoint,
        version,
        checksum,
        timeout_ms,
        _decode(requirements),
        _decode(metadata),
        created,
        updated,
    )


def save_handler(connection: apsw.Connection, namespace: str, registration: HandlerRegistration, now: int) -> None:
    """Insert the registration, or replace it."""
    values = {
        "namespace": namespace,
        "facet_name": registration.facet_name,
        "module_uri": registration.module_uri,
        "entrypoint": registration.entrypoint,
        "version": registration.version,
        "checksum": registration.checksum,
        "timeout_for": registration.timeout_ms,
        "requirements": msgspec.json.encode(registration.requirements).decode(),
        "metadata": msgspec.json.encode(registration.metadata).decode(),
        "now": now,
    }
    with writing(connection):
        connection.execute(_SQL["save_handler"], values)


def list_handlers(connection: apsw.Connection, namespace: str) -> list[HandlerRegistration]:
    """The registrations of the namespace by name."""
    rows = connection.execute(_SQL["list_handlers"], {"namespace": namespace})
    return [_registration(*row) for row in rows]


def delete_handler(connection: apsw.Connection, namespace: str, facet_name: str) -> bool:
    """Remove a registration; whether there was one."""
    with writing(connection):
        connection.execute(_SQL["delete_handler"], {"namespace": namespace, "facet_name": facet_name})
        return connection.changes() > 0


def find_step(connection: apsw.Connection, step_id: str) -> Step | None:
    """The step of that id."""
    cursor = connection.execute(_SQL["find_step"], {"id": step_id})
    for row in cursor:
        return Step(**dict(zip((column[0] for column in cursor.description), row, strict=True)))
    return None
