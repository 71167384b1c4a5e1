"""Errors that report how work ended, and errors of the store."""

from __future__ import annotations

from treadle.model.errors.base import TreadleError


class ClaimLost(TreadleError, code="claim_lost"):
    """The claim is no longer held; nothing was written."""

    def __init__(self, task_id: str, version: int) -> None:
        super().__init__(
            f"Claim {version} of task {task_id} is no longer held: it expired, or the task was taken over or canceled. "
            "Nothing was written."
        )
        self.task_id, self.version = task_id, version


class TaskFailed(TreadleError, code="task_failed"):
    """The task that the caller waits for has failed; `error` is its message. Also an instance of the original exception's class."""

    def __init__(self, task_id: str, error_code: str, message: str) -> None:
        super().__init__(f"Task {task_id} failed: {message} ({error_code})")
        self.task_id, self.error_code, self.error = task_id, error_code, message


class TaskCanceled(TreadleError, code="task_canceled"):
    """Raised to a caller waiting for the result of a task that was canceled."""


class TaskIgnored(TreadleError, code="task_ignored"):
    """Raised to a caller waiting for the result of a task that was ignored."""


class RunFailed(TreadleError, code="run_failed"):
    """The run that the caller waits for has failed; `error` includes the path of the failed step. Its class is as for a task."""

    def __init__(self, run_id: str, step_id: str | None, message: str) -> None:
        super().__init__(f"Run {run_id} failed: {message}")
        self.run_id, self.step_id, self.error = run_id, step_id, message


class RunCanceled(TreadleError, code="run_canceled"):
    """Raised to a caller waiting for the outputs of a run that was canceled."""


class Canceled(BaseException):
    """The run of a durable function is canceled: raised at the operation at which the function is, once in each branch.

    It is not an `Exception`, so that code that handles failures does not continue a canceled run.
    """


class StepFailed(TreadleError, code="step_failed"):
    """A step of a durable function failed permanently; `error` is its message, `type` the name of the exception's class.

    It is also an instance of that class, if its module is loaded.
    """

    def __init__(self, step: str, error_code: str, message: str, kind: str | None = None) -> None:
        super().__init__(f"Step {step} failed: {message} ({error_code})")
        self.step, self.error_code, self.error, self.type = step, error_code, message, kind


