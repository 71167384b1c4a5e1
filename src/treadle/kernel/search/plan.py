"""Whether a run or task matches a query (the one definition of its meaning), and the plan of a search.

A plan names the index that finds the candidates of a query, and the parts of a candidate that the query needs. Pure.

A query that requires several conditions is answered by the index of the most selective kind: words of the error, a tag, a state
other than completed, a name; otherwise by creation time. `matches` checks every candidate, so a plan may return too
many candidates, never too few.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from treadle.kernel.search.query import (
    ERROR_LIMIT,
    RUN_STATES,
    WORD_LIMIT,
    Ago,
    Condition,
    Field,
    Instant,
    Prefix,
    Query,
    QueryGroup,
    Value,
    parts_of,
    words,
)
from treadle.model.errors import InvalidTag
from treadle.model.ids import is_canonical
from treadle.model.states import RunState
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
        case QueryGroup("not", (part,)):
            return not matches(part, subject, now)
        case QueryGroup(op, parts):
            results = (matches(part, subject, now) for part in parts)
            return all(results) if op == "and" else any(results)
        case Condition(where, "exists"):
            return _find(where, subject) is not _MISSING
        case Condition(Field("tag", ()), _, values):
            return any(_compare_tag(stored, "=", wanted, now) for stored in subject.tags.values() for wanted in values)
        case Condition(where, op, values):
            value = _find(where, subject)
            return any(_compare(where, value, "=" if op == "in" else op, wanted, now) for wanted in values)
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
            value = subject.input if where.root == "input" else subject.output
            for part in where.path:
                value = _item(value, part)
            return value
        case root:
            fact = subject.facts.get(root)
            return _MISSING if fact is None else fact


def _item(value: Any, part: str | int) -> Any:
    if isinstance(part, str):
        return value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value[part] if isinstance(value, list) and part < len(value) else _MISSING


def _compare(where: Field, actual: Any, op: str, value: Value, now: int) -> bool:
    if actual is _MISSING:
        return False
    if op == "!=":
        return not _compare(where, actual, "=", value, now)
    if where.root == "tag":
        return _compare_tag(actual, op, value, now)
    if isinstance(value, Instant | Ago):
        at = value.at if isinstance(value, Instant) else now - value.ms
        return isinstance(actual, int) and op in _ORDER and bool(_ORDER[op](actual, at))
    if op == "~":
        return isinstance(actual, str) and has_words(actual, str(value))
    if isinstance(value, Prefix):
        return isinstance(actual, str) and actual.startswith(value.text)
    if not _comparable(actual, value):
        return False
    return bool(actual == value) if op == "=" else bool(_ORDER[op](actual, value))


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
    return all(
        any(present.startswith(word[:-1]) for present in have) if word.endswith("*") else word in have for word in words(wanted)
    )


def _comparable(one: Any, other: Any) -> bool:
    numbers = (int, float)
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return type(one) is type(other)
    return (isinstance(one, numbers) and isinstance(other, numbers)) or (isinstance(one, str) and isinstance(other, str))


KEYS_LIMIT = 10
"""Limit on the keys of an index that one query reads; with more, candidates are found by creation time."""
_COMMON = RunState.COMPLETED
_UNFINISHED = tuple(state.value for state in (RunState.PENDING, RunState.RUNNING, RunState.PAUSED))


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Candidates: those with one of the `keys` of the index `by`, created from `after` to before `before` (ms)."""

    by: str = "created"
    """`run` (of a task), `words`, `tag`, `state`, `name`, `prefix` (of a name) or `created`."""
    keys: tuple[str, ...] = ("",)
    """Query of the text index, values of the tag, states, names; one of them for `prefix`."""
    tag: str = ""
    """The key of the tag; empty for any key."""
    after: int | None = None
    before: int | None = None
    states: tuple[str, ...] = ()
    """The states that the query allows; empty for all."""
    exact: bool = False
    """Whether most candidates match: no other condition has to be checked."""


def plan(query: Query, now: int, *, words_indexed: bool = True) -> SearchPlan:
    """Choose the index; without `words_indexed` (errors are encoded) errors are not found by their words."""
    parts = parts_of(query)
    after, before = _bounds(parts, now)
    plans: dict[str, SearchPlan] = {}
    for part in parts:
        match part:
            case Condition(Field("error"), "~", (str(text),)) if words_indexed:
                indexed = [word for word in words(text) if len(word.removesuffix("*")) < WORD_LIMIT]
                if indexed:
                    plans.setdefault("words", SearchPlan("words", (" ".join(indexed),)))
            case Condition(where, "=" | "in", values):
                _add(plans, where.root, where.path, values, now)
    chosen = next((plans[by] for by in ("run", "words", "tag", "state", "name", "prefix") if by in plans), SearchPlan())
    others = sum(set(roots(part)) != {"created"} for part in parts)
    return replace(chosen, after=after, before=before, states=_states(parts), exact=others == (chosen.by != "created"))


def _states(parts: tuple[Query, ...]) -> tuple[str, ...]:
    """The states that all conditions allow; empty if the query excludes none, or all."""
    allowed = set(RUN_STATES)
    for part in parts:
        match part:
            case Condition(Field("state"), "!=", values):
                allowed -= {str(state) for state in values}
            case Condition(Field("state"), "=" | "in", values) if all(isinstance(state, str) for state in values):
                allowed &= {str(state) for state in values}
    return tuple(sorted(allowed)) if len(allowed) < len(RUN_STATES) else ()


def _add(plans: dict[str, SearchPlan], root: str, path: tuple[str | int, ...], values: tuple[Value, ...], now: int) -> None:
    if len(values) > KEYS_LIMIT:
        return
    texts = tuple(dict.fromkeys(text for text in values if isinstance(text, str)))
    if root == "tag":
        stored = tuple(dict.fromkeys(tag for value in values if (tag := stored_tag(value, now)) is not None))
        if not any(isinstance(value, Prefix) for value in values):
            plans.setdefault("tag", SearchPlan("tag", stored, str(path[0]) if path else ""))
    elif root == "run" and len(texts) == len(set(values)):
        plans.setdefault("run", SearchPlan("run", tuple(filter(is_canonical, texts))))
    elif root == "activity":
        plans.setdefault("state", SearchPlan("state", _UNFINISHED))
    elif root in ("state", "name") and len(texts) == len(set(values)) and _COMMON not in texts:
        plans.setdefault(root, SearchPlan(root, texts))
    elif root == "name" and len(values) == 1 and isinstance(values[0], Prefix):
        plans.setdefault("prefix", SearchPlan("prefix", (values[0].text,)))


def _bounds(parts: tuple[Query, ...], now: int) -> tuple[int | None, int | None]:
    """The first instant of the creation times that the query allows, and the first one after them."""
    after: list[int] = []
    before: list[int] = []
    for part in parts:
        match part:
            case Condition(Field("created"), op, (Instant() | Ago() as value,)):
                at = value.at if isinstance(value, Instant) else now - value.ms
                if op in (">", ">="):
                    after.append(at + (op == ">"))
                elif op in ("<", "<="):
                    before.append(at + (op == "<="))
    return max(after, default=None), min(before, default=None)


def roots(query: Query) -> Iterator[str]:
    """The roots of all fields in the query."""
    match query:
        case QueryGroup(_, parts):
            for part in parts:
                yield from roots(part)
        case Condition(where):
            yield where.root
