"""Entries of the log about changes that operators make.

Tasks, runs and records log their own transitions. A change of something else (a list, a limit, a handler, a flow, a retention rule)
is an entry of its own: a record of the entity `operation` that has ended, whose transition has the actor and, as its data, the
operation, its subject, and the values before and after. The store writes it in the transaction of the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.kernel.core import Core
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Row, Unit
from treadle.model.records import Record
from treadle.model.states import OPERATION
from treadle.model.values import encode


def operation_entry(
    core: Core,
    operation: str,
    subject: str,
    actor: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> tuple[Row, ...]:
    """Return the rows of an entry about an operation, such as `lists.pause`, on its subject."""
    state = OPERATION.initial
    record = Record(id=core.ids.new_id(), namespace=core.namespace, entity=OPERATION.entity, state=state)
    data = encode({"operation": operation, "subject": subject, **difference(before, after)})
    return PutRecord(record), ChangeRecord(record.id, 0, "{}", "perform", state, state, ended=True, actor=actor, data=data)


async def log_operation(core: Core, operation: str, subject: str, actor: str, after: Mapping[str, Any] | None = None) -> None:
    """Log an operation that takes several transactions, before it begins."""
    await core.committer.submit(Unit(rows=operation_entry(core, operation, subject, actor, None, after)), core.patience)


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `before` and `after` with the values that differ; without the one that is None."""
    old, new = before or {}, after or {}
    same = {name for name in old if name in new and old[name] == new[name]}
    return {
        when: {name: value for name, value in values.items() if name not in same}
        for when, values in (("before", before), ("after", after))
        if values is not None
    }