class SignalTimeout(TreadleError, TimeoutError, code="signal_timeout"):
    """Raised in a durable function whose signal did not arrive in time."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"The signal {signal} did not arrive in time.")
        self.signal = signal


class UpdateRejected(TreadleError, code="update_rejected"):
    """Raised to the caller of an update that the function rejected."""

    def __init__(self, update: str, reason: str) -> None:
        super().__init__(f"The function rejected the update {update}: {reason}")
        self.update, self.reason = update, reason


class UpdateUnanswered(TreadleError, code="update_unanswered"):
    """Raised to the caller of an update when the run has ended, or has continued as a new one, without answering it."""

    def __init__(self, update: str, run_id: str) -> None:
        super().__init__(f"The run {run_id} has ended or continued without answering the update {update}.")
        self.update, self.run_id = update, run_id


class ApprovalDenied(TreadleError, code="approval_denied"):
    """Raised in a durable function whose approval was denied."""


class ApprovalExpired(TreadleError, code="approval_expired"):
    """Raised in a durable function whose approval expired undecided."""


class ScanFailed(TreadleError, code="scan_failed"):
    """A watcher cannot scan its source; `reason` is the code shown in its record."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NonRetryable(TreadleError, code="non_retryable"):
    """Raise it in a handler to fail the task immediately, regardless of its retry policy."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.error_code = code or self.code


class EffectFailed(TreadleError, code="effect_failed"):
    """The effect is known not to have happened. Raise it in an effect to report that; it is retried like other errors."""


class EffectUnknown(TreadleError, code="effect_unknown"):
    """It is unknown whether the effect happened: raised with `on_unknown="fail"`, or by code in the effect that reports it."""


class StoreError(TreadleError, code="store_error"):
    """A failure of the database, not of the caller."""


class StoreUnavailable(StoreError, code="store_unavailable"):
    """Unreachable now; retrying later may help."""

    def __init__(self, message: str, *, rejected: bool = False) -> None:
        """`rejected`: the database rejects the user, the database name or the connection, and trying again does not help."""
        super().__init__(message)
        self.rejected = rejected


class Contended(StoreUnavailable, code="contended"):
    """Every attempt at a change was overtaken by another change to the same entity."""

    def __init__(self, act: str, tries: int) -> None:
        super().__init__(f"Could not {act}: another change came first, {tries} times in a row. Try again.")
        self.act, self.tries = act, tries


class StoreTimeout(StoreUnavailable, code="store_timeout"):
    """The database did not finish the work in time, for example because of a lock. A smaller amount of work may succeed."""


class StoreOverloaded(StoreUnavailable, code="store_overloaded"):
    """The store commits more slowly than changes arrive; nothing was written. Try again after `retry_after` milliseconds."""

    def __init__(self, waiting: int, retry_after: int = 5000) -> None:
        super().__init__(
            f"The store is too slow for the changes it is given: {waiting} rows already wait to be committed, so this was refused "
            f"and not stored. Try again in {-(-retry_after // 1000)} s."
        )
        self.retry_after = retry_after


class TooManyWaiting(StoreUnavailable, code="too_many_waiting"):
    """The server's limit on waiting callers is reached; try again after `retry_after` milliseconds."""

    def __init__(self, who: str, most: int, retry_after: int = 5000) -> None:
        super().__init__(
            f"Too many requests already wait or follow events: {who} may have {most} of them open. Try again in "
            f"{-(-retry_after // 1000)} s, or do not wait."
        )
        self.retry_after = retry_after


class UnreadableValue(TreadleError, code="unreadable_value"):
    """A stored value cannot be read: another codec or a newer version wrote it, or it is damaged."""


class NotOpen(StoreError, code="not_open"):
    """Used before `open` or after `close`."""

    def __init__(self, message: str = "Open the engine first: `async with engine: ...`, or `await engine.open()`.") -> None:
        super().__init__(message)


class UsedAfterFork(TreadleError, code="used_after_fork"):
    """Opened before this process was forked: its threads and connections belong to the parent process."""

    def __init__(self) -> None:
        super().__init__(
            "This engine was opened by the process that forked this one, and its threads and connections stayed there. Create and "
            "open an engine in each process, after the fork."
        )


class StoreReadOnly(StoreError, code="store_read_only"):
    """Readable, but not writable."""


class StoreFileInUse(StoreError, code="store_file_in_use"):
    """A connection of `sqlite3` to a file that a store of this process has open."""


class StoreBusy(StoreError, code="store_busy"):
    """Another process holds the file locked."""


class ClocksApart(StoreError, code="clocks_apart"):
    """Another live process uses the SQLite file with a clock that differs by minutes or more."""


class StoreFull(StoreError, code="store_full"):
    """No space left for the database."""


class StoreUnsafe(StoreError, code="store_unsafe"):
    """A location where the database cannot be durable."""


class StoreDamaged(StoreError, code="store_damaged"):
    """Acknowledged commits are missing, or pages are damaged."""


class StoreFailed(StoreError, code="store_failed"):
    """A sync failed: the last commit may or may not be there; restart the process."""


class SchemaTooNew(StoreError, code="schema_too_new"):
    """Written by a newer Treadle."""


class SchemaBehind(StoreError, code="schema_behind"):
    """Needs `treadle store migrate`."""


class MissingDependency(StoreError, code="missing_dependency"):
    """An optional package is not installed."""


class Unsupported(StoreError, code="unsupported"):
    """This store cannot keep that promise."""
