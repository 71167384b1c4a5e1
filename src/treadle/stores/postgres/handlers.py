"""Handler registrations, and steps found by nothing but their id: what agents need of the store."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from treadle.model.handlers import HandlerRegistration
from treadle.model.runs import Step
from treadle.stores.postgres.connect import PACKAGE, Connection
from treadle.stores.statements import load_statements

_SQL = load_statements(PACKAGE, "handlers.sql")
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


async def save_handler(connection: Connection, namespace: str, registration: HandlerRegistration) -> None:
    """Insert the registration, or replace it."""
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


async def list_handlers(connection: Connection, namespace: str) -> list[HandlerRegistration]:
    """The registrations of the namespace by name."""
    rows = [tuple(row) for row in await connection.fetch(_SQL["list_handlers"], namespace)]
    return [_registration(*row) for row in rows]


async def delete_handler(connection: Connection, namespace: str, facet_name: str) -> bool:
    """Remove a registration; whether there was one."""
    return not (await connection.execute(_SQL["delete_handler"], namespace, facet_name)).endswith(" 0")


async def find_step(connection: Connection, step_id: str) -> Step | None:
    """The step of that id."""
    row = await connection.fetchrow(_SQL["find_step"], step_id)
    if row is None:
        return None
    values: dict[str, Any] = {name: str(value) if isinstance(value, UUID) else value for name, value in row.items()}
    return Step(**values)
