"""The four errors of dispatch, with the codes and the HTTP statuses of its specification (D63).

DispatchError
├── JobNotFound
├── MaxRetriesExceeded
├── WorkerUnavailable
└── StorageError
"""

from __future__ import annotations

from typing import ClassVar

from treadle.model.errors import NotFound, Refused, StoreError, TreadleError


class DispatchError(TreadleError, code="dispatch_error"):
    """Base of the errors that have their own HTTP status."""

    http_status: ClassVar[int] = 500


class JobNotFound(NotFound, DispatchError, code="TASK_NOT_FOUND"):
    """There is no job with that id."""

    http_status = 404

    def __init__(self, task_id: str) -> None:
        super().__init__(f"Task {task_id} not found: there is no job with that id here. It may have been pruned.")
        self.task_id = task_id


class MaxRetriesExceeded(Refused, DispatchError, code="MAX_RETRIES_EXCEEDED"):
    """The retries of its policy are exhausted; the job stays failed."""

    http_status = 400

    def __init__(self, task_id: str, retries: int) -> None:
        super().__init__(
            f"Task {task_id} exceeded max retries: it was retried {retries} time(s). It keeps its status; an operator's "
            "`treadle dlq retry` resets the count."
        )
        self.task_id, self.retries = task_id, retries


class WorkerUnavailable(Refused, DispatchError, code="WORKER_UNAVAILABLE"):
    """Nothing can be dequeued: the coordinator drains, or the limit of running jobs is reached."""

    http_status = 503


class StorageError(StoreError, DispatchError, code="STORAGE_ERROR"):
    """The store did not answer, even after three retries; stored data is not lost."""

    http_status = 500

    def __init__(self, doing: str, tries: int, error: StoreError) -> None:
        super().__init__(f"The store failed {tries} times while {doing}: {error}")
        self.doing = doing
