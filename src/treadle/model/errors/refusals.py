"""Errors of valid requests that a rule forbids now: operators' limits, approvals, external jobs, access."""

from __future__ import annotations

from treadle.model.errors.base import TreadleError


class Refused(TreadleError):
    code = "refused"


class BacklogFull(Refused):
    code = "backlog_full"

    def __init__(self, task_list: str, name: str, backlog_limit: int) -> None:
        super().__init__(
            f"The backlog of {name} in list {task_list} is full ({backlog_limit} ready tasks); nothing was enqueued. "
            "Try again later, add workers, or raise the limit with `treadle lists limit`."
        )
        self.task_list, self.name, self.backlog_limit = task_list, name, backlog_limit


class KeyTaken(Refused):
    """The unique or idempotency key belongs to a task that the caller may not see: nothing was created, and nothing is revealed."""

    code = "key_taken"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No task {name} was enqueued: a task in another task list has its unique or idempotency key. Keys are shared by "
            "all task lists; choose another one."
        )
        self.name = name


class ListDraining(Refused):
    code = "list_draining"

    def __init__(self, task_list: str) -> None:
        super().__init__(
            f"The task list {task_list} is draining and accepts no new work; nothing was enqueued. "
            f"`treadle lists resume {task_list}` reopens it."
        )
        self.task_list = task_list


class RetriesUsedUp(Refused):
    code = "retries_used_up"

    def __init__(self, task_id: str, retries: int) -> None:
        super().__init__(
            f"Task {task_id} has been retried {retries} time(s), the most that its policy allows; it was not changed. "
            "`treadle dlq retry` resets the count."
        )
        self.task_id, self.retries = task_id, retries


class RequestInProgress(Refused):
    code = "request_in_progress"

    def __init__(self, key: str) -> None:
        super().__init__(f"A request with the key {key} is still running; send it again in a moment to get its response.")
        self.key = key


class ThreadHeld(Refused):
    code = "thread_held"

    def __init__(self, thread_id: str, task_id: str) -> None:
        super().__init__(
            f"The thread {thread_id} belongs to the task {task_id}, which has not ended: only its worker may write it. "
            "Wait for its end or cancel it, or use another thread."
        )
        self.thread_id, self.task_id = thread_id, task_id


class HandlerExists(Refused):
    code = "handler_exists"


class ScheduleExists(Refused):
    code = "schedule_exists"


class TokenExists(Refused):
    code = "token_exists"


class WatcherExists(Refused):
    code = "watcher_exists"


class AlertRuleExists(Refused):
    code = "alert_rule_exists"


class CallbackRefused(Refused):
    code = "callback_refused"


class CallbackTooEarly(CallbackRefused):
    """The job is not recorded yet; the same callback may be sent again."""

    code = "callback_too_early"


class ExternalAlreadyResolved(Refused):
    code = "external_already_resolved"

    def __init__(self, task_id: str, state: str) -> None:
        super().__init__(f"The external job of task {task_id} is already resolved: the task is {state}. Nothing was changed.")
        self.task_id, self.state = task_id, state


class PollNotSupported(Refused):
    code = "poll_not_supported"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No live server has a specialist for {name} to poll the job, so the task was not handed off; the worker still holds "
            "it. Wait for the job in the worker, or register a specialist that has a `poll` method."
        )
        self.name = name


class MayNotDecide(Refused):
    code = "may_not_decide"

    def __init__(self, approval_id: str, actor: str, deciders: tuple[str, ...]) -> None:
        super().__init__(
            f"{actor} may not decide approval {approval_id}; the deciders are {', '.join(deciders)}. Nothing was changed."
        )
        self.approval_id, self.actor, self.deciders = approval_id, actor, deciders


class AlreadyDecided(Refused):
    code = "already_decided"

    def __init__(self, approval_id: str, state: str, by: str | None) -> None:
        decided_by = f" by {by}" if by else ""
        super().__init__(f"Approval {approval_id} is already {state}{decided_by}; a decision is final.")
        self.approval_id, self.state = approval_id, state


class AlreadyVoted(Refused):
    code = "already_voted"

    def __init__(self, approval_id: str, actor: str, votes: int, quorum: int) -> None:
        super().__init__(
            f"{actor} has already decided approval {approval_id} ({votes} of {quorum} votes); each decider has one vote."
        )
        self.approval_id, self.actor = approval_id, actor


class DecidedTooLate(Refused):
    code = "decided_too_late"

    def __init__(self, approval_id: str, expired_at: str) -> None:
        super().__init__(f"The time to decide approval {approval_id} passed at {expired_at}; nothing was changed.")
        self.approval_id, self.expired_at = approval_id, expired_at


class EditsNotAllowed(Refused):
    code = "edits_not_allowed"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"The context of approval {approval_id} may not be changed; approve it without edits, or deny it.")
        self.approval_id = approval_id


class Unauthorized(TreadleError):
    """No valid token or session was presented. The message is always the same, so that it reveals nothing.

    `reason` is for logs and tests and is never sent to the caller: `missing`, `malformed`, `unknown`, `wrong`, `expired`,
    `revoked`, `closed`, `unreadable`, `ended` (while the caller waited).
    """

    code = "unauthorized"

    def __init__(self, reason: str = "missing") -> None:
        super().__init__(
            "This needs a valid token; none was given, or it is unknown, expired or revoked. Pass it with --token, in "
            "TREADLE_TOKEN or as `Authorization: Bearer ...`; `treadle token create` creates one."
        )
        self.reason = reason


class Forbidden(TreadleError):
    """The token is valid but lacks the required scope."""

    code = "forbidden"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This needs a token with the scope {scope}, which yours does not have. Nothing was changed.")
        self.scope = str(scope)


class ListForbidden(Forbidden):
    """The token is valid but restricted to other task lists."""

    code = "list_forbidden"

    def __init__(self, task_list: str) -> None:
        TreadleError.__init__(self, f"Your token is not valid for the task list {task_list}. Nothing was changed.")
        self.task_list = task_list


class RestrictedToken(Forbidden):
    """The token is restricted to some task lists, and the request does not concern a single list."""

    code = "restricted_token"

    def __init__(self) -> None:
        TreadleError.__init__(self, "Your token is restricted to some task lists, and this concerns more than one list.")


class WatchForbidden(Forbidden):
    """Only administrators may watch that place, because a watcher makes workers read files or request addresses."""

    code = "watch_forbidden"

    def __init__(self, place: str) -> None:
        TreadleError.__init__(
            self,
            f"Watching {place} needs a token with the scope admin, because the server's TREADLE_WATCH_ALLOW does not list it. "
            "Nothing was changed.",
        )
        self.place = place


class TooManyAttempts(TreadleError):
    """Too many failed logins; the next one is accepted after `retry_after` milliseconds."""

    code = "too_many_attempts"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"Too many failed login attempts; try again in {-(-retry_after // 1000)} s.")
        self.retry_after = retry_after
