"""Whether a run or a task matches a query: the one definition of a query's meaning. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from treadle.kernel.search.query import (
    ERROR_LIMIT,
    Ago,
    And,
    Compare,
    Exists,
    Field,
    In,
    Instant,
    Not,
    Or,
    Prefix,
    Query,
    Value,
    words,
)
from treadle.model.errors import InvalidTag
from treadle.model.tags import encode_tag, encode_time
from treadle.model.values import Json

_ORDER: dict[str, Callable[[Any, Any], Any]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Subject:
    """A run or a task as queries see it; `facts` are texts by the root of their field, times are milliseconds."""

    facts: Mapping[str, str | None]
    created_at: int
    finished_at: int | None = None
    error: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """In stored form."""
    input: Json = _MISSING
    output: Json = _MISSING


def error_text(error: Mapping[str, Json] | None) -> str | None:
    """The text of a stored error that is searched: its code and its message."""
    return None if error is None else f"{error.get('code') or ''} {error.get('message') or ''}"[:ERROR_LIMIT]


def matches(query: Query, subject: Subject, now: int) -> bool:
    """Whether the record matches; a condition on a value that it does not have is false, also with `!=`."""
    match query:
        case And(parts):
            return all(matches(part, subject, now) for part in parts)
        case Or(parts):
            return any(matches(part, subject, now) for part in parts)
        case Not(part):
            return not matches(part, subject, now)
        case Exists(where):
            return _find(where, subject) is not _MISSING
        case In(where, values):
            found = _find(where, subject)
            return any(_compare(where, found, "=", value, now) for value in values)
        case Compare(where, op, value):
            return _compare(where, _find(where, subject), op, value, now)
        case _:
            assert_never(query)


def _find(where: Field, subject: Subject) -> Any:
    match where.root:
        case "created":
            return subject.created_at
        case "finished":
            return _MISSING if subject.finished_at is None else subject.finished_at
        case "error":
            return _MISSING if subject.error is None else subject.error
        case "tag":
            return subject.tags.get(str(where.path[0]), _MISSING)
        case "input" | "output":
            found = subject.input if where.root == "input" else subject.output
            for part in where.path:
                found = _item(found, part)
            return found
        case root:
            fact = subject.facts.get(root)
            return _MISSING if fact is None else fact


def _item(value: Any, part: str | int) -> Any:
    if isinstance(part, str):
        return value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value[part] if isinstance(value, list) and part < len(value) else _MISSING


def _compare(where: Field, found: Any, op: str, value: Value, now: int) -> bool:
    if found is _MISSING:
        return False
    if op == "!=":
        return not _compare(where, found, "=", value, now)
    if where.root == "tag":
        return _compare_tag(found, op, value, now)
    if isinstance(value, Instant | Ago):
        at = value.at if isinstance(value, Instant) else now - value.ms
        return isinstance(found, int) and op in _ORDER and bool(_ORDER[op](found, at))
    if op == "~":
        return isinstance(found, str) and has_words(found, str(value))
    if isinstance(value, Prefix):
        return isinstance(found, str) and found.startswith(value.text)
    if not _comparable(found, value):
        return False
    return bool(found == value) if op == "=" else bool(_ORDER[op](found, value))


def _compare_tag(stored: str, op: str, value: Value, now: int) -> bool:
    if op == "~":
        return stored.startswith("s") and has_words(stored[1:], str(value))
    if isinstance(value, Prefix):
        return stored.startswith(f"s{value.text}")
    wanted = stored_tag(value, now)
    if op == "=":
        return stored == wanted
    return wanted is not None and stored[0] == wanted[0] and bool(_ORDER[op](stored, wanted))


def stored_tag(value: Value, now: int) -> str | None:
    """The stored form of a tag with this value; None if no tag can have it."""
    match value:
        case Instant(at):
            return encode_time(at)
        case Ago(ms):
            return encode_time(max(now - ms, 0))
        case None | Prefix():
            return None
    try:
        return encode_tag(value)
    except InvalidTag:
        return None


def has_words(text: str, wanted: str) -> bool:
    """Whether the text has all these words, in any order; a word that ends in `*` is the beginning of one."""
    have = {word.removesuffix("*") for word in words(text)}
    return all(any(each.startswith(word[:-1]) for each in have) if word.endswith("*") else word in have for word in words(wanted))


def _comparable(one: Any, other: Any) -> bool:
    numbers = (int, float)
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return type(one) is type(other)
    return (isinstance(one, numbers) and isinstance(other, numbers)) or (isinstance(one, str) and isinstance(other, str))
