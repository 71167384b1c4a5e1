"""The changes that make the store follow the declarations of a program. Pure.

Three values of an item decide: the declared one, the one that the program applied last, and the one found in the store. An item
is the program's to change while it has a value that the program applied; a value that somebody else set is kept and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from treadle.kernel.declarations.records import (
    Applied,
    DeclarationsBody,
    Program,
    Value,
    name_of,
    release_key,
    text_of,
)
from treadle.kernel.declarations.schedules import is_over

ADDED, CHANGED, REMOVED, UNCHANGED = "added", "changed", "removed", "unchanged"
OVERRIDDEN, SKIPPED, CONFLICT = "overridden", "skipped", "conflict"


@dataclass(frozen=True, slots=True)
class Change:
    """The verdict on one item; `found` is its value before."""

    item: str
    verdict: str
    declared: Value
    found: Value
    by: str | None = None
    """The program that owns it, or the newer release that has been applied."""

    @property
    def text(self) -> str:
        """The change for people."""
        name, found, declared = name_of(self.item), text_of(self.item, self.found), text_of(self.item, self.declared)
        match self.verdict:
            case "added":
                return f"{name} added: {declared}"
            case "changed":
                return f"{name} changed from {found} to {declared}"
            case "removed":
                return f"{name} removed: {found}"
            case "overridden":
                wanted = "no longer declared" if self.declared is None else f"declared: {declared}"
                return f"{name} kept as set by hand: {found} ({wanted})"
            case "skipped":
                return f"{name} skipped, because the newer release {self.by} has been applied: {found} (declared: {declared})"
            case "conflict":
                return f"{name} refused, because it belongs to the program {self.by}: {found} (declared: {declared})"
        return f"{name} unchanged: {found}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdicts, the values to apply, and the record: before that, with uncertain items, and after it."""

    changes: tuple[Change, ...]
    writes: dict[str, Value]
    body: DeclarationsBody
    after: DeclarationsBody


def decide(
    program: str,
    release: str,
    declared: Mapping[str, Value],
    body: DeclarationsBody,
    found: Mapping[str, Value],
    now: int = 0,
    *,
    written: Mapping[str, Value] | None = None,
    overwrite: bool = False,
) -> Plan:
    """Compare the declarations of a program with the record and the store. `found` has all items of both.

    `written` are values that this synchronisation applied before it lost to another one. With `overwrite`, values that were set
    by hand give way.
    """
    written = written or {}
    mine = body.programs.get(program)
    if mine is not None and release_key(mine.release) > release_key(release):
        return _skip(mine, declared, body, found, written)
    former = mine or Program(release=release)
    owners = {item: name for name, each in body.programs.items() if name != program for item in each.items}
    changes: list[Change] = []
    writes: dict[str, Value] = {}
    items: dict[str, Applied] = {}
    for item in sorted({*declared, *former.items}):
        want, own, value = declared.get(item), former.items.get(item), found[item]
        by = owners.get(item) if own is None else None
        verdict, kept = (CONFLICT, None) if by else _decide_item(item, want, own, value, now, written, overwrite)
        changes.append(Change(item, verdict, want, value, by))
        if kept is not None:
            items[item] = kept
        if verdict in (ADDED, CHANGED, REMOVED):
            writes[item] = want
    certain = {item: _certain(each, each.value) for item, each in items.items() if each.value is not None}
    bodies = (
        msgspec.structs.replace(
            body, programs={**body.programs, program: msgspec.structs.replace(former, release=release, items=each)}
        )
        for each in (items, certain)
    )
    return Plan(tuple(changes), writes, *bodies)


def _decide_item(
    item: str, want: Value, own: Applied | None, value: Value, now: int, written: Mapping[str, Value], overwrite: bool
) -> tuple[str, Applied | None]:
    """Return the verdict, and the item in the record; None: it is not the program's."""
    if want is None and value is None:
        return UNCHANGED, None
    over = value is None and (own is None or not own.before) and is_over(item, want, now)
    if want is not None and (value == want or (over and (own is None or own.value == want))):
        return UNCHANGED, own if over else _certain(own, want)
    if own is None:
        ours = value is None or overwrite
        uncertain: tuple[Value, ...] = (value,)
    else:
        known = (own.value, *own.before, *((written[item],) if item in written else ()))
        ours = overwrite or value in known or (value is None and is_over(item, own.value, now))
        uncertain = tuple(each for at, each in enumerate((value, *known)) if each not in (value, *known)[:at])
    if not ours:
        return OVERRIDDEN, own if want is not None else None
    if want is None:
        return REMOVED, Applied(value=None, before=uncertain)
    return ADDED if value is None else CHANGED, Applied(value=want, before=uncertain)


def _certain(own: Applied | None, value: Value) -> Applied:
    return Applied(value=value) if own is None else msgspec.structs.replace(own, value=value, before=())


def _skip(
    mine: Program, declared: Mapping[str, Value], body: DeclarationsBody, found: Mapping[str, Value], written: Mapping[str, Value]
) -> Plan:
    """Leave everything to the newer release, and undo values that were written over its own."""
    applied = {item: each.value for item, each in mine.items.items()}
    changes = tuple(
        Change(
            item, UNCHANGED if declared.get(item) == applied.get(item) else SKIPPED, declared.get(item), found[item], mine.release
        )
        for item in sorted({*declared, *applied})
    )
    writes = {item: applied.get(item) for item, value in written.items() if found[item] == value and applied.get(item) != value}
    return Plan(changes, writes, body, body)
