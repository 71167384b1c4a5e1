"""The record of an approval: the rows that create and change it."""

from __future__ import annotations

import msgspec

from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import PutBlob, Row
from treadle.kernel.store.value_store import ValueStore
from treadle.model.approvals import Approval
from treadle.model.ids import Ids
from treadle.model.names import ENGINE_LIST, NOTIFY, Lane
from treadle.model.records import Record
from treadle.model.states import APPROVAL as MACHINE
from treadle.model.stored import plain
from treadle.model.tasks import NewTask, Task
from treadle.model.values import PAYLOAD_LIMIT, Json, encode

ENTITY = MACHINE.entity
PENDING = MACHINE.initial
BODY_LIMIT = 4 * PAYLOAD_LIMIT


class ApprovalRows:
    """Builds the rows of approvals; `notifies` is whether every approval is announced by a webhook."""

    def __init__(self, value_store: ValueStore, ids: Ids, *, notifies: bool) -> None:
        self._value_store = value_store
        self._ids = ids
        self._notifies = notifies

    def open(self, task: Task, approval: Approval) -> tuple[Record, tuple[Row, ...]]:
        """Return the record of a new approval, and its rows."""
        body, blobs = self._pack(approval, task.root_id)
        record = Record(
            id=self._ids.new_id(),
            namespace=task.namespace,
            entity=ENTITY,
            state=PENDING,
            body=body,
            task_id=task.id,
            run_id=task.run_id,
            root_id=task.root_id,
            trace_id=task.trace_id,
        )
        return record, (PutRecord(record), *blobs)

    def change(self, record: Record, approval: Approval, move: str, actor: str | None, data: dict[str, Json]) -> tuple[Row, ...]:
        """Return the rows of a move, guarded by the record's version."""
        body, blobs = self._pack(approval, record.root_id or record.id)
        target = MACHINE.moves[(PENDING, move)]
        change = ChangeRecord(
            record.id,
            record.version,
            body,
            move=move,
            from_state=PENDING,
            to_state=target,
            ended=target in MACHINE.final,
            actor=actor,
            data=encode(data, "data", BODY_LIMIT) if data else None,
        )
        return (change, *blobs)

    def cancel(self, record: Record, approval: Approval, why: str) -> tuple[Row, ...]:
        """Return the rows that cancel a pending approval."""
        return self.change(record, msgspec.structs.replace(approval, reason=why), "cancel", None, {"reason": why})

    def notifications(self, record: Record, approval: Approval, event: str) -> tuple[NewTask, ...]:
        """Return the task that sends the webhook of an event, if one is configured."""
        if not self._notifies and approval.request.notify is None:
            return ()
        lane = Lane(record.namespace, NOTIFY, ENGINE_LIST, NOTIFY)
        payload = self._value_store.seal(encode({"event": event, "approval_id": record.id}))
        return (NewTask(id=self._ids.new_id(), lane=lane, payload=payload, root_id=record.root_id, trace_id=record.trace_id),)

    def _pack(self, approval: Approval, root_id: str) -> tuple[str, tuple[PutBlob, ...]]:
        return self._value_store.pack(plain(approval), root_id, "approval", BODY_LIMIT)
