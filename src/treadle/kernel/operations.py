"""Entries of the log about changes that operators make.

Tasks, runs and records log their own transitions. A change of something else (a list, a limit, a handler, a flow, a retention rule)
is an entry of its own: a record of the entity `operation` that has ended, whose transition has the actor and, as its data, the
operation, its subject, and the values before and after. The store writes it in the transaction of the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.api.events import AuditEntry, Undo
from treadle.api.wire import record_of
from treadle.kernel.core import Core
from treadle.kernel.store.queries import TransitionEvent
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Row, Unit
from treadle.model.records import Record
from treadle.model.states import ALERT_RULE, DECLARATIONS, EXTERNAL, OPERATION
from treadle.model.values import decode_or_error, encode


def operation_entry(
    core: Core,
    operation: str,
    subject: str,
    actor: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    *,
    whole: bool = False,
) -> tuple[Row, ...]:
    """Return the rows of an entry about an operation, such as `lists.pause`, on its subject.

    The entry has the values that differ; `whole`: all, because they are one setting.
    """
    state = OPERATION.initial
    record = Record(id=core.ids.new_id(), namespace=core.namespace, entity=OPERATION.entity, state=state)
    values = {"before": before, "after": after} if whole else difference(before, after)
    data = encode({"operation": operation, "subject": subject, **values})
    return PutRecord(record), ChangeRecord(record.id, 0, "{}", "perform", state, state, ended=True, actor=actor, data=data)


async def log_operation(
    core: Core,
    operation: str,
    subject: str,
    actor: str,
    after: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> None:
    """Log an operation that takes several transactions, before it begins, or one that changes the whole store."""
    await core.committer.submit(Unit(rows=operation_entry(core, operation, subject, actor, before, after)), core.patience)


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `before` and `after` with the values that differ; without the one that is None."""
    old, new = before or {}, after or {}
    same = {name for name in old if name in new and old[name] == new[name]}
    return {
        when: {name: value for name, value in values.items() if name not in same}
        for when, values in (("before", before), ("after", after))
        if values is not None
    }


_GROUPS = {ALERT_RULE.entity: "alerts", EXTERNAL.entity: "external_jobs", DECLARATIONS.entity: "declarations"}
_LIST_SETTINGS = {"paused": "lists.pause", "accepting": "lists.drain"}
_SWITCHES = {
    f"{group}.{act}": f"{group}.{other}"
    for group in ("schedules", "watchers")
    for act, other in (("pause", "resume"), ("resume", "pause"))
}


def audit_entry(event: TransitionEvent) -> AuditEntry:
    """Return the public record of a change by an operator."""
    row, data = event.transition, decode_or_error(event.transition.data)
    values = data if isinstance(data, dict) else {}
    if row.entity == OPERATION.entity:
        operation, subject = str(values.get("operation", "")), str(values.get("subject", ""))
    else:
        operation, subject = f"{_GROUPS.get(row.entity, row.entity + 's')}.{row.transition}", event.name or row.entity_id
    before, after = values.get("before"), values.get("after")
    if row.from_state != row.to_state and not (before or after):
        before, after = {"state": row.from_state}, {"state": row.to_state}
    undo = _undo(operation, subject if row.entity == OPERATION.entity else row.entity_id, before or {})
    return record_of(AuditEntry, row, operation=operation, subject=subject, before=before, after=after, undo=undo)


def _undo(operation: str, subject: str, before: Mapping[str, Any]) -> Undo | None:
    """Return the operation that restores the values before another one, if one does exactly that."""
    if operation in _SWITCHES and before:
        return Undo(_SWITCHES[operation], {"name": subject})
    if operation in ("lists.pause", "lists.drain") and before:
        return Undo("lists.resume", {"task_list": subject})
    if operation == "lists.resume" and len(before) == 1:
        return Undo(_LIST_SETTINGS[next(iter(before))], {"task_list": subject})
    task_list, _, name = subject.partition("/")
    match operation:
        case "lists.limit_key" | "lists.limit_key_rate":
            target = {"key": subject}
        case "lists.limit_rate" | "lists.limit_backlog" if "/" not in name:
            target = {"task_list": task_list, "name": name}
        case "lists.set_policy":
            target = {"task_list": subject}
        case _:
            return None
    return Undo(operation, {**target, **before}) if before else None
