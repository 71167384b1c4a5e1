"""External jobs: the values that specialists return, the stored events, and the record projected from them. Pure.

A job in an external service is a task in the state `awaiting_external` with an `ExternalProductionRecord`. The record has no
state: the task has it, and `completed_at` and `failure_detail` imply it. One pure function, `apply`, computes the whole record
from three kinds of event, so it can be rebuilt.

Instants are milliseconds since 1970 UTC. Intervals are seconds, as external services report them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from treadle.model.errors import InvalidInput, TreadleError
from treadle.model.stored import Stored, convert
from treadle.model.values import CODE_LIMIT, Json, encode, number_of, shown, storable, text_of

DISPATCHED = "external_production_dispatched"
POLLED = "external_production_polled"
RESOLVED = "external_production_resolved"

RING = 16
"""Number of polled events kept per job: the latest. They carry running counts, so only the text of older ones is lost."""

RAISES_IN_ROW = 5
"""Consecutive polls that raise after which the engine reports that the service or its specialist may be broken."""

MAX_INTERVAL = 86_400
HINT_LIMIT = 4096
DETAIL_LIMIT = 4096
JOB_ID_LIMIT = 1024

CANCELED = "canceled"
LOST = "external_job_lost"
UNREGISTERED = "specialist_unregistered"
UNEXPECTED_POLL = "poll_returned_unexpected_type"
OUTCOME_UNKNOWN = "external_outcome_unknown"
FATE_UNKNOWN = frozenset(
    f"{OUTCOME_UNKNOWN} {UNREGISTERED} {UNEXPECTED_POLL} specialist_raised unexpected_result poll_not_supported timeout "
    "takeovers_exhausted deadline_exceeded empty_external_job_id invalid_polling_interval invalid_progress_hint "
    "progress_hint_too_long invalid_progress invalid_external_handle".split()
)
"""Error codes of tasks whose job may exist at the service nevertheless, and may still be working (D72)."""
FAILED = "external_production_failed"
"""The task's error code if the specialist gave none; the record has none then."""


class InvalidHandle(InvalidInput, code="invalid_external_handle"):
    """A handle that the engine cannot use; `reason` is the code of the invalid part."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = code


class UnexpectedSpecialistResultError(TreadleError, ValueError, code="unexpected_result"):
    """A specialist's `start` or `poll` returned a value of an unsupported type."""


class ExternalJobLost(TreadleError, code=LOST):
    """Raise it in `poll` when the service no longer knows the job: the task fails with `external_job_lost`."""


@dataclass(frozen=True, slots=True)
class ExternalProductionHandle:
    """Returned by a specialist whose job continues in an external service: poll it after `polling_interval_seconds`.

    `external_job_id` is the service's id of the job, in any format. The interval and `progress_hint` (text for people, up to
    4 KB) may change with every poll; `progress` is a fraction from 0 to 1.
    """

    external_job_id: str
    polling_interval_seconds: float
    progress_hint: str | None = None
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class ExternalProductionFailure:
    """Returned by a specialist when the service reports that the job failed. The engine does not retry it."""

    failure_detail: str
    error_code: str | None = None


@dataclass(slots=True)
class Production:
    """The product of a job: `content` is the task's result. The store assigns `object_id` when appending it."""

    content: dict[str, Json] = field(default_factory=dict)
    object_id: str | None = None


RenderEvent = Production


class ExternalEvent(Stored, frozen=True, kw_only=True):
    """One event of a job. `number` counts the polls so far: 0 for the dispatch, the last poll's number for the end."""

    kind: str
    number: int = 0
    at: int
    payload: dict[str, Json] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """The storage key; polled events share a ring of keys."""
        return f"polled.{self.number % RING:02}" if self.kind == POLLED else self.kind.removeprefix("external_production_")


