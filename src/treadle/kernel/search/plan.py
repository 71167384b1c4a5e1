"""The index that finds the candidates of a query, and the parts of a candidate that the query needs. Pure.

A query that requires several conditions is answered by the index of the most selective kind: words of the error, a tag, a state
other than completed, a name; otherwise by creation time. `kernel.search.match` checks every candidate, so a plan may return too
many candidates, never too few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from treadle.kernel.search.match import stored_tag
from treadle.kernel.search.query import (
    RUN_STATES,
    WORD_LIMIT,
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
from treadle.model.states import RunState

KEYS_LIMIT = 10
"""Limit on the keys of an index that one query reads; with more, candidates are found by creation time."""
_COMMON = RunState.COMPLETED
_UNFINISHED = tuple(state.value for state in (RunState.PENDING, RunState.RUNNING, RunState.PAUSED))


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates: those with one of the `keys` of the index `by`, created from `after` to before `before` (ms)."""

    by: str = "created"
    """`words`, `tag`, `state`, `name`, `prefix` (of a name) or `created`."""
    keys: tuple[str, ...] = ("",)
    """Query of the text index, values of the tag, states, names; one of them for `prefix`."""
    tag: str = ""
    after: int | None = None
    before: int | None = None
    states: tuple[str, ...] = ()
    """The states that the query allows; empty for all."""
    exact: bool = False
    """Whether most candidates match: no other condition has to be checked."""


def plan(query: Query, now: int, *, words_indexed: bool = True) -> Plan:
    """Choose the index; without `words_indexed` (errors are sealed) errors are not found by their words."""
    parts = query.parts if isinstance(query, And) else (query,)
    after, before = _bounds(parts, now)
    found: dict[str, Plan] = {}
    for part in parts:
        match part:
            case Compare(where, "~", str(text)) if where.root == "error" and words_indexed:
                indexed = [word for word in words(text) if len(word.removesuffix("*")) < WORD_LIMIT]
                if indexed:
                    found.setdefault("words", Plan("words", (" ".join(indexed),)))
            case Compare(where, "=", value):
                _add(found, where.root, where.path, (value,), now)
            case In(where, values):
                _add(found, where.root, where.path, values, now)
    chosen = next((found[by] for by in ("words", "tag", "state", "name", "prefix") if by in found), Plan())
    others = sum(set(roots(part)) != {"created"} for part in parts)
    return replace(chosen, after=after, before=before, states=_states(parts), exact=others == (chosen.by != "created"))


def _states(parts: tuple[Query, ...]) -> tuple[str, ...]:
    """The states that all conditions allow; empty if the query excludes none, or all."""
    allowed = set(RUN_STATES)
    for part in parts:
        match part:
            case Compare(Field("state"), "=", str(state)):
                allowed &= {state}
            case Compare(Field("state"), "!=", str(state)):
                allowed -= {state}
            case In(Field("state"), values) if all(isinstance(each, str) for each in values):
                allowed &= {str(each) for each in values}
    return tuple(sorted(allowed)) if len(allowed) < len(RUN_STATES) else ()


def _add(found: dict[str, Plan], root: str, path: tuple[str | int, ...], values: tuple[Value, ...], now: int) -> None:
    if len(values) > KEYS_LIMIT:
        return
    texts = tuple(dict.fromkeys(each for each in values if isinstance(each, str)))
    if root == "tag":
        stored = tuple(dict.fromkeys(each for value in values if (each := stored_tag(value, now)) is not None))
        if not any(isinstance(value, Prefix) for value in values):
            found.setdefault("tag", Plan("tag", stored, str(path[0])))
    elif root == "doing":
        found.setdefault("state", Plan("state", _UNFINISHED))
    elif root in ("state", "name") and len(texts) == len(set(values)) and _COMMON not in texts:
        found.setdefault(root, Plan(root, texts))
    elif root == "name" and len(values) == 1 and isinstance(values[0], Prefix):
        found.setdefault("prefix", Plan("prefix", (values[0].text,)))


def _bounds(parts: tuple[Query, ...], now: int) -> tuple[int | None, int | None]:
    """The first instant of the creation times that the query allows, and the first one after them."""
    after: list[int] = []
    before: list[int] = []
    for part in parts:
        if isinstance(part, Compare) and part.field.root == "created" and isinstance(part.value, Instant | Ago):
            at = part.value.at if isinstance(part.value, Instant) else now - part.value.ms
            if part.op in (">", ">="):
                after.append(at + (part.op == ">"))
            elif part.op in ("<", "<="):
                before.append(at + (part.op == "<="))
    return max(after, default=None), min(before, default=None)


def roots(query: Query) -> Iterator[str]:
    """The roots of all fields in the query."""
    match query:
        case And(parts) | Or(parts):
            for part in parts:
                yield from roots(part)
        case Not(part):
            yield from roots(part)
        case Compare(where) | In(where) | Exists(where):
            yield where.root
