"""The changes that make the store follow the declarations of a program. Pure.

Three values of an item decide: the declared one, the one that the program applied last, and the one found in the store. An item
is the program's to change while it has a value that the program applied; a value that somebody else set is kept and reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from treadle.kernel.alerts import service as alert_rules
from treadle.kernel.declarations.records import (
    ALERT,
    SCHEDULE,
    WATCHER,
    name_of,
    release_key,
    text_of,
)
from treadle.kernel.schedules.options import check_options, make_document
from treadle.kernel.schedules.ticks import make_calendar
from treadle.kernel.triggers import named_targets
from treadle.kernel.watchers import service as watchers
from treadle.model import alerts, schedules
from treadle.model import watchers as watching
from treadle.model.alerts import AlertRuleDocument
from treadle.model.declarations import Applied, DeclarationsDocument, DeployedProgram, Value
from treadle.model.schedules import ScheduleDocument
from treadle.model.stored import convert, plain
from treadle.model.values import decode, encode
from treadle.model.watchers import WatcherDocument

ADDED, CHANGED, REMOVED, UNCHANGED = "added", "changed", "removed", "unchanged"
OVERRIDDEN, SKIPPED, CONFLICT = "overridden", "skipped", "conflict"

_TEXTS = {
    ADDED: "{name} added: {declared}",
    CHANGED: "{name} changed from {found} to {declared}",
    REMOVED: "{name} removed: {found}",
    UNCHANGED: "{name} unchanged: {found}",
    OVERRIDDEN: "{name} kept as set by hand: {found} ({wanted})",
    SKIPPED: "{name} skipped, because the newer release {by} has been applied: {found} (declared: {declared})",
    CONFLICT: "{name} refused, because it belongs to the program {by}: {found} (declared: {declared})",
}


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
        return _TEXTS[self.verdict].format(
            name=name_of(self.item),
            found=text_of(self.item, self.found),
            declared=text_of(self.item, self.declared),
            wanted="no longer declared" if self.declared is None else f"declared: {text_of(self.item, self.declared)}",
            by=self.by,
        )


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The verdicts, the values to apply, and the record: before that, with uncertain items, and after it."""

    changes: tuple[Change, ...]
    writes: dict[str, Value]
    document: DeclarationsDocument
    after: DeclarationsDocument


def decide(
    program: str,
    release: str,
    declared: Mapping[str, Value],
    document: DeclarationsDocument,
    stored: Mapping[str, Value],
    now: int = 0,
    *,
    written: Mapping[str, Value] | None = None,
    overwrite: bool = False,
) -> SyncPlan:
    """Compare the declarations of a program with the record and the store. `stored` has all items of both.

    `written` are values that this synchronisation applied before it lost to another one. With `overwrite`, values that were set
    by hand give way.
    """
    written = written or {}
    mine = document.programs.get(program)
    if mine is not None and release_key(mine.release) > release_key(release):
        return _skip(mine, declared, document, stored, written)
    former = mine or DeployedProgram(release=release)
    owners = {item: name for name, other in document.programs.items() if name != program for item in other.items}
    changes: list[Change] = []
    writes: dict[str, Value] = {}
    items: dict[str, Applied] = {}
    for item in sorted({*declared, *former.items}):
        want, own, value = declared.get(item), former.items.get(item), stored[item]
        by = owners.get(item) if own is None else None
        verdict, applied = (CONFLICT, None) if by else _decide_item(item, want, own, value, now, written, overwrite)
        changes.append(Change(item, verdict, want, value, by))
        if applied is not None:
            items[item] = applied
        if verdict in (ADDED, CHANGED, REMOVED):
            writes[item] = want
    certain = {item: _certain(applied, applied.value) for item, applied in items.items() if applied.value is not None}
    documents = (
        msgspec.structs.replace(
            document, programs={**document.programs, program: msgspec.structs.replace(former, release=release, items=program_items)}
        )
        for program_items in (items, certain)
    )
    return SyncPlan(tuple(changes), writes, *documents)


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
        own_values = (own.value, *own.before, *((written[item],) if item in written else ()))
        ours = overwrite or value in own_values or (value is None and is_over(item, own.value, now))
        uncertain = tuple(
            candidate for at, candidate in enumerate((value, *own_values)) if candidate not in (value, *own_values)[:at]
        )
    if not ours:
        return OVERRIDDEN, own if want is not None else None
    if want is None:
        return REMOVED, Applied(value=None, before=uncertain)
    return ADDED if value is None else CHANGED, Applied(value=want, before=uncertain)


def _certain(own: Applied | None, value: Value) -> Applied:
    return Applied(value=value) if own is None else msgspec.structs.replace(own, value=value, before=())


def _skip(
    mine: DeployedProgram,
    declared: Mapping[str, Value],
    document: DeclarationsDocument,
    stored: Mapping[str, Value],
    written: Mapping[str, Value],
) -> SyncPlan:
    """Leave everything to the newer release, and undo values that were written over its own."""
    applied = {item: entry.value for item, entry in mine.items.items()}
    changes = tuple(
        Change(
            item, UNCHANGED if declared.get(item) == applied.get(item) else SKIPPED, declared.get(item), stored[item], mine.release
        )
        for item in sorted({*declared, *applied})
    )
    writes = {item: applied.get(item) for item, value in written.items() if stored[item] == value and applied.get(item) != value}
    return SyncPlan(changes, writes, document, document)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


TriggerDocument = ScheduleDocument | WatcherDocument | AlertRuleDocument

_KINDS: dict[str, tuple[type[TriggerDocument], tuple[str, ...]]] = {
    SCHEDULE: (ScheduleDocument, schedules.DEFINITION),
    WATCHER: (WatcherDocument, watching.DEFINITION),
    ALERT: (AlertRuleDocument, alerts.DEFINITION),
}
"""The documents of declared triggers, and the fields of their definitions."""


def trigger_value(kind: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the value of a declared trigger, None if it has no target yet; raises `InvalidInput` for unknown options.

    Intervals of schedules count from 1970, so that they do not depend on the time of a start.
    """
    if kind == ALERT:
        return definition(kind, alert_rules.make_document(options))
    if kind == SCHEDULE:
        check_options(options)
        if options.get("every") is not None and options.get("anchor") is None and options.get("start") is None:
            options = options | {"anchor": _EPOCH}
    if not named_targets(options):
        return None
    return definition(kind, make_document(options, 0) if kind == SCHEDULE else watchers.make_document(options))


def definition(kind: str, document: TriggerDocument) -> dict[str, Any]:
    """Return the definition of a trigger, without its progress."""
    fields: dict[str, Any] = decode(encode(plain(document), kind))
    return {name: fields[name] for name in _KINDS[kind][1] if fields.get(name) not in (None, {})}


def document_of(kind: str, value: dict[str, Any]) -> Any:
    """Return the document of a trigger with this value, before it begins."""
    return convert(_KINDS[kind][0], value | ({"cursor": 0} if kind == SCHEDULE else {}))


def is_over(item: str, value: Value, now: int) -> bool:
    """Return whether the item is a schedule without a tick after that instant, so that it may have ended by itself."""
    if value is None or not item.startswith(f"{SCHEDULE} "):
        return False
    document = document_of(SCHEDULE, value)
    following = make_calendar(document.when).next_after(now)
    return following is None or (document.end_at is not None and following > document.end_at)
