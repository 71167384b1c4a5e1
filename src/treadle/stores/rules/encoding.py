"""Forms of values that both stores share: rows of servers, ids of partitions and queues in signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from treadle.model.errors import UnreadableValue
from treadle.model.records import HandlerRegistration
from treadle.model.tasks import Server
from treadle.model.values import encode, unreadable_json

SERVER_JSON: dict[str, Any] = {"handlers": list[str], "task_lists": list[str], "topics": list[str], "counts": dict[str, list[int]]}
_REGISTRATION_JSON: dict[str, Any] = {"requirements": list[str], "metadata": dict[str, Any]}


def server_of(row: Mapping[str, Any]) -> Server:
    """Return the server; one that cannot be read has no handlers and an error. Columns of newer versions are ignored."""
    values = {name: row[name] for name in row if name in Server.__struct_fields__}
    try:
        values |= _decoded(row, SERVER_JSON)
    except UnreadableValue as error:
        values |= {name: kind() for name, kind in SERVER_JSON.items()}
        values["error"] = encode({"code": error.code, "message": str(error)})
    return Server(**values)


def registration_of(row: Sequence[Any]) -> HandlerRegistration:
    """Return the registration; one that cannot be read has the reason as its metadata."""
    values = dict(zip((field.name for field in fields(HandlerRegistration)), row, strict=True))
    try:
        values |= _decoded(values, _REGISTRATION_JSON)
    except UnreadableValue as error:
        values |= {"requirements": [], "metadata": unreadable_json(error)}
    return HandlerRegistration(**values)


def _decoded(texts: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    decoded = {}
    for name, kind in kinds.items():
        try:
            decoded[name] = msgspec.json.decode(texts[name], type=kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableValue(f"Its {name} cannot be read: {error}. They are damaged, or a newer version wrote them.") from None
    return decoded


RUNS = "run:"
"""The prefix of a cursor in the second half of the scan."""


def first_id(at: int) -> str:
    """Return an id that sorts before all ids created at that instant or later."""
    text = f"{max(at, 0):012x}"
    return f"{text[:8]}-{text[8:]}-0000-0000-000000000000"


NOTIFY_PAYLOAD_LIMIT = 7000
"""Bytes of a payload; PostgreSQL allows 8000."""


def format_queues(queue_ids: Sequence[int]) -> str:
    """Return the payload of a signal: the queue ids, or nothing ("poll all queues") if there are too many."""
    payload = ",".join(map(str, queue_ids))
    return payload if len(payload) <= NOTIFY_PAYLOAD_LIMIT else ""


def parse_queues(payload: str) -> tuple[int, ...]:
    """Return the queues of a signal; an empty or foreign payload means all queues."""
    try:
        return tuple(int(part) for part in payload.split(",")) if payload else ()
    except ValueError:
        return ()