class ExternalProductionRecord(Stored, frozen=True, kw_only=True):
    """An external job as projected from its events. It has no state: see the module docstring."""

    render_job_id: str
    """The id of the task."""
    declared_render_type_ref: str
    """The name of the task's handler; with the scope, it identifies the specialist."""
    specialist_ref: str
    """The class that dispatched it; informational only."""
    scope: str | None = None
    external_job_id: str
    polling_interval_seconds: float
    progress_hint: str | None = None
    progress: float | None = None
    dispatched_at: int
    last_polled_at: int | None = None
    completed_at: int | None = None
    render_event_object_id: str | None = None
    failure_detail: str | None = None
    error_code: str | None = None
    token: str | None = None
    """The token under which the job was submitted; the service can find the job by it."""
    deadline_at: int | None = None
    polls: int = 0
    raised: int = 0
    """Polls that raised, in total; `raised_in_row` counts them since the last success."""
    raised_in_row: int = 0
    last_error: str | None = None
    """The error of the last poll, if it raised."""
    due_at: int | None = None
    """The next poll; None once the job has ended."""

    @property
    def backs_off(self) -> bool:
        """Whether the next poll is later than its interval, because workers were lost while they polled."""
        return self.due_at is not None and self.last_polled_at is not None and self.due_at > _due_at(self)


def apply(record: ExternalProductionRecord | None, event: ExternalEvent) -> ExternalProductionRecord:
    """Return the record after the event: the only function that computes its content and the task's due time."""
    data = event.payload
    if event.kind == DISPATCHED:
        record = convert(ExternalProductionRecord, data | {"dispatched_at": event.at})
        return msgspec.structs.replace(record, due_at=_due_at(record))
    if record is None:
        raise UnexpectedSpecialistResultError(f"The events of an external job begin with {DISPATCHED}, not with {event.kind}.")
    record = msgspec.structs.replace(record, last_polled_at=event.at, polls=event.number, raised=data.get("raised", 0))
    if event.kind == POLLED:
        record = msgspec.structs.replace(
            record,
            polling_interval_seconds=data["polling_interval_seconds"],
            progress_hint=data.get("progress_hint"),
            progress=data.get("progress"),
            raised_in_row=data.get("raised_in_row", 0),
            last_error=data.get("error"),
        )
        return msgspec.structs.replace(record, due_at=_due_at(record, data.get("not_before", 0)))
    return msgspec.structs.replace(
        record,
        progress=data.get("progress", record.progress),
        completed_at=event.at,
        raised_in_row=0,
        last_error=None,
        render_event_object_id=data.get("render_event_object_id"),
        failure_detail=data.get("failure_detail"),
        error_code=data.get("error_code"),
        due_at=None,
    )


def project(events: Iterable[ExternalEvent]) -> ExternalProductionRecord:
    """Return the record from all stored events of a job, given in any order."""
    order = {DISPATCHED: 0, POLLED: 1, RESOLVED: 2}
    record: ExternalProductionRecord | None = None
    for event in sorted(events, key=lambda event: (order.get(event.kind, 3), event.number)):
        record = apply(record, event)
    if record is None:
        raise UnexpectedSpecialistResultError("There are no events to build the record of an external job from.")
    return record


def _due_at(record: ExternalProductionRecord, not_before: int = 0) -> int:
    """Return `coalesce(last_polled_at, dispatched_at) + interval`, or `not_before`, but not after the job's deadline."""
    since = record.dispatched_at if record.last_polled_at is None else record.last_polled_at
    due_at = max(since + max(round(record.polling_interval_seconds * 1000), 1), not_before)
    return due_at if record.deadline_at is None else min(due_at, record.deadline_at)


# --- the events ---


def dispatched(
    at: int,
    handle: ExternalProductionHandle,
    *,
    task_id: str,
    name: str,
    specialist: str,
    scope: str | None = None,
    token: str | None = None,
    deadline_at: int | None = None,
) -> ExternalEvent:
    """Return the event that begins a job."""
    payload: dict[str, Json] = {
        "render_job_id": task_id,
        "declared_render_type_ref": name,
        "specialist_ref": specialist,
        "scope": scope,
        "external_job_id": handle.external_job_id,
        "token": token,
        "deadline_at": deadline_at,
    }
    return ExternalEvent(kind=DISPATCHED, at=at, payload=payload | _progress_of(handle))


