"""The stored record of an external job: its displayed form, and the rows that create and change it.

The intent to submit a job, with its token, is in the checkpoint of the task.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from treadle.api.external_jobs import ExternalJob
from treadle.api.wire import record_of
from treadle.kernel.store.records import ChangeRecord, PutItems, PutOutcome, PutRecord, read_document
from treadle.kernel.store.units import Row
from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import UnreadableValue
from treadle.model.external import (
    CANCELED,
    POLLED,
    ExternalEvent,
    ExternalProductionFailure,
    ExternalProductionRecord,
    Production,
    apply,
    resolved,
)
from treadle.model.ids import Ids
from treadle.model.records import UNREADABLE, EffectOutcome, Record
from treadle.model.states import EXTERNAL, PRODUCTION
from treadle.model.stored import write
from treadle.model.tasks import Task
from treadle.model.values import Json, decode, encode

ENTITY = EXTERNAL.entity


class Job(NamedTuple):
    """A stored record, and its decoded document."""

    stored: Record
    record: ExternalProductionRecord


def read_job(stored: Record) -> Job:
    """Decode the record, or raise `UnreadableValue`."""
    return Job(stored, read_document(ExternalProductionRecord, stored))


def read_any_job(stored: Record) -> Job:
    """Decode the record; one that cannot be read has its known columns and the reason, so that it can be listed and canceled."""
    try:
        return read_job(stored)
    except UnreadableValue as error:
        record = ExternalProductionRecord(
            render_job_id=stored.task_id or "",
            declared_render_type_ref="",
            specialist_ref="",
            external_job_id="",
            polling_interval_seconds=0,
            dispatched_at=stored.created_at,
            completed_at=stored.ended_at,
            failure_detail=str(error),
            error_code=UNREADABLE,
        )
        return Job(stored, record)


def show_job(job: Job) -> ExternalJob:
    """Return the job for display, without its events."""
    return record_of(ExternalJob, job.stored, job.record, state=state_of(job.record))


def state_of(record: ExternalProductionRecord) -> str:
    """The displayed state of a job: that of its task."""
    if record.error_code == UNREADABLE:
        return UNREADABLE
    if record.completed_at is None:
        return "awaiting_external"
    return "completed" if record.failure_detail is None else "canceled" if record.error_code == CANCELED else "failed"


def new_job(ids: Ids, task: Task, record: ExternalProductionRecord, event: ExternalEvent) -> tuple[Record, tuple[Row, ...]]:
    """Return the record of a job that was just dispatched, and its rows."""
    stored = _record_for(task, ids.new_id(), ENTITY, EXTERNAL.initial, write(record))
    return stored, (PutRecord(stored), *change_job(Job(stored, record), record, event))


def change_job(job: Job, record: ExternalProductionRecord, event: ExternalEvent) -> tuple[Row, ...]:
    """Return the rows of an event, guarded by the record's version.

    Its kind is the transition in the log, which has only polls that are the first or changed something, so that a job that is
    polled for a month leaves no long history.
    """
    is_news = event.kind != POLLED or event.number == 1 or _reported(record) != _reported(job.record)
    to_state = EXTERNAL.transitions[EXTERNAL.initial, event.kind]
    details = {"poll": event.number or None, "error_code": event.payload.get("error_code")}
    data = {name: value for name, value in details.items() if value is not None}
    change = ChangeRecord(
        job.stored.id,
        job.stored.version,
        write(record),
        transition=event.kind if is_news else None,
        from_state=EXTERNAL.initial if is_news else None,
        to_state=to_state if is_news else None,
        ended=to_state in EXTERNAL.final,
        data=encode(data) if is_news and data else None,
    )
    return (change, PutItems(job.stored.id, ((event.key, write(event)),)))


def _reported(record: ExternalProductionRecord) -> tuple[object, ...]:
    """Return what polls report."""
    return record.polling_interval_seconds, record.progress_hint, record.progress, record.last_error


def cancel_job(job: Job, now: int, why: str) -> tuple[Row, ...]:
    """Return the rows that end the record of a job whose task or run was canceled."""
    event = resolved(now, job.record, failure=ExternalProductionFailure(why, CANCELED))
    return change_job(job, apply(job.record, event), event)


def new_productions(
    ids: Ids, value_store: ValueStore, task: Task, productions: tuple[Production, ...]
) -> tuple[str | None, tuple[Row, ...]]:
    """Assign ids to the productions; return the last one's id, and the rows of all of them."""
    rows: tuple[Row, ...] = ()
    object_id = None
    for production in productions:
        object_id = production.object_id = production.object_id or ids.new_id()
        document, blobs = value_store.pack(production.content, task.root_id, "production", 2**31)
        rows = (*rows, PutRecord(_record_for(task, object_id, PRODUCTION.entity, PRODUCTION.initial, document)), *blobs)
    return object_id, rows


