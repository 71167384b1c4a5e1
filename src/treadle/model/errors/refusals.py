"""Errors of valid requests that a rule forbids now: operators' limits, approvals, external jobs, access."""

from __future__ import annotations

from treadle.model.errors.base import TreadleError


class Refused(TreadleError, code="refused"):
    """A valid request that a rule forbids now."""


class BacklogFull(Refused, code="backlog_full"):
    """The cap on waiting tasks is reached."""

    def __init__(self, task_list: str, name: str, backlog_limit: int) -> None:
        super().__init__(
            f"The backlog of {name} in list {task_list} is full ({backlog_limit} ready tasks); nothing was enqueued. "
            "Try again later, add workers, or raise the limit with `treadle lists limit`."
        )
        self.task_list, self.name, self.backlog_limit = task_list, name, backlog_limit


class ListDraining(Refused, code="list_draining"):
    """The task list accepts no new work."""

    def __init__(self, task_list: str) -> None:
        super().__init__(
            f"The task list {task_list} is draining and accepts no new work; nothing was enqueued. "
            f"`treadle lists resume {task_list}` reopens it."
        )
        self.task_list = task_list


class RetriesUsedUp(Refused, code="retries_used_up"):
    """The task's retry policy allows no further attempt."""

    def __init__(self, task_id: str, retries: int) -> None:
        super().__init__(
            f"Task {task_id} has been retried {retries} time(s), the most that its policy allows; it was not changed. "
            "`treadle dlq retry` resets the count."
        )
        self.task_id, self.retries = task_id, retries


class RequestInProgress(Refused, code="request_in_progress"):
    """A request with the same idempotency key is still running."""

    def __init__(self, key: str) -> None:
        super().__init__(f"A request with the key {key} is still running; send it again in a moment to get its response.")
        self.key = key


class CallbackRefused(Refused, code="callback_refused"):
    """A callback with an unknown token."""


class Unauthorized(TreadleError, code="unauthorized"):
    """No valid token or session was presented. The message is always the same, so that it reveals nothing.

    `reason` is for logs and tests and is never sent to the caller: `missing`, `malformed`, `unknown`, `wrong`, `expired`,
    `revoked`, `closed`, `unreadable`, `ended` (while the caller waited).
    """

    def __init__(self, reason: str = "missing") -> None:
        super().__init__(
            "This needs a valid token; none was given, or it is unknown, expired or revoked. Pass it with --token, in "
            "TREADLE_TOKEN or as `Authorization: Bearer ...`; `treadle token create` creates one."
        )
        self.reason = reason


class Forbidden(TreadleError, code="forbidden"):
    """The token is valid but lacks the required scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"This needs a token with the scope {scope}, which yours does not have. Nothing was changed.")
        self.scope = str(scope)


class ListForbidden(Forbidden, code="list_forbidden"):
    """The token is valid but restricted to other task lists."""

    def __init__(self, task_list: str) -> None:
        TreadleError.__init__(self, f"Your token is not valid for the task list {task_list}. Nothing was changed.")
        self.task_list = task_list


class RestrictedToken(Forbidden, code="restricted_token"):
    """The token is restricted to some task lists, and the request does not concern a single list."""

    def __init__(self) -> None:
        TreadleError.__init__(self, "Your token is restricted to some task lists, and this concerns more than one list.")


class WatchForbidden(Forbidden, code="watch_forbidden"):
    """Only administrators may watch that place, because a watcher makes workers read files or request addresses."""

    def __init__(self, place: str) -> None:
        TreadleError.__init__(
            self,
            f"Watching {place} needs a token with the scope admin, because the server's TREADLE_WATCH_ALLOW does not list it. "
            "Nothing was changed.",
        )
        self.place = place


class TooManyAttempts(TreadleError, code="too_many_attempts"):
    """Too many failed logins; the next one is accepted after `retry_after` milliseconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"Too many failed login attempts; try again in {-(-retry_after // 1000)} s.")
        self.retry_after = retry_after