def polled(
    at: int, record: ExternalProductionRecord, handle: ExternalProductionHandle | None, error: str | None, back_off_for: int = 0
) -> ExternalEvent:
    """Return the event of a poll that did not end the job; if it raised (`handle` is None), interval and hint stay the same.

    The next poll is at least `back_off_for` milliseconds later.
    """
    unchanged = ExternalProductionHandle(
        record.external_job_id, record.polling_interval_seconds, record.progress_hint, record.progress
    )
    counts: dict[str, Json] = {"raised": record.raised}
    if error is not None:
        counts = {"raised": record.raised + 1, "raised_in_row": record.raised_in_row + 1, "error": error[:DETAIL_LIMIT]}
    if back_off_for:
        counts["not_before"] = at + back_off_for
    return ExternalEvent(kind=POLLED, number=record.polls + 1, at=at, payload=_progress_of(handle or unchanged) | counts)


def resolved(
    at: int,
    record: ExternalProductionRecord,
    *,
    object_id: str | None = None,
    failure: ExternalProductionFailure | None = None,
    by_poll: bool = False,
) -> ExternalEvent:
    """Return the event that ends a job: with its production, or with the failure. `by_poll`: a poll reported the end."""
    payload: dict[str, Json] = {"raised": record.raised}
    if failure is None:
        payload |= {"render_event_object_id": object_id, "progress": 1.0}
    else:
        payload["failure_detail"] = failure.failure_detail[:DETAIL_LIMIT]
        payload["error_code"] = failure.error_code
    return ExternalEvent(kind=RESOLVED, number=record.polls + by_poll, at=at, payload=payload)


def _progress_of(handle: ExternalProductionHandle) -> dict[str, Json]:
    return {
        "polling_interval_seconds": handle.polling_interval_seconds,
        "progress_hint": handle.progress_hint,
        "progress": handle.progress,
    }


# --- checks (D36) ---


def check_handle(handle: ExternalProductionHandle) -> ExternalProductionHandle:
    """Return the handle with plain texts and numbers, or raise `InvalidHandle`."""
    job_id, hint = handle.external_job_id, handle.progress_hint
    interval, progress = number_of(handle.polling_interval_seconds), number_of(handle.progress)
    if not isinstance(job_id, str) or not 0 < len(job_id) <= JOB_ID_LIMIT:
        raise InvalidHandle(
            "empty_external_job_id",
            f"external_job_id must be the service's id of the job: 1 to {JOB_ID_LIMIT} characters, not {shown(job_id)}.",
        )
    if interval is None or not 0 < interval <= MAX_INTERVAL:
        raise InvalidHandle(
            "invalid_polling_interval",
            f"polling_interval_seconds must be more than 0 and at most {MAX_INTERVAL} (a day), "
            f"not {shown(handle.polling_interval_seconds)}.",
        )
    if hint is not None and not isinstance(hint, str):
        raise InvalidHandle("invalid_progress_hint", f"progress_hint must be text or None, not {shown(hint)}.")
    if hint is not None and len(hint.encode("utf-8", "replace")) > HINT_LIMIT:
        raise InvalidHandle("progress_hint_too_long", f"progress_hint must be text of at most {HINT_LIMIT} bytes.")
    if handle.progress is not None and (progress is None or not 0 <= progress <= 1):
        raise InvalidHandle("invalid_progress", f"progress must be a fraction from 0 to 1, not {shown(handle.progress)}.")
    try:
        encode([job_id, hint], "handle")
    except InvalidInput as error:
        raise InvalidHandle("invalid_external_handle", str(error)) from None
    return ExternalProductionHandle(str.__str__(job_id), interval, None if hint is None else str.__str__(hint), progress)


def check_failure(failure: ExternalProductionFailure) -> ExternalProductionFailure:
    """Return the failure with texts that the stores accept, or raise `InvalidHandle`."""
    code = failure.error_code
    if code is not None and (not isinstance(code, str) or not 0 < len(code) <= CODE_LIMIT):
        raise InvalidHandle("invalid_error_code", f"error_code must be a short text or None, not {shown(code)}.")
    detail = text_of(failure.failure_detail, DETAIL_LIMIT)
    return ExternalProductionFailure(detail, None if code is None else storable(code, CODE_LIMIT))