def _record_for(task: Task, record_id: str, entity: str, state: str, document: str) -> Record:
    return Record(
        id=record_id,
        namespace=task.namespace,
        entity=entity,
        state=state,
        document=document,
        task_id=task.id,
        run_id=task.run_id,
        root_id=task.root_id,
        trace_id=task.trace_id,
    )


INTENT = "@external"
"""The key of the intent in the task's checkpoint."""


def new_intent(ids: Ids, task: Task) -> dict[str, Json]:
    """Return an intent to submit the task's job at its current version."""
    token = ids.new_id()
    key = hashlib.sha256("".join(ids.new_id() for _ in range(4)).encode()).hexdigest()
    return {"token": token, "key": key, "version": task.version}


def submission_rows(task: Task, intent: dict[str, Json] | None, status: str) -> tuple[PutOutcome, ...]:
    """Return the row of a call of `start` that begins (`unknown`), or the rows of all calls under the token, which are resolved."""
    if intent is None:
        return ()
    begins, calls, token = status == "unknown", intent.get("calls", 0), intent["token"]
    rows = []
    for call in range(calls if begins else 1, calls + 1):
        key = hashlib.sha256(f"{token}/{call}".encode()).hexdigest()
        details = {"action": "start", "idempotency_key": key, "dedupe_key": token, "attempt": call, "found": status}
        outcome = EffectOutcome(
            idempotency_key=key,
            tool_call_id=token,
            status=status,
            root_id=task.root_id,
            task_id=task.id if begins else None,
            details=encode(details) if begins else None,
        )
        rows.append(PutOutcome(outcome))
    return tuple(rows)


def intent_of(task: Task) -> dict[str, Json] | None:
    """Return the task's intent, if it has one."""
    if task.checkpoint is None or not task.checkpoint.startswith("{"):
        return None
    try:
        intent = decode(task.checkpoint).get(INTENT)
    except UnreadableValue:
        return None
    return intent if isinstance(intent, dict) else None


def without_key(checkpoint: Json) -> Json:
    """Return a task's checkpoint for display, without the key, which could sign callbacks."""
    if not isinstance(checkpoint, dict) or not isinstance(intent := checkpoint.get(INTENT), dict):
        return checkpoint
    return checkpoint | {INTENT: {name: value for name, value in intent.items() if name != "key"}}


def callback_token(task_id: str, intent: dict[str, Json]) -> str:
    """Return the token with which the service may resolve the job."""
    return f"{task_id}.{_signature(task_id, intent)}"


def is_signed(task_id: str, intent: dict[str, Json], signature: str) -> bool:
    """Return whether the signature of a callback token belongs to the intent."""
    return hmac.compare_digest(_signature(task_id, intent).encode(), signature.encode())


def _signature(task_id: str, intent: dict[str, Json]) -> str:
    signed = f"{task_id}.{intent['token']}".encode()
    return hmac.new(str(intent["key"]).encode(), signed, hashlib.sha256).hexdigest()
