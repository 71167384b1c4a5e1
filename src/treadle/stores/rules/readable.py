"""Rows with JSON that both stores decode: a text that cannot be read leaves only its own row without that value."""

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
    values = dict(zip((each.name for each in fields(HandlerRegistration)), row, strict=True))
    try:
        values |= _decoded(values, _REGISTRATION_JSON)
    except UnreadableValue as error:
        values |= {"requirements": [], "metadata": unreadable_json(error)}
    return HandlerRegistration(**values)


def _decoded(texts: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    made = {}
    for name, kind in kinds.items():
        try:
            made[name] = msgspec.json.decode(texts[name], type=kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableValue(f"Its {name} cannot be read: {error}. They are damaged, or a newer version wrote them.") from None
    return made
